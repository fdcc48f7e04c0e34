"""Gold patches of repositories of many shapes earn 1, other right ones too, and patches that change nothing 0."""

import asyncio
import shutil
import time

import pytest

from k2jax.agents.environment import Services
from k2jax.agents.environments.repository import RepositoryEnvironment
from k2jax.agents.errors import VerifierError
from k2jax.agents.scripted import called, said
from k2jax.tasks.swe import calibration
from tests.agents.sandbox.backends import backend
from tests.tasks.swe_repositories import SETUP, make_task, scored, simple
from tests.tasks.swe_shapes import SHAPES, needs, task_of
from tests.tasks.test_swe import added

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

DEFAULT = "several things"
ALL = [name if name == DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in SHAPES]


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch, request):
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(calibration, "BITS", 2)


@pytest.mark.parametrize("name", ALL)
def test_gold_patches_of_every_shape_earn_1_and_patches_that_solve_nothing_0(name, tmp_path):
    if not needs(name):
        pytest.skip("needs a compiler of C")
    task, other = task_of(name, tmp_path)
    begun = time.monotonic()
    results = scored(task, [task.metadata["patch"], added("NOTES", "x"), "", *([other] if other else [])])
    assert [result.value for result in results] == [1.0, 0.0, 0.0, *([1.0] if other else [])]
    assert results[0].parts == dict.fromkeys(results[0].parts, 1.0) and results[0].info["dropped"] == []
    assert results[1].parts["fail_to_pass"] < 1.0 and results[1].parts.get("pass_to_pass", 1.0) == 1.0
    uncontrolled = [test for test in task.metadata["fail_to_pass"] if ".py::" not in test]
    assert list(results[0].info["uncontrolled"]) == uncontrolled
    assert time.monotonic() - begun < 290  # nothing has waited for a limit of time


def test_the_agent_has_packages_below_src_and_its_patch_of_latin_1_is_right(tmp_path):
    old = "# coding: latin-1\ndef f(x):\n    return x, '\xe9'\n".encode("latin-1")
    fixed = old.replace(b"x, ", b"x + 1, ")
    new = "def test_new():\n    if f(1) != (2, chr(233)):\n        raise ValueError\n"
    fields = {"gold": {"src/pkg/f.py": fixed}, "extra": {"pyproject.toml": SETUP}, "passing": ()}
    shape = simple("src/pkg/f.py", "pkg.f", new=new, **fields)
    shape["base"]["src/pkg/f.py"] = old
    task, _ = make_task(tmp_path, **(shape | {"other": None}))
    commands = (
        "cd /tmp && python3 -c 'import pkg.f, importlib.metadata as m; print(m.version(\"my-pkg\"))'",
        "cd repo && python3 -m pytest -q -p no:cacheprovider 2>&1 | tail -1",
        "cd repo && LC_ALL=C sed -i 's/return x/return x + 1/' src/pkg/f.py && git diff --stat | tail -1",
    )
    outputs = []

    async def run():
        environment = RepositoryEnvironment(Services(lambda: backend("bubblewrap"), repositories=None))
        try:
            await environment.reset(task, 0)
            for command in commands:
                step = await environment.step(called("shell", command=command))
                outputs.append(step.observation.messages[0]["content"])
            return await environment.step(said("done"))
        finally:
            await environment.close()

    patch = asyncio.run(run()).info["patch"]
    assert outputs[0] == "1.5" and outputs[1].startswith("1 passed") and "1 file changed" in outputs[2]
    assert patch.isascii() and [result.value for result in scored(task, [patch])] == [1.0]


@pytest.mark.slow
def test_what_a_solution_changes_of_settings_beside_those_of_tests_counts(tmp_path):
    """An agent's pyproject.toml is its own, but for the sections of pytest's, which are named."""
    task, _ = task_of("setup.cfg", tmp_path)
    patch = task.metadata["patch"] + added("tox.ini", "[pytest]\naddopts = --collect-only\n[tox]\nenvlist = py3")
    [result] = scored(task, [patch])
    assert result.value == 1.0 and result.info["dropped"] == ["tox.ini (sections of pytest)"]


BROKEN = {
    "a plugin that is not there": (
        {"extra": {"pytest.ini": "[pytest]\naddopts = --cov=pkg\n"}},
        "unrecognized arguments: --cov",
    ),
    "a file that is not there": ({"passing": ("test_old", "test_gone")}, r"test_gone \(missing\)"),
    "a patch that solves nothing": ({"gold": {"NOTES": "x"}}, r"test_new \(failed\)"),
    "a build that fails": ({"build": "echo no compiler; exit 3"}, "exit code 3.*no compiler"),
}


@pytest.mark.parametrize(
    "name", ["a file that is not there", *(pytest.param(n, marks=pytest.mark.slow) for n in BROKEN)]
)
def test_tasks_whose_gold_patch_does_not_pass_are_refused_with_the_reason(name, tmp_path):
    changed, reason = BROKEN[name]
    task, _ = make_task(tmp_path, **(simple("pkg/f.py", "pkg.f", **changed) | {"other": None}))
    with pytest.raises(VerifierError, match=f"(?s){reason}"):
        scored(task, [task.metadata["patch"]])


@pytest.mark.slow
def test_tasks_without_a_gold_patch_have_controls_too(tmp_path):
    task, other = task_of("autouse", tmp_path)
    gold = task.metadata["patch"]
    task.metadata["patch"] = ""
    equal = "class E(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\n\ndef f(x):\n    return E()"
    forged = (
        gold.partition("@@")[0]
        + "@@ -1,2 +1,6 @@\n-def f(x):\n-    return x\n"
        + "".join(f"+{line}\n" for line in equal.split("\n"))
    )
    assert [result.value for result in scored(task, [gold, other, added("NOTES", "x"), forged])] == [1.0, 1.0, 0.0, 0.0]
