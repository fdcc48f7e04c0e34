"""The benchmark of sandboxes, small: what it counts is what it says."""

import asyncio
import itertools

import pytest

from k2jax.bench import sandbox as bench
from k2jax.bench import sandbox_episodes
from k2jax.errors import UserError


@pytest.fixture
def small(monkeypatch):
    programs = dict(itertools.islice(bench.human_eval_programs().items(), 2))
    for name, value in {"STARTS": 2, "LIVE": 3, "CALLS": 20, "human_eval_programs": lambda: programs}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(sandbox_episodes, "EPISODES", 4)
    return programs


def test_its_rows_are_rates_of_starts_and_calls_and_the_verdicts_of_humaneval(small):
    starts, calls, graded, episodes = bench.measure(1)
    assert starts.ratio == pytest.approx(starts.ours / starts.baseline) and 0.1 < starts.ratio < 10
    assert "3 live sandboxes" in calls.name and calls.baseline == starts.ours and calls.ours > calls.baseline
    assert graded.name == "HumanEval: 2 of 2 canonical and 0 of 2 empty solutions pass"
    assert episodes.unit == "1/min" and episodes.ratio == pytest.approx(episodes.ours / episodes.baseline)
    assert graded.unit == "s" and graded.ratio == pytest.approx(graded.baseline / graded.ours)


def test_another_verdict_than_a_plain_subprocess_gives_ends_the_benchmark(small, monkeypatch):
    (key, (canonical, _)), *_ = small.items()
    small[key] = (canonical + "\nimport os; assert os.getuid() != 65534", "")
    with pytest.raises(UserError, match="differently"):
        asyncio.run(bench._human_eval(*made_for_humaneval()))


def made_for_humaneval():
    python = bench.host_python()
    return bench.BubblewrapBackend(), bench.SandboxSpec(read_only=python.read_only), python.executable, "here"


def test_all_of_humaneval_is_there():
    programs = bench.human_eval_programs()
    assert len(programs) == 164 and all(len(set(pair)) == 2 for pair in programs.values())


def test_no_more_coroutines_run_at_once_than_may():
    running = most = 0

    async def work():
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return running

    assert len(asyncio.run(bench._at_once(3, [work] * 10))) == 10 and most == 3
