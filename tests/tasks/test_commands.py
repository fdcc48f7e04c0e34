"""Small terminal tasks: solutions earn 1, nothing and tricks earn 0, and the teacher shows what a shell prints."""

import dataclasses
import json
import subprocess

from k2jax.agents import Budget
from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import oracles
from k2jax.agents.scaffolds.scripted import called, play_actions
from k2jax.config.schema import TaskConfig
from k2jax.tasks.commands.dataset import COMMANDS, command_demonstrations
from tests.tasks.conftest import rewards


def test_solutions_of_every_kind_earn_1_and_the_null_policy_0(check):
    tasks = [task for kind in COMMANDS for task in load_tasks("commands", (f"kinds={kind}", "count=1"))]
    check(tasks, oracles.get("commands"))
    assert {task.domain for task in tasks} == set(COMMANDS)


TRICKS = (
    "ln -s /dev/zero out",
    "mkfifo out",
    "mkdir out",
    ": >out",
    "for f in *; do echo x >$f; done; {}",  # the test reads the files as they were
)


def test_tricks_with_the_file_that_is_left_earn_nothing(play):
    tasks = load_tasks("commands", ("kinds=copy", f"count={len(TRICKS)}"))
    tricks = dict(zip([task.id for task in tasks], TRICKS, strict=True))

    def trick(task, messages):
        command = tricks[task.id].replace("{}", task.metadata["commands"][-1])
        return play_actions([called("shell", command=command)], messages)

    assert rewards(play(tasks, trick)) == [0.0] * len(TRICKS)


def test_the_teacher_shows_what_a_shell_prints_and_only_where_it_looks_the_right_file_is_sure(tmp_path):
    tasks = load_tasks("commands", ("count=60",))
    right = {True: [], False: []}
    for number, (task, record) in enumerate(zip(tasks, command_demonstrations(tasks, direct=0.5), strict=True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, file in task.metadata["files"].items():
            (folder / name).write_text(file["text"])
        messages = record["messages"]
        for call, shown in zip(messages[1:-1:2], messages[2:-1:2], strict=True):
            command = json.loads(call["tool_calls"][0]["function"]["arguments"])
            done = subprocess.run(["/bin/sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
            assert done.stdout.rstrip("\n") == shown["content"]
        test = subprocess.run(["/bin/sh", "-c", task.metadata["test"]], cwd=folder, check=False)
        right[len(messages) == 6].append(test.returncode == 0)
    assert all(right[True]) and len(right[True]) > 20
    assert len(right[False]) > 20 and 0.1 < sum(right[False]) / len(right[False]) < 0.6


def test_a_right_file_counts_though_a_budget_has_ended_the_episode_unless_its_class_says_otherwise(play):
    (task,) = load_tasks("commands", ("kinds=copy", "count=1"))
    task = dataclasses.replace(task, budget=Budget(steps=len(task.metadata["commands"])))
    tasks = [task, task.with_choices(TaskConfig(judge_truncated=False))]
    right = [called("shell", command=command) for command in task.metadata["commands"]]
    ended = play(tasks, lambda task, messages: play_actions(right, messages))
    assert [each.status for each in ended] == ["truncated"] * 2 and rewards(ended) == [1.0, 0.0]
