"""The window at work, with episodes that only take their time: nobody waits for a slow tool."""

import asyncio
from pathlib import Path
import tempfile
import threading
import time
from types import SimpleNamespace

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents.collect.worker import Waits
from k2jax.agents.mixture import DrawnTask
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.rl.workers.group_log import GroupLog
from k2jax.rl.workers.rollouts import Rollouts
from k2jax.rl.workers.window import DrawWindow
from k2jax.rl.workers.window_metrics import batch_record
from k2jax.trajectory import Node, Reward, Trajectory


class TimedEpisodes:
    """Episodes that take ``seconds(number, sample)``; ``ended`` has (prompt, sample, time)."""

    def __init__(self, seconds, prompts=4, samples=2):
        rollout = SimpleNamespace(prompts=prompts, samples=samples)
        self.config = SimpleNamespace(rl=SimpleNamespace(rollout=rollout, max_staleness=None))
        self._seconds, self.began, self.ended, self.cancelled = seconds, [], [], 0

    async def episode(self, step, group, sample, *, greedy=False):
        self.began.append((group.number, sample))
        try:
            await asyncio.sleep(self._seconds(group.number, sample))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        trajectory = Trajectory("t", "d", (*group.key, sample), status="finished", reward=Reward(1.0))
        tokens, options = np.zeros(2, np.int32), {"versions": np.zeros(2, np.int64), "turn": 0, "finish": "stop"}
        trajectory.add(Node(-1, tokens, np.ones(2, bool), np.zeros(2, np.float32), **options))
        self.ended.append((group.number, sample, time.monotonic()))
        return trajectory, Waits(0.1, 0.2, 0.3)


class Prompts:
    def prompt(self, number):
        return DrawnTask("kind", Task(str(number), "d", (), "v"))


def rollouts(folder, episodes, *, ahead=2, iterations=4, limit=100, check=lambda: None, **options):
    rollout = episodes.config.rl.rollout
    window = DrawWindow(rollout.prompts, ahead * rollout.prompts, iterations * rollout.prompts)
    log = GroupLog(folder, rollout.samples, {})
    return Rollouts(episodes, Prompts(), window, log, lambda: limit, check, **options), window


def test_seven_of_eight_episodes_end_at_once_while_one_waits_for_its_tool(tmp_path):
    episodes = TimedEpisodes(lambda number, sample: 5.0 if (number, sample) == (0, 0) else 0.01)
    began = time.monotonic()

    async def run():
        opened, window = rollouts(tmp_path, episodes, iterations=1)
        batch = asyncio.ensure_future(opened.batch(1))
        await asyncio.sleep(0.3)
        assert not batch.done() and opened.running == 1 and window.complete == {1, 2, 3}
        batch.cancel()
        await opened.close()

    asyncio.run(run())
    assert len(episodes.ended) == 7 and max(at for *_, at in episodes.ended) - began < 0.3
    assert episodes.cancelled == 1


def test_an_iteration_takes_what_is_complete_and_says_what_it_has_overtaken(tmp_path):
    episodes = TimedEpisodes(lambda number, sample: 0.4 if number == 1 else 0.01)

    async def run():
        opened, window = rollouts(tmp_path, episodes, iterations=2)
        first = await opened.batch(1)
        assert [group.number for group in first.groups] == [0, 2, 3, 4] and first.left_behind == 1
        assert [group.key for group in first.groups] == [(1, 0), (1, 2), (1, 3), (2, 0)]
        assert first.overtaken == set() and len(first.waits) == 8
        second = await opened.batch(2)
        assert [group.number for group in second.groups] == [1, 5, 6, 7] and second.overtaken == {1}
        assert window.open == set() and window.drawn == 8
        await opened.close()

    asyncio.run(run())


def test_a_window_is_full_at_all_times_and_its_oldest_prompts_begin_first(tmp_path):
    episodes = TimedEpisodes(lambda number, sample: 0.02 + 0.02 * (sample == 0))

    async def run():
        opened, _ = rollouts(tmp_path, episodes, limit=3)
        for step in (1, 2):
            await opened.batch(step)
            assert opened.running <= 3
        await opened.close()

    asyncio.run(run())
    assert episodes.began == sorted(episodes.began)


def test_complete_groups_are_used_after_a_death_and_the_others_begin_anew(tmp_path):
    slow = TimedEpisodes(lambda number, sample: 60.0 if number in (1, 5) and sample else 0.01)

    async def killed():
        opened, window = rollouts(tmp_path, slow, iterations=2)
        await opened.batch(1)  # 0, 2, 3, 4: a checkpoint was saved before, with nothing drawn
        await asyncio.sleep(0.2)
        assert window.complete == {6, 7}
        await opened.close()

    asyncio.run(killed())
    quick = TimedEpisodes(lambda number, sample: 0.01)

    async def resumed():
        opened, _ = rollouts(tmp_path, quick, iterations=2)
        opened.restore(0, ())
        numbers = [[group.number for group in (await opened.batch(step)).groups] for step in (1, 2)]
        assert numbers == [[0, 2, 3, 4], [1, 5, 6, 7]] or numbers == [[0, 1, 2, 3], [4, 5, 6, 7]]
        await opened.close()

    asyncio.run(resumed())
    assert sorted({number for number, _ in quick.began if number < 8}) == [1, 5]


def test_an_end_waits_for_the_group_that_is_being_written_and_leaves_its_file_to_the_next_start(tmp_path, monkeypatch):
    began, append = threading.Event(), GroupLog.append

    def slow(self, trajectories):
        began.set()
        time.sleep(0.2)
        append(self, trajectories)

    async def run():
        opened, _ = rollouts(tmp_path, TimedEpisodes(lambda *_: 0.01, prompts=1), iterations=1)
        batch = asyncio.ensure_future(opened.batch(1))
        await asyncio.to_thread(began.wait)
        batch.cancel()
        await opened.close()
        [group] = GroupLog(tmp_path, 2, {}).read().values()
        append(GroupLog(tmp_path, 2, {}), group)

    monkeypatch.setattr(GroupLog, "append", slow)
    asyncio.run(run())


def test_open_prompts_of_a_checkpoint_begin_again_and_those_it_has_counted_do_not(tmp_path):
    episodes = TimedEpisodes(lambda number, sample: 0.01)

    async def run():
        opened, _ = rollouts(tmp_path, episodes)
        opened.restore(6, [1, 5])
        batch = await opened.batch(2)
        assert [group.number for group in batch.groups][:2] == [1, 5]
        await opened.close()

    asyncio.run(run())
    assert not {0, 2, 3, 4} & {number for number, _ in episodes.began}


def test_a_mistake_in_a_task_ends_the_run_and_the_engine_s_failure_too(tmp_path):
    class Wrong(TimedEpisodes):
        async def episode(self, step, group, sample, *, greedy=False):
            if group.number == 3:
                raise UserError("the task has no tool")
            return await super().episode(step, group, sample)

    async def fails(episodes, check, error, words):
        opened, _ = rollouts(tmp_path, episodes, check=check)
        with pytest.raises(error, match=words):
            await opened.batch(1)
        await opened.close()

    def broken():
        raise RuntimeError("the engine has failed")

    asyncio.run(fails(Wrong(lambda *_: 0.01), lambda: None, UserError, "no tool"))
    asyncio.run(fails(TimedEpisodes(lambda *_: 60.0), broken, RuntimeError, "engine has failed"))


def test_nothing_begins_while_an_evaluation_has_the_engine(tmp_path):
    episodes = TimedEpisodes(lambda number, sample: 0.01)

    async def run():
        opened, _ = rollouts(tmp_path, episodes, limit=2)
        await opened.batch(1)
        opened.begins = False
        await asyncio.sleep(0.1)
        began = len(episodes.began)
        await asyncio.sleep(0.1)
        assert len(episodes.began) == began and opened.running == 0
        opened.begins = True
        await opened.batch(2)
        await opened.close()

    asyncio.run(run())


class SteeredEpisodes(TimedEpisodes):
    """Episodes that end when they are told to; each samples with the version that is trained then and at its end."""

    def __init__(self, prompts, samples, most_stale):
        super().__init__(None, prompts, samples)
        self.config.rl.max_staleness = most_stale
        self.version, self.waiting = 0, {}

    async def episode(self, step, group, sample, *, greedy=False):
        begun, ended = self.version, asyncio.get_running_loop().create_future()
        self.waiting[group.number, sample] = ended
        await ended
        del self.waiting[group.number, sample]
        trajectory = Trajectory("t", "d", (*group.key, sample), status="finished", reward=Reward(1.0))
        versions = np.array([begun, self.version, 0], np.int64)  # the last token is none of the model's
        options = {"versions": versions, "turn": 0, "finish": "stop"}
        trajectory.add(Node(-1, np.zeros(3, np.int32), np.array([1, 1, 0], bool), np.zeros(3, np.float32), **options))
        return trajectory, Waits(0.1, 0.2, 0.3)


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def at_once(function, *arguments):
    """The log's thread, which no test waits for."""
    function(*arguments)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(0, 1))
def test_no_group_is_trained_on_whose_oldest_token_is_too_old_and_every_prompt_is(data, prompts, samples, ahead, more):
    most_stale, iterations = ahead - 1 + more, 6
    episodes = SteeredEpisodes(prompts, samples, most_stale)

    async def run(folder):
        opened, _ = rollouts(Path(folder), episodes, ahead=ahead, iterations=iterations)
        opened._on_writer = at_once
        trained, stale = [], 0
        for step in range(1, iterations + 1):
            batch = asyncio.ensure_future(opened.batch(step))
            await settle()
            while not batch.done():
                ready = sorted(episodes.waiting)
                assert ready, "nothing is under way, and the iteration waits"
                episodes.waiting[data.draw(st.sampled_from(ready))].set_result(None)
                await settle()
            for group in batch.result().groups:
                oldest = min(int(v) for each in group.trajectories for v in each.nodes[0].versions[:2])
                assert oldest >= episodes.version - most_stale
                trained.append(group.number)
            stale += batch.result().stale
            episodes.version += 1  # while episodes that are under way keep their places
        await opened.close()
        assert len(set(trained)) == len(trained) == prompts * iterations
        return stale

    with tempfile.TemporaryDirectory() as folder:
        event("stale" if asyncio.run(run(folder)) else "none stale")


def test_a_group_that_was_overtaken_for_too_long_is_sampled_again_and_counted(tmp_path):
    episodes = SteeredEpisodes(1, 1, 2)

    async def run():
        opened, _ = rollouts(tmp_path, episodes, ahead=3, iterations=5)
        opened._on_writer = at_once
        seen = []
        # The prompt 2 begins under the version 0, and ends when the version 3 is trained; the second try is trained on.
        for step, ends in enumerate(([0], [1], [3], [2, 4], [2]), 1):
            batch = asyncio.ensure_future(opened.batch(step))
            for number in ends:
                await settle()
                episodes.waiting[number, 0].set_result(None)
            batch = await batch
            seen += [([group.number for group in batch.groups], batch.stale, batch_record(batch, 0)["window/stale"])]
            episodes.version += 1
        await opened.close()
        log = GroupLog(tmp_path, 1, {})
        [logged] = log.read()[3, 0]
        log.close()
        return seen, logged.nodes[0].versions[0]

    seen, version = asyncio.run(run())
    assert seen == [([0], 0, 0.0), ([1], 0, 0.0), ([3], 0, 0.0), ([4], 1, 0.5), ([2], 0, 0.0)] and version == 3


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 3), st.integers(0, 3), st.data())
def test_nothing_begins_that_would_be_too_old_and_all_else_does(prompts, most_stale, data):
    episodes, sampled_by = SteeredEpisodes(prompts, 1, most_stale), [0]

    async def run(folder):
        options = {"ahead": most_stale + 1, "iterations": 8, "sampled_by": lambda: sampled_by[0]}
        opened, window = rollouts(Path(folder), episodes, **options)
        opened._on_writer = at_once
        opened.go_on()
        assert not window.drawn  # a checkpoint may say later where the window is
        for step in range(1, 9):
            batch = asyncio.ensure_future(opened.batch(step))
            episodes.version = sampled_by[0] = step - 1  # the engines take the weights of the last update
            opened.go_on()
            await settle()
            for number in sorted(episodes.waiting)[: data.draw(st.integers(prompts, prompts * (most_stale + 1)))]:
                episodes.waiting[number].set_result(None)
            await settle()
            assert batch.done() and batch.result().stale == 0
            # The trainer updates the version step - 1, which the engines still have; the next one updates step.
            assert len(window.open) == min(prompts * most_stale, window._total - step * prompts)
        await opened.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(folder))
