"""Tasks whose answer is a file: their right commands earn 1, and everything else 0."""

import asyncio
import base64

import pytest

from k2jax.agents import Task
from k2jax.agents.environment import OUTCOME, Services
from k2jax.agents.environments.files import FILES, OUTPUTS, FilesEnvironment, NamedFilesEnvironment
from k2jax.agents.sandbox import SandboxSpec
from k2jax.tasks.file_answers.dataset import EXPECTED, KINDS, FileAnswers, FilesAsExpected, texts_left
from k2jax.trajectory import Trajectory
from tests.agents.sandbox.backends import backend


def solution(task):
    kind, *words = task.instruction[0]["content"].split()
    command = {
        "Write": "echo {0} > {2}",
        "Copy": "cp {0} {2}",
        "Join": "cat {0} {2} > {4}",
        "Follow": "cp $(cat {0}) {2}",
    }[kind]
    return command.format(*words)


async def outcome_of(task, command):
    environment = FilesEnvironment(Services(lambda: backend("bubblewrap")))
    sandbox = await environment.open_workspace(task, SandboxSpec())
    result = await sandbox.exec(["/bin/sh", "-c", command])
    assert result.code == 0, result.stderr
    outcome = await environment.collect()
    await environment.close()
    return outcome


def reward(task, outcome):
    trajectory = Trajectory(task.id, task.domain, (0, 0, 0), metadata={OUTCOME: outcome})
    return asyncio.run(FilesAsExpected().score(task, trajectory, None))


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_command_earns_one_and_another_none(kind):
    [task] = FileAnswers(kinds=(kind,), count=1).load()
    [name] = task.metadata[EXPECTED]
    assert reward(task, asyncio.run(outcome_of(task, solution(task)))).value == 1.0
    for command in ("true", f"echo wrong > {name}", f"{solution(task)}; echo more >> {name}"):
        assert reward(task, asyncio.run(outcome_of(task, command))).value == 0.0
    assert reward(task, {}).value == 0.0


@pytest.mark.parametrize("environment", [FilesEnvironment, NamedFilesEnvironment])
def test_files_of_text_and_of_bytes_are_there_as_the_task_has_them(environment):
    content = bytes(range(256))
    files = {"a/é.txt": {"text": "é\r\n"}, "b.bin": {"base64": base64.b64encode(content).decode()}}
    task = Task("t", "d", (), "v", tools=("shell",), metadata={FILES: files})

    async def left():
        opened = environment(Services(lambda: backend("bubblewrap")))
        sandbox = await opened.open_workspace(task, SandboxSpec())
        read = [await sandbox.read(f"/work/{path}") for path in files]
        await opened.close()
        return read

    assert asyncio.run(left()) == ["é\r\n".encode(), content]


@pytest.mark.parametrize(("content", "fitting"), [("A", 5), ("\\0", 0), ("\\377", 1)])
def test_texts_of_many_names_are_bounded_together(content, fitting):
    """One large file under many names would otherwise fill the memory, or be too long for a remote environment."""
    names = ["./" * number + "a" for number in range(20)]
    task = Task("t", "d", (), "v", tools=("shell",), metadata={OUTPUTS: names})

    async def outcome():
        opened = NamedFilesEnvironment(Services(lambda: backend("bubblewrap")))
        sandbox = await opened.open_workspace(task, SandboxSpec())
        await sandbox.exec(["/bin/sh", "-c", f"head -c 1048576 /dev/zero | tr '\\0' '{content}' > a"])
        many = await opened.collect()
        await sandbox.exec(["/bin/sh", "-c", f"head -c 10000 /dev/zero | tr '\\0' '{content}' > a"])
        few = await opened.collect()
        await sandbox.exec(["/bin/sh", "-c", "echo >> b; head -c 1048577 /dev/zero > a"])
        too_long = await opened.collect()
        await opened.close()
        return many, few, too_long

    many, few, too_long = asyncio.run(outcome())
    assert [len(text) for text in many["texts"].values()] == [1 << 20] * fitting
    assert many["left_out"] == [f"{name}: too large beside the others" for name in names[fitting:]]
    assert too_long == {"texts": {}, "left_out": [f"{name}: too large" for name in names]}
    assert len(few["texts"]) == 20 and all(len(text) == 10_000 for text in few["texts"].values())


def test_texts_that_are_left_follow_no_link_and_broken_archives_hold_none():
    [task] = FileAnswers(kinds=("write",), count=1).load()
    outcome = asyncio.run(outcome_of(task, "ln -s /etc/passwd a; mkdir d; echo é > d/e"))

    def left(archive):
        return texts_left(Trajectory("t", "", (0, 0, 0), metadata={OUTCOME: {"archive": archive}}))

    assert left(outcome["archive"]) == {"d/e": "é\n"}
    assert left(outcome["archive"][:80]) == left("") == left("aaaa") == {}


def test_the_words_of_a_task_are_distinct_and_as_long_as_asked():
    """Of 15 words, four at random differ in two thirds of all draws."""
    for task in FileAnswers(("follow",), 100, syllables=1).load():
        _, other, _, name = task.instruction[0]["content"].split()
        words = {other, name, *task.metadata["files"], *task.metadata[EXPECTED].values()}
        assert len(words) == 4 and {len(each) for each in words} == {2}


def test_kinds_come_in_turn():
    words = [task.instruction[0]["content"].split()[0] for task in FileAnswers(KINDS, 5).load()]
    assert words == ["Write", "Copy", "Join", "Follow", "Write"]


def test_an_episode_that_is_repeated_leaves_the_same_bytes_at_another_time():
    [task] = FileAnswers(kinds=("write",), count=1).load()
    commands = ("mkdir d; echo x > d/e", "mkdir d; echo x > d/e; touch -d 2001-02-03 d/e d")
    one, other = (asyncio.run(outcome_of(task, command)) for command in commands)
    assert one["archive"] and one == other
