"""Tasks in repositories: the reference patch earns 1, and nothing that an agent leaves behind doctors the tests."""

import asyncio
import dataclasses
import json
import shutil

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import Services
from k2jax.agents.environments.git_history import packed_history
from k2jax.agents.environments.repository import RepositoryEnvironment
from k2jax.agents.environments.repository_program import Guard, with_sections_of
from k2jax.agents.registry import oracles
from k2jax.agents.scripted import called, play_actions, said
from k2jax.errors import UserError
from k2jax.tasks.swe import calibration
from k2jax.tasks.swe.example import write_example
from k2jax.tasks.swe.runs import kinds_of
from tests.agents.sandbox.backends import backend
from tests.tasks.conftest import rewards
from tests.tasks.swe_repositories import scored

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    path = write_example(tmp_path_factory.mktemp("swe") / "example")
    options = (f"path={path}",)
    found = load_tasks("swe", options)
    for task in found:  # tests of one file alone: each file is a start of pytest
        file = task.metadata["fail_to_pass"][0].partition("::")[0]
        task.metadata["pass_to_pass"][:] = [f"{file}::test_count" if "count" in file else f"{file}::test_first"]
    return {task.id: task for task in found}


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch):
    monkeypatch.setattr(calibration, "BITS", 2)


def added(path, text):
    """A patch that adds a file."""
    lines = text.split("\n")
    body = "\n".join(f"+{line}" for line in lines)
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}\n"


def test_the_reference_patch_earns_1_and_the_null_policy_0(check, tasks):
    check([tasks["words-empty"]], oracles.get("swe"))


def test_a_file_of_many_tests_counts_whole(tasks):
    """Their reports are more than the output that is kept of an ordinary command."""
    task, name = tasks["words-empty"], f"test_{'n' * 2000}"
    source = f"import pytest\n\n\n@pytest.mark.parametrize('x', range(200))\ndef {name}(x):\n    pass"
    metadata = {
        **task.metadata,
        "test_patch": task.metadata["test_patch"] + added("tests/test_many.py", source),
        "fail_to_pass": [f"tests/test_many.py::{name}[{x}]" for x in range(200)],
        "pass_to_pass": [],
    }
    [reward] = scored(dataclasses.replace(task, metadata=metadata), [task.metadata["patch"]])
    assert reward.value == 1.0 and reward.parts == {"fail_to_pass": 1.0}


@pytest.mark.parametrize("line", ["[" * 100_000, "[]," * 100_000, "[" + "9" * 100_000, '["a", "call"]', "1", ""])
def test_what_a_program_writes_in_place_of_reports_is_passed_over(line):
    reports = [f'["b", "{phase}", "passed"]' for phase in ("setup", "call", "teardown")]
    assert kinds_of([line, *reports]) == {"b": "passed"}


@pytest.mark.parametrize(
    ("reports", "kind"),
    [
        ("setup passed, call passed, teardown passed", "passed"),
        ("setup passed, call failed, teardown passed", "failed"),
        ("setup passed, call passed, teardown failed", "failed"),
        ("setup failed, teardown passed", "failed"),
        ("setup skipped, teardown passed", "skipped"),
        ("setup xfailed, teardown passed", "xfailed"),
        ("setup passed, call xfailed, teardown passed", "xfailed"),
        ("setup passed, call xpassed, teardown passed", "xpassed"),
        ("setup passed, call passed, call passed, teardown passed", "passed"),
        ("setup passed, call failed, call passed, teardown passed", "failed"),
        ("setup passed, call skipped, call passed, teardown passed", "passed"),
        ("setup passed, call rerun, setup passed, call passed, teardown passed", "passed"),
        ("setup passed, call passed", "unfinished"),
        ("setup passed, teardown passed", "unfinished"),
        ("call passed", "unfinished"),
    ],
)
def test_a_test_is_what_its_phases_and_subtests_are_together(reports, kind):
    assert kinds_of([json.dumps(["a", *report.split()]) for report in reports.split(", ")]) == {"a": kind}


ATTACKS = {
    "a patched pytest": [("pytest.py", "def main(*a, **k): return 0"), ("_pytest/__init__.py", "x = 1")],
    "exit 0 in conftest": [("conftest.py", "import os\nos._exit(0)")],
    "exit 0 in the package": [("words/hook.py", "import os\nos._exit(0)")],
    "exit 0 in sitecustomize": [("sitecustomize.py", "import os\nos._exit(0)")],
    "pytest.ini": [("pytest.ini", "[pytest]\naddopts = --collect-only\npython_functions = none_*")],
    "PATH": [("bin/python3", "#!/bin/sh\nexit 0"), ("bin/git", "#!/bin/sh\nexit 0")],
    "edited tests": [("tests/test_longest.py", "def test_empty(): pass\ndef test_first(): pass")],
}  # fmt: skip
HOOK = (
    "diff --git a/words/__init__.py b/words/__init__.py\n--- a/words/__init__.py\n+++ b/words/__init__.py\n"
    "@@ -1 +1,2 @@\n+from words import hook\n from words.count import count, longest\n"
)


DEFAULT = ("exit 0 in conftest", "edited tests")


@pytest.mark.parametrize("names", [DEFAULT, pytest.param(tuple(ATTACKS), marks=pytest.mark.slow)], ids=["some", "all"])
def test_no_patch_doctors_its_tests(tasks, names):
    patches = []
    for files in (ATTACKS[name] for name in names):
        patch = "".join(added(path, text) for path, text in files)
        patches.append(patch + (HOOK if any(path == "words/hook.py" for path, _ in files) else ""))
    results = dict(zip(names, scored(tasks["words-empty"], patches), strict=True))
    assert {name: result.value for name, result in results.items()} == dict.fromkeys(names, 0.0)
    assert results["edited tests"].info["dropped"] == ["tests/test_longest.py"]
    assert results["edited tests"].parts == {"fail_to_pass": 0.0, "pass_to_pass": 1.0}


def test_a_right_patch_counts_whatever_else_it_has_and_one_that_does_not_apply_is_0(tasks):
    task = tasks["words-empty"]
    right = task.metadata["patch"] + added("pytest.py", "raise SystemExit") + added("tests/conftest2.py", "x")
    results = scored(task, [right, "no patch at all"])
    assert [result.value for result in results] == [1.0, 0.0]
    assert results[1].info["applied"] is False and "dropped" in results[0].info


def test_the_agent_sees_the_base_commit_and_nothing_after_it_and_its_commits_count(tasks):
    task, outputs = tasks["words-spaces"], []

    async def run():
        environment = RepositoryEnvironment(Services(lambda: backend("bubblewrap"), repositories=None))
        try:
            await environment.reset(task, 0)
            for command in (
                "cd repo && git log --all --format=%s && git status --short && ls tests",
                "cd repo && git rev-list --all --objects | wc -l",
                "cd repo && git cat-file --batch-check --batch-all-objects | wc -l",
                "cd repo && sed -i 's/split(\" \")/split()/' words/count.py && echo new > new.txt && git add -A && "
                "git -c user.name=a -c user.email=b commit -qm x && rm -rf .git && echo done",
                "cd repo && python3 -m pytest -q -p no:cacheprovider tests 2>&1 | tail -1",
            ):
                step = await environment.step(called("shell", command=command))
                outputs.append(step.observation.messages[0]["content"])
            return await environment.step(said("done"))
        finally:
            await environment.close()

    step = asyncio.run(run())
    assert outputs[0] == "Counts words\nconftest.py\ntest_count.py"
    assert outputs[1] == outputs[2] == "8" and outputs[3] == "done" and outputs[4].startswith("1 passed")
    assert step.terminated and "+    return len(text.split())" in step.info["patch"] and "new.txt" in step.info["patch"]


FILES = ["tests/unit/test_a.py", "pkg/deep/tests/test_b.py", "test_c.py"]
GUARDED = (
    *FILES, "tests/x.py", "tests/data/x.json", "tests/conftest.py", "pkg/deep/tests/x.py", "conftest.py", "pytest.ini",
    "pkg/conftest.py", "pkg/deep/conftest.py", ".pytest.ini", "pytest.toml", ".gitattributes", "pkg/.gitattributes",
    "_pytest/main.py", "src/pytest.py", "lib/pluggy/x.py", "src/sitecustomize.py", "a/__pycache__/x.pyc", "x.pth",
    "a.dist-info/entry_points.txt", "tests",
)  # fmt: skip
FREE = (
    "pkg/count.py", "pkg/testing/f.py", "pkg/test/client.py", "pkg/test_utils.py", "test_d.py", "pkg/e2e/x.py",
    "setup.cfg", "pyproject.toml", "tox.ini", "other/conftest.py", "docs/pytest.ini", "pkg/_pytest/main.py",
)  # fmt: skip


def test_paths_are_guarded_by_what_they_do_to_the_listed_tests():
    guard = Guard(FILES, set(), set())
    assert [path for path in GUARDED if not guard.holds(path)] == []
    assert [path for path in FREE if guard.holds(path)] == []
    reference = {"tests/conftest.py", "pkg/deep/tests/x.py", "pytest.ini"}
    guard = Guard(FILES, reference, {"src/_pytest/main.py"})
    assert not any(map(guard.holds, (*reference, "src/_pytest/new.py", "pkg/deep/tests/y.py")))
    assert guard.holds("tests/x.py") and guard.holds("pkg/deep/tests/test_b.py") and guard.holds("_pytest/main.py")


@pytest.mark.parametrize(
    ("agent", "base", "result"),
    [
        ("[a]\nb = 1\n[tool.pytest]\nc = 1\n[d]", "[tool.pytest]\nc = 2\n", "[a]\nb = 1\n[d]\n[tool.pytest]\nc = 2\n"),
        ("[a]\n[ tool . 'pytest' . ini_options ] # x\nc = 1\n", "[a]\n", "[a]\n"),
        ("[[tool.pytest.x]]\nc = 1\n[a]\n", "", "[a]\n"),
        ("[tool:pytest]\nc = 1\n", "[a]\n[tool:pytest]\nc = 2", "[tool:pytest]\nc = 2\n"),
        ("", "[pytest]\nc = 2\n", "[pytest]\nc = 2\n"),
        ("a = 1\n[tool.pytest.ini_options]\nc = 1\n[b]\nd = 2", "[tool.pytest.ini_options]\nc = 1\n", None),
        ("[tool.pytester]\nc = 1\n", "", None),
    ],
)
def test_settings_of_pytest_stay_as_they_are_and_those_of_other_tools_change(agent, base, result):
    assert with_sections_of(agent, base) == (agent if result is None else result)


def test_a_file_of_something_else_and_a_missing_commit_are_refused(tmp_path, tasks):
    path = tmp_path / "tasks.jsonl"
    record = dict.fromkeys(("instance_id", "repo", "base_commit", "problem_statement", "test_patch"), "x")
    for wrong, named in (
        ({"repo": 1}, "repo"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS"),
        ({"PASS_TO_PASS": "["}, "PASS"),
        ({"FAIL_TO_PASS": ["test_x (tests.test_f.C)"]}, "no node id of pytest"),
        ({"PASS_TO_PASS": ["test_bare"]}, "no node id of pytest"),
        ({"test_patch": "\udce9"}, "half surrogates"),
        ({"pythonpath": "src"}, "list of folders"),
        ({"build": ["make"]}, "a command"),
    ):
        path.write_text(json.dumps(record | {"FAIL_TO_PASS": '["a.py::b"]', "PASS_TO_PASS": "[]"} | wrong))
        with pytest.raises(UserError, match=rf"swe: record 1 of .*{named}"):
            load_tasks("swe", (f"path={path}",))
    with pytest.raises(UserError, match="cannot read the commit"):
        place = tasks["words-empty"].metadata
        asyncio.run(packed_history(place["repository"], "0" * 40, place["repositories"]))


def test_an_episode_that_leaves_no_work_tree_earns_0(play, tasks):
    ruin = [called("shell", command="rm -rf /work/repo; ln -s / /work/repo")]
    solved = play([tasks["words-empty"]], lambda task, messages: play_actions(ruin, messages))
    assert rewards(solved) == [0.0]
