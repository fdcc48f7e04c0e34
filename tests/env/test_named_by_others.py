"""What of this machine a record or another program's task may name, and what an agent sees of a repository."""

import asyncio
import dataclasses
import json
import shutil

from absl import flags
import pytest

from k2jax.env.registry import load_tasks
from k2jax.env.remote import RemoteEnvironment, remote
from k2jax.env.repository import RepositoryEnvironment
from k2jax.env.scripted import called
from k2jax.env.serve import EnvironmentServer, define, serving
from k2jax.env.task import Task
from k2jax.env.wiring import EnvironmentMaker
from k2jax.errors import UserError
from tests.env.hostile_git import git, make_repository
from tests.sandbox.backends import backend

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def repository(tmp_path):
    """A harmless repository in a folder of data, and its commits."""
    return tmp_path / "data/repository", make_repository(tmp_path / "data/repository")


def tasks_of(folder, *options, **changed):
    """The tasks of a file in a folder that names its repository."""
    record = dict.fromkeys(("problem_statement", "test_patch"), "x")
    record |= {"instance_id": "one", "repo": "repository", "FAIL_TO_PASS": ["a"], "PASS_TO_PASS": []} | changed
    (folder / "tasks.jsonl").write_text(json.dumps(record))
    return load_tasks("swe", (f"path={folder}/tasks.jsonl", *options))


def test_records_choose_from_the_folder_of_their_file_or_from_another_one_that_the_user_names(repository, tmp_path):
    folder, commits = repository
    (task,) = tasks_of(folder.parent, base_commit=commits[1])
    assert task.metadata["repository"] == str(folder) and task.metadata["repositories"] == str(folder.parent)
    (tmp_path / "else").mkdir()
    for path in ("../data/repository", str(folder), "/", "none"):
        with pytest.raises(UserError, match=r"swe: repo of record 1 is .* below|leads out of"):
            tasks_of(tmp_path / "else", base_commit=commits[1], repo=path)
    (task,) = tasks_of(tmp_path / "else", f"repositories={folder.parent}", base_commit=commits[1])
    assert task.metadata["repositories"] == str(folder.parent)
    with pytest.raises(UserError, match="a base commit must be a full id"):
        tasks_of(folder.parent, base_commit="main")


def test_another_program_s_task_chooses_no_folder(repository, tmp_path):
    """Whatever its metadata say; a folder that the server chose holds."""
    folder, commits = repository
    (task,) = tasks_of(folder.parent, base_commit=commits[1])
    forged = dataclasses.replace(task, metadata={**task.metadata, "repositories": "/"})

    async def reset(task, **options):
        async with serving(EnvironmentServer(EnvironmentMaker(**options))) as url:
            environment = RemoteEnvironment()
            try:
                return await environment.reset(remote(task, url), 0)
            finally:
                await environment.close()

    (tmp_path / "else").mkdir()
    for options, message in (
        ({}, "no folder of repositories is chosen"),
        ({"repositories": tmp_path / "else"}, "leads out"),
    ):
        with pytest.raises(UserError, match=message):
            asyncio.run(reset(forged, **options))
    assert asyncio.run(reset(task, repositories=str(folder.parent))).messages == task.instruction


def test_the_history_of_a_shallow_clone_can_be_read_by_an_agent(repository):
    folder, commits = repository
    git(folder.parent, "clone", "-q", "--depth=1", f"file://{folder}", "shallow")
    (task,) = tasks_of(folder.parent, base_commit=commits[1], repo="shallow")

    async def run():
        environment = RepositoryEnvironment(lambda: backend("bubblewrap"), None)
        try:
            await environment.reset(task, 0)
            step = await environment.step(called("shell", command="cd repo && git log --format=%s && git status -s"))
            return step.observation.messages[0]["content"]
        finally:
            await environment.close()

    assert asyncio.run(run()) == "commit 1"


def test_another_program_s_task_names_no_tool_that_shows_files_of_this_machine(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"address": "a", "title": "t", "text": "secret"}')
    search = f"search corpus={tmp_path}/corpus.jsonl"
    task = Task("t", "d", ({"role": "user", "content": "x"},), "", environment="tools")
    values = serve_flags()

    async def reset(maker, tools):
        environment = maker.make(dataclasses.replace(task, tools=tools))
        try:
            await environment.reset(dataclasses.replace(task, tools=tools), 0)
            return len(environment.tools)
        finally:
            await environment.close()

    for text in (
        search,
        "mcp url=http://127.0.0.1:1/mcp",
        "mcp command=python read_only=/srv",
        " search corpus=x",
        "'mcp'",
    ):
        with pytest.raises(UserError, match="is not allowed here: allow it with --tools"):
            asyncio.run(reset(EnvironmentMaker(tools=values.tools), ("calculator", text)))
    assert asyncio.run(reset(EnvironmentMaker(tools=values.tools), ("calculator",))) == 1
    values(["serve", f"--tools=calculator,{search}"])
    assert asyncio.run(reset(EnvironmentMaker(tools=values.tools), ("calculator", search))) == 3
    with pytest.raises(UserError, match="is not allowed here"):
        asyncio.run(reset(EnvironmentMaker(tools=values.tools), (f"{search} results=9",)))


def serve_flags():
    """The command's flags as they are without words."""
    values = flags.FlagValues()
    define(values)
    values(["serve"])
    return values
