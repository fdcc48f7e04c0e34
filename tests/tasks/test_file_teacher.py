"""The teacher of work in a folder: a shell agrees with what its commands print and leave."""

import json
import random
import subprocess

import pytest

from k2jax.agents.environments.files import FILES
from k2jax.tasks.file_answers.dataset import EXPECTED, KINDS, FileAnswers
from k2jax.tasks.file_answers.teacher import careful_steps, careless_steps, file_demonstrations

TASKS = list(FileAnswers(KINDS, 12, syllables=2).load())
DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def left(task, steps, folder):
    """What a shell prints in a folder with the task's files, and what is then in the file that the task asks for."""
    folder.mkdir()
    for name, file in task.metadata[FILES].items():
        (folder / name).write_text(file["text"])
    printed = [
        subprocess.run(["/bin/sh", "-c", step.command], cwd=folder, env={"done": DONE}, capture_output=True, text=True)
        for step in steps
    ]
    assert not any(each.returncode for each in printed)
    [name] = task.metadata[EXPECTED]
    text = (folder / name).read_text() if (folder / name).exists() else None
    return [each.stdout.strip() for each in printed], text


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_careful_commands_print_what_the_teacher_says_and_leave_what_is_expected(task, tmp_path):
    steps = careful_steps(task)
    printed, text = left(task, steps, tmp_path / "work")
    assert printed == [*(step.output for step in steps[:-1]), DONE]
    assert text.removesuffix("\n") == next(iter(task.metadata[EXPECTED].values()))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_careless_commands_end_the_episode_with_a_wrong_file_unless_there_is_nothing_to_take_care_of(task, tmp_path):
    printed, text = left(task, careless_steps(task, random.Random(0)), tmp_path / "work")
    assert printed[-1] == DONE
    is_right = (text or "").removesuffix("\n") == next(iter(task.metadata[EXPECTED].values()))
    assert is_right == (task.domain == "file_answers/write")


def test_demonstrations_are_conversations_of_the_agent_and_a_share_of_them_is_careless():
    tasks = list(FileAnswers(("follow",), 400).load())
    made = list(file_demonstrations(tasks, careless=0.7))
    assert [message["role"] for message in made[0]["messages"][:3]] == ["system", "user", "assistant"]
    assert all(each["messages"][-1]["role"] == "assistant" for each in made)
    assert 0.62 < sum(len(each["messages"]) == 3 for each in made) / 400 < 0.78
    [looked] = [each["messages"] for each in file_demonstrations(tasks[:1], careless=0.0)]
    assert looked[3]["content"] == "0 " + list(tasks[0].metadata[FILES])[1]
    assert json.dumps(made) == json.dumps(list(file_demonstrations(tasks, careless=0.7)))
