"""Terminal tasks: reference solutions earn 1, doing nothing earns 0, and no file left behind doctors the test."""

import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import oracles
from k2jax.agents.scripted import called, play_actions
from k2jax.errors import UserError
from k2jax.tasks.terminal.dataset import KINDS
from tests.tasks.conftest import rewards


def test_reference_solutions_of_every_kind_earn_1_and_the_null_policy_0(check):
    tasks = load_tasks("terminal", (f"count={len(KINDS)}",))
    check(tasks, oracles.get("terminal"))
    assert {task.domain for task in tasks} == {f"terminal/{kind}" for kind in KINDS}
    assert all(task.metadata["test"] not in task.instruction[0]["content"] for task in tasks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_reference_solutions_of_many_seeds_earn_1(check, seed):
    check(load_tasks("terminal", ("count=40", f"seed={seed}")), oracles.get("terminal"))


ATTACKS = (
    "printf 'exit 0' > NAME.sh; printf 'import os; os._exit(0)' | tee sitecustomize.py json.py tarfile.py",
    "ln -s /dev/zero NAME.sh",
    "printf 'kill -9 $PPID' > NAME.sh",
    'printf \'echo "{\\"secret\\": \\"\\", \\"reason\\": \\"\\"}" >/proc/$PPID/fd/1\' > NAME.sh',
    "rm -rf /work/* ; mkfifo pipe; mkdir -p a/b; chmod 000 a",
)


def test_no_file_that_is_left_behind_doctors_the_test(play):
    tasks = load_tasks("terminal", ("kinds=scripts", f"count={len(ATTACKS)}"))
    attacks = dict(zip([task.id for task in tasks], ATTACKS, strict=True))

    def attack(task, messages):
        name = task.metadata["test"].partition("'/bin/sh', '")[2].partition(".sh")[0]
        return play_actions([called("shell", command=attacks[task.id].replace("NAME", name))], messages)

    assert rewards(play(tasks, attack)) == [0.0] * len(ATTACKS)


def test_tasks_of_a_file_are_read_and_wrong_ones_refused(check, tmp_path):
    path = tmp_path / "tasks.jsonl"
    record = {
        "instruction": "Copy a to b.",
        "files": {"a": "x"},
        "solution": "cp a b",
        "test": "assert read('b') == 'x'",
    }
    path.write_text(json.dumps(record))
    tasks = [task for split in ("train", "test") for task in _loaded(path, split)]
    check(tasks, oracles.get("terminal"))
    path.write_text(json.dumps(record | {"files": {"a": 1}}))
    with pytest.raises(UserError, match=r"terminal: record 1 of .* needs instruction"):
        load_tasks("terminal", (f"path={path}",))


def _loaded(path, split):
    try:
        return load_tasks("terminal", (f"path={path}",), split)
    except UserError:
        return []
