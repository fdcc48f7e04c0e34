"""Which repositories a record or another program's task may name, and what an agent sees of them."""

import asyncio
import dataclasses
import json
import shutil
import time

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import EnvironmentMaker, Services
from k2jax.agents.environments import repository
from k2jax.agents.environments.repository import RepositoryEnvironment
from k2jax.agents.scaffolds.scripted import called
from k2jax.agents.task import Task
from k2jax.errors import UserError
from tests.agents.hostile_git import git, make_repository
from tests.agents.sandbox.backends import backend

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(name="repository")
def _repository(tmp_path):
    """A harmless repository in a folder of data, and its commits."""
    return tmp_path / "data/repository", make_repository(tmp_path / "data/repository")


def tasks_of(folder, *options, **changed):
    """The tasks of a file in a folder that names its repository."""
    record = dict.fromkeys(("problem_statement", "test_patch"), "x")
    record |= {"instance_id": "one", "repo": "repository", "FAIL_TO_PASS": ["a.py::b"], "PASS_TO_PASS": []} | changed
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
        environment = EnvironmentMaker(**options).make(Task.from_json(task.to_json()))
        try:
            return await environment.reset(task, 0)
        finally:
            await environment.close()

    (tmp_path / "else").mkdir()
    elsewhere = {"repositories": str(tmp_path / "else")}
    for options, message in (({}, "no folder of repositories is chosen"), (elsewhere, "leads out")):
        with pytest.raises(UserError, match=message):
            asyncio.run(reset(forged, **options))
    assert asyncio.run(reset(task, repositories=str(folder.parent))).messages == task.instruction


def test_the_history_of_a_shallow_clone_can_be_read_by_an_agent(repository):
    folder, commits = repository
    git(folder.parent, "clone", "-q", "--depth=1", f"file://{folder}", "shallow")
    (task,) = tasks_of(folder.parent, base_commit=commits[1], repo="shallow")

    async def run():
        environment = RepositoryEnvironment(Services(lambda: backend("bubblewrap"), None))
        try:
            await environment.reset(task, 0)
            step = await environment.step(called("shell", command="cd repo && git log --format=%s && git status -s"))
            return step.observation.messages[0]["content"]
        finally:
            await environment.close()

    assert asyncio.run(run()) == "commit 1"


async def test_the_event_loop_goes_on_while_pytest_is_packed_which_happens_once(monkeypatch):
    files, calls = repository.metadata.files, []

    def slow(name):
        calls.append(name)
        time.sleep(0.1)
        return files(name)

    repository._packed_pytest.cache_clear()
    monkeypatch.setattr(repository.metadata, "files", slow)
    packing = asyncio.gather(*(asyncio.to_thread(repository.packed_pytest) for _ in range(2)))
    turns = 0
    while not packing.done():
        await asyncio.sleep(0.01)
        turns += 1
    first, second = await packing
    assert turns > 10 and first is second and len(calls) == len(repository._PYTEST)
