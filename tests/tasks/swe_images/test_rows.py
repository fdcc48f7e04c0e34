"""Rows on images of six shapes: the reference patch earns 1, doing nothing 0; patches that must not help."""

import asyncio
import contextlib
import io
import json

from absl import flags

from k2jax.agents.environments.image_repository import begin
from k2jax.tasks.oracle_check import define, main
from k2jax.tasks.swe_images.verifier import compose, run_tests
from k2jax.trajectory import Reward
from tests.tasks.swe_images.episodes import (
    LIVE_IMAGE,
    SRC,
    TAP_IMAGE,
    episode,
    fresh_sandbox,
    row,
    tasks_of,
    verdict,
)
from tests.tasks.swe_images.images import FUTURE, folder_of_images
from tests.tasks.swe_images.shapes import IMAGES


def test_the_command_checks_rows_of_all_shapes(tmp_path):
    """The last row is SWE-bench's of old: it names neither image nor command nor parser."""
    rows = [row(name) for name in IMAGES]
    old = dict.fromkeys(("eval_script", "log_parser", "eval_type", "image_name"))
    rows.append(rows[0] | old | {"instance_id": "SRC", "problem_statement": "Another."})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    printed, values = io.StringIO(), flags.FlagValues()
    define(values)
    options = f"--options=path={path},image={SRC.replace('src', '{id}')}"
    values(["check", options, f"--images={folder_of_images()}", "--split=all"])
    with contextlib.redirect_stdout(printed):
        assert main(values, "swe_images") == 0, printed.getvalue()
    assert f"{len(rows)} of {len(rows)} episodes of the oracle policy earn 1" in printed.getvalue()
    assert f"{len(rows)} of {len(rows)} episodes of the null policy earn 0" in printed.getvalue()


CHEATS = {
    "new tests in the place of those that judge": ("echo 'test_new() { true; }' > tests/new.sh", ["tests/new.sh"]),
    "a link in the place of the folder of tests": ("mkdir easy; mv tests/* easy; rmdir tests; ln -s easy tests", None),
}
SOLVE = "printf 'def f(x):\\n    return x + 1\\n' > src/pkg/__init__.py"


def test_patches_that_edit_the_tests_do_not_help_and_are_named(tmp_path):
    [task] = tasks_of(tmp_path, row(TAP_IMAGE))
    for cheat, (command, dropped) in CHEATS.items():
        played, _ = episode(task, command)
        assert played.reward.value == 0.0 and played.reward.parts["fail_to_pass"] == 0.0, (cheat, played.reward)
        assert dropped in (None, played.reward.info["dropped"]), (cheat, played.reward)


def test_files_of_listed_tests_are_as_they_were_and_a_solution_counts_nevertheless(tmp_path):
    """The second file is none of the test patch's; the image has a commit of its build on top of the base."""
    [task] = tasks_of(tmp_path, row(SRC))
    cheat = "echo 'def test_old(): assert 0' > tests/test_old.py; echo 'import nowhere' > tests/conftest.py"
    played, shown = episode(task, f"{cheat}; {SOLVE}", "git log --format=%s; python -c 'print(3)'")
    assert played.reward.value == 1.0 and shown[1] == "SWE-bench\nbase\nbefore\n3", (played.reward, shown)
    assert played.reward.info["dropped"] == ["tests/conftest.py", "tests/test_old.py"]


def test_parts_say_which_tests_are_missing_and_failed(tmp_path):
    fields = row(TAP_IMAGE)
    [task] = tasks_of(tmp_path, fields | {"PASS_TO_PASS": ["test_old", "test_nowhere"], "patch": ""})
    reward = verdict(task, fields["patch"], "/srv/the project")
    assert reward.value == 0.0 and dict(reward.parts) == {"fail_to_pass": 1.0, "pass_to_pass": 0.5}
    assert reward.info["missing"] == ["test_nowhere"] and reward.info["failed"] == []
    wrong = fields["patch"].replace("$1 + 1", "$1 + 2")
    assert verdict(task, wrong, "/srv/the project").info["failed"] == ["test_new"]


TESTS = {
    "kill -9 $PPID; kill -9 $$": "exit code 137",
    "sleep 30": "it took too long",
    "yes PASSED tests/x.py::test_new | head -c 100000000": "they have printed more than",
    "printf 'end-0123\\n\\n>>>>> End Test Output\\n'; exec 1>&- 2>&-; exit 0": "",
}


def test_commands_that_do_not_come_to_their_end_are_a_reason(tmp_path):
    fields = row(LIVE_IMAGE) | {"print_cmds": [], "timeout": 1}
    rows = [fields | {"instance_id": str(number), "test_cmds": [command]} for number, command in enumerate(TESTS)]
    tasks = tasks_of(tmp_path, *rows)

    async def ran():
        async with await fresh_sandbox(tasks[0]) as sandbox:
            return [await run_tests(task, sandbox, "/testbed", {}) for task in tasks]

    for (ended, reason), (command, expected) in zip(asyncio.run(ran()), TESTS.items(), strict=True):
        assert ended == {} and reason.startswith(expected) and len(reason) < 500, (command, reason)
        assert bool(reason) == bool(expected), (command, reason)
    reward = verdict(tasks[0], fields["patch"], "/testbed")
    assert reward.value == 0.0 and reward.info["ended"].startswith("exit code 137"), reward


HOSTILE_PATCHES = (
    "diff --git a/.git/x b/.git/x\nnew file mode 100755\n--- /dev/null\n+++ b/.git/x\n@@ -0,0 +1 @@\n+x\n",
    "diff --git a/lib.sh b/lib.sh\n--- a/lib.sh\n+++ b/lib.sh\n@@ -1 +1 @@\n-other\n+words\n",
    "\0\ud800",
)


def test_what_is_no_patch_is_worth_nothing(tmp_path):
    [task] = tasks_of(tmp_path, row(LIVE_IMAGE))

    async def composed():
        async with await fresh_sandbox(task) as sandbox:
            tree = (await begin(task, sandbox, "/testbed")).tree
            return [await compose(task, sandbox, "/testbed", tree, patch) for patch in HOSTILE_PATCHES]

    for patch, reward in zip(HOSTILE_PATCHES, asyncio.run(composed()), strict=True):
        assert isinstance(reward, Reward) and reward.value == 0.0 and reward.info["applied"] is False, (patch, reward)


def test_what_is_wrong_with_a_row_masks_its_samples(tmp_path):
    fields = row(LIVE_IMAGE)
    wrong = {
        "the test patch of the task": {"test_patch": fields["test_patch"].replace("new.sh", "old.sh")},
        "the base commit": {"base_commit": "0" * 40},
    }
    for reason, change in wrong.items():
        [task] = tasks_of(tmp_path, fields | change)
        assert reason in verdict(task, fields["patch"], "/testbed"), reason


def test_code_of_an_agent_finds_no_future_while_it_is_tested(tmp_path):
    """The tests of this row pass where the repository has no object of the solution."""
    fields = row(LIVE_IMAGE)
    looks = [f"git cat-file -e {each} && echo FAIL: future || echo PASS: past" for each in FUTURE[LIVE_IMAGE]]
    looks.append(f"git cat-file -e {fields['base_commit']} && echo PASS: base")
    change = {"test_cmds": looks, "print_cmds": [], "log_parser": "parse_log_jq", "FAIL_TO_PASS": ["past", "base"]}
    [task] = tasks_of(tmp_path, fields | change | {"PASS_TO_PASS": []})
    reward = verdict(task, fields["patch"], "/testbed")
    assert reward.value == 1.0, reward
