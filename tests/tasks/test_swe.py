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
from k2jax.agents.environments.repository_program import is_protected
from k2jax.agents.registry import oracles
from k2jax.agents.scripted import called, play_actions, said
from k2jax.errors import UserError
from k2jax.tasks.swe import verifier as swe_scoring
from k2jax.tasks.swe.example import write_example
from k2jax.tasks.swe.verifier import SWEVerifier
from tests.agents.sandbox.backends import backend
from tests.tasks.conftest import rewards
from tests.tasks.test_code import trajectory

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


def scored(task, patches):
    """Rewards of patches, each scored in a sandbox of its own."""

    async def run():
        results = []
        for patch in patches:
            verifier, episode = SWEVerifier(), trajectory("done")
            episode.metadata["outcome"] = {"patch": patch, "too_large": False}
            async with await backend("bubblewrap").open(verifier.spec) as sandbox:
                results.append(await verifier.score(task, episode, sandbox))
        return results

    return asyncio.run(run())


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
        "pass_to_pass": [f"tests/test_many.py::{name}[{x}]" for x in range(200)],
    }
    [reward] = scored(dataclasses.replace(task, metadata=metadata), [task.metadata["patch"]])
    assert reward.value == 1.0


@pytest.mark.parametrize("line", ["[" * 100_000, "[]," * 100_000, "[" + "9" * 100_000, '["a", "call"]', "1", ""])
def test_what_a_program_writes_in_place_of_reports_is_passed_over(line):
    assert swe_scoring._reports([line, '["b", "call", true]']) == {"b": {"call": [True]}}


REPORTS = (
    "import _pytest.reports\noriginal = _pytest.reports.TestReport.from_item_and_call\n"
    "def lie(item, call):\n    report = original(item, call)\n    report.outcome = 'passed'\n    return report\n"
    "_pytest.reports.TestReport.from_item_and_call = staticmethod(lie)"
)
ATTACKS = {
    "a patched pytest": [("pytest.py", "def main(*a, **k): return 0"), ("_pytest/__init__.py", "x = 1")],
    "pytest patched from the package": [("words/hook.py", REPORTS)],
    "exit 0 in conftest": [("conftest.py", "import os\nos._exit(0)")],
    "exit 0 in the package": [("words/hook.py", "import os\nos._exit(0)")],
    "exit 0 in sitecustomize": [("sitecustomize.py", "import os\nos._exit(0)")],
    "pytest.ini": [("pytest.ini", "[pytest]\naddopts = --collect-only\npython_functions = none_*")],
    "PATH": [("bin/python3", "#!/bin/sh\nexit 0"), ("bin/git", "#!/bin/sh\nexit 0")],
    "edited tests": [("tests/test_longest.py", "def test_empty(): pass\ndef test_first(): pass")],
    "planted results": [("words/hook.py", "import os\nfor fd in range(3, 20):\n    try:\n        os.write(fd, "
                         "b'[\"tests/test_longest.py::test_empty\", \"call\", true]\\n')\n    except OSError: pass")],
    "an xfail": [("words/hook.py", "import builtins, pytest\nbuiltins.max = lambda *a, **k: pytest.xfail()")],
}  # fmt: skip
HOOK = (
    "diff --git a/words/__init__.py b/words/__init__.py\n--- a/words/__init__.py\n+++ b/words/__init__.py\n"
    "@@ -1 +1,2 @@\n+from words import hook\n from words.count import count, longest\n"
)


DEFAULT = ("pytest patched from the package", "exit 0 in conftest", "edited tests", "planted results")


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
    assert "must fail" in results["pytest patched from the package"].info["ended"]["tests/test_longest.py"]


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


def test_protected_paths_are_tests_and_what_configures_them():
    tests = ("tests/x.py", "a/test_b.py", "a/b_test.py", "conftest.py", "a/conftest.py", "pytest.ini", "x.pth")
    others = ("setup.cfg", "pyproject.toml", "_pytest/main.py", "a/__pycache__/x.pyc", "sitecustomize.py")
    assert all(map(is_protected, tests + others))
    free = ("words/count.py", "attest.py", "contests/x.py", "docs/testing_guide.md", "latest/x.py")
    assert not any(map(is_protected, free))


def test_a_file_of_something_else_and_a_missing_commit_are_refused(tmp_path, tasks):
    path = tmp_path / "tasks.jsonl"
    record = dict.fromkeys(("instance_id", "repo", "base_commit", "problem_statement", "test_patch"), "x")
    for wrong, named in (
        ({"repo": 1}, "repo"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS"),
        ({"PASS_TO_PASS": "["}, "PASS"),
    ):
        path.write_text(json.dumps(record | {"FAIL_TO_PASS": '["a"]', "PASS_TO_PASS": "[]"} | wrong))
        with pytest.raises(UserError, match=rf"swe: record 1 of .* needs {named}"):
            load_tasks("swe", (f"path={path}",))
    with pytest.raises(UserError, match="cannot read the commit"):
        place = tasks["words-empty"].metadata
        asyncio.run(packed_history(place["repository"], "0" * 40, place["repositories"]))


def test_an_episode_that_leaves_no_work_tree_earns_0(play, tasks):
    ruin = [called("shell", command="rm -rf /work/repo; ln -s / /work/repo")]
    solved = play([tasks["words-empty"]], lambda task, messages: play_actions(ruin, messages))
    assert rewards(solved) == [0.0]
