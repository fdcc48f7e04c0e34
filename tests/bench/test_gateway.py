"""The gateway's benchmark asks what it says: turns of rollouts whose histories are one path; stages are parts."""

import asyncio
import itertools

import pytest

from k2jax.bench.gateway import TURNS, ask_at_length, ask_in_turns, gateway_process
from k2jax.bench.gateway_process import STAGES


@pytest.mark.slow
def test_rollouts_ask_in_turns_whole_and_streamed():
    with gateway_process() as url:
        for stream in (False, True):
            seconds, lengths = asyncio.run(ask_in_turns(url, stream, rollouts=2))
            assert len(lengths) == TURNS and lengths == sorted(set(lengths)) and 0 < seconds < 10
            grown = {after - before for before, after in itertools.pairwise(lengths)}
            assert len(grown) == 1  # by the same answer and output
        spent, lengths = asyncio.run(ask_at_length(url, before=3, measured=2))
        assert len(spent) == len(lengths) == 2 and 1000 < lengths[1] - lengths[0] < 2000
        for seconds in spent:
            assert set(STAGES) < set(seconds)
            assert min(seconds.values()) > 0 and sum(seconds[stage] for stage in STAGES) < seconds["total"]
