"""The scheduling process with real worker processes: killed ones lose nothing, and nothing is doubled."""

import asyncio
import os
import signal

import pytest

from k2jax.agents.collect import scheduling
from k2jax.agents.collect.admission import Admission
from k2jax.agents.collect.journal import read_journal, stored_trajectory
from k2jax.agents.collect.launchers import LocalLauncher
from k2jax.agents.collect.manager import RolloutManager
from k2jax.agents.collect.queue_file import queued_samples, write_tasks
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.trajectory.encoding import encode
from tests.agents.collect.runners import FOLDER, expected, task


def manager(folder, *, workers=2, capacity=16, seconds=0.01, admission=None, launcher=None) -> RolloutManager:
    options = {"runner": "tests.agents.collect.runners:ScriptedRunner", "options": {"seconds": seconds}}
    return RolloutManager(folder, **options, workers=workers, capacity=capacity, admission=admission, launcher=launcher)


def starting(number: int, parts) -> Task:
    """A task that starts others, whose domains are ``parts``; those of started ones end below the second level."""
    return Task(str(number), "starts", (), "", tools=parts)


async def collected(folder, samples, during=lambda opened, emissions: None, **options):
    emissions = []
    async with manager(folder, **options) as opened:
        async for emission in opened.collect(queued_samples(folder, samples)):
            emissions.append(emission)
            during(opened, emissions)
    return emissions


def write(folder, domains):
    write_tasks(folder, [("kind", task(str(number), domain)) for number, domain in enumerate(domains)])


def test_workers_that_are_killed_lose_nothing_and_a_collection_that_is_stopped_goes_on(tmp_path):
    write(tmp_path, ["good"] * 60)
    keys = {(0, prompt, sample) for prompt in range(60) for sample in range(2)}
    stopped = []

    async def until_stopped():
        async with manager(tmp_path) as opened:
            async for emission in opened.collect(queued_samples(tmp_path, 2)):
                stopped.append(emission)
                if len(stopped) == 20:
                    os.kill(opened.worker_processes()[0], signal.SIGKILL)
                if len(stopped) == 50:
                    assert 0 < opened.max_running <= 32
                    break

    asyncio.run(until_stopped())
    with open(tmp_path / "journal", "ab") as file:  # a process that was killed while it wrote
        file.write(b"half a record")
    first = {emission.key for emission in read_journal(tmp_path)}
    assert {emission.key for emission in stopped} <= first
    rest = asyncio.run(collected(tmp_path, 2))
    assert not {emission.key for emission in rest} & first
    journal = read_journal(tmp_path)
    assert len(journal) == len(keys) and {emission.key for emission in journal} == keys
    for emission in journal:
        whole = expected(emission.key, str(emission.key[1]))
        assert encode(stored_trajectory(tmp_path, emission.place)) == encode(whole)
        assert (emission.reward, emission.tokens, emission.turns) == (whole.reward.value, emission.key[1] + 1, 1)
    assert asyncio.run(collected(tmp_path, 2)) == []


class RefusingLauncher(LocalLauncher):
    """Starts two workers, and none in the place of a lost one before it was asked three times."""

    def __init__(self):
        self.asked = 0

    async def start(self, folder, shard):
        self.asked += 1
        if 2 < self.asked < 5:
            raise UserError("is a processor free?")
        return await super().start(folder, shard)


@pytest.mark.parametrize("killed", [1, 2])
def test_where_no_worker_takes_the_place_of_a_lost_one_the_others_go_on(tmp_path, monkeypatch, capsys, killed):
    monkeypatch.setattr(scheduling, "HIRING_PAUSE", 0.05)
    write(tmp_path, ["good"] * 60)
    launcher = RefusingLauncher()

    def kill(opened, emissions):
        if len(emissions) == 5:
            for pid in opened.worker_processes()[:killed]:
                os.kill(pid, signal.SIGKILL)

    options = {"during": kill, "seconds": 0.1, "capacity": 2, "launcher": launcher}
    if killed == 2:
        with pytest.raises(UserError, match="is a processor free"):
            asyncio.run(collected(tmp_path, 1, **options))
        return
    assert len(asyncio.run(collected(tmp_path, 1, **options))) == 60
    assert launcher.asked == 5 and capsys.readouterr().err.count("no worker takes the place of a lost one") == 2


def test_failures_are_tried_again_or_masked_pauses_go_on_and_cancelled_episodes_end(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    write(tmp_path, ["broken", "broken once", "pauses", "endless", "good"])

    def cancel(opened, emissions):
        if len(emissions) == 4:
            opened.cancel((0, 3, 0))

    emissions = asyncio.run(collected(tmp_path, 1, during=cancel, workers=1, capacity=4))
    assert [emission.key for emission in emissions][-1] == (0, 3, 0)
    ends = {emission.key[1]: (emission.end, emission.status) for emission in emissions}
    done = ("done", "finished")
    assert ends == {0: ("masked", ""), 1: done, 2: done, 3: ("cancelled", ""), 4: done}


def test_sub_episodes_run_on_every_worker_and_only_the_tasks_of_the_collection_are_emitted(tmp_path):
    """More tasks wait for others than workers hold; one worker is killed, and what it had is done again."""
    parts = ("good", "starts", "good")  # the one in the middle starts three more, whose own middle one ends there
    write_tasks(tmp_path, [("kind", starting(number, parts)) for number in range(6)])

    def kill(opened, emissions):
        if len(emissions) == 2:
            os.kill(opened.worker_processes()[0], signal.SIGKILL)

    emissions = asyncio.run(collected(tmp_path, 2, during=kill, capacity=2))
    assert sorted(emission.key for emission in emissions) == [(0, p, s) for p in range(6) for s in range(2)]
    for emission in emissions:
        assert emission.end == "done"
        [node] = stored_trajectory(tmp_path, emission.place).nodes
        assert node.tokens.tolist() == [emission.key[1] + 1, 3, emission.key[1] + 1]
    assert len(read_journal(tmp_path)) == 12


def test_admission_holds_tasks_back_but_never_the_ones_that_a_running_one_waits_for(tmp_path):
    write_tasks(tmp_path, [("kind", starting(number, ("good", "good"))) for number in range(3)])

    async def admitted():
        async with manager(tmp_path, workers=1, admission=Admission(1)) as opened:
            return [emission async for emission in opened.collect(queued_samples(tmp_path, 1))], opened.max_running

    emissions, most = asyncio.run(asyncio.wait_for(admitted(), 30))
    assert [emission.key[1] for emission in emissions] == [0, 1, 2] and most == 3


def test_sub_episodes_end_with_the_one_that_started_them_and_their_failures_are_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    write_tasks(tmp_path, [("kind", starting(0, ("endless", "good"))), ("kind", starting(1, ("broken",)))])

    def cancel(opened, emissions):
        opened.cancel((0, 0, 0))

    emissions = asyncio.run(collected(tmp_path, 1, during=cancel, workers=1))
    ends = {emission.key[1]: emission.end for emission in emissions}
    assert ends == {0: "cancelled", 1: "masked"}
    assert (tmp_path / "0-0-0-0-stopped").exists()


def test_a_mistake_of_the_user_ends_the_collection_in_one_line(tmp_path):
    write(tmp_path, ["endless", "user mistake"])
    with pytest.raises(UserError, match=r"^a mistake of the user$"):
        asyncio.run(collected(tmp_path, 1, workers=1))


def test_two_processes_do_not_collect_in_one_folder(tmp_path):
    async def both():
        async with manager(tmp_path), manager(tmp_path):
            pass

    with pytest.raises(UserError, match="stop it first"):
        asyncio.run(both())
