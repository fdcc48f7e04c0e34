"""The gateway's benchmark asks what it says: turns of rollouts whose histories are one path."""

import asyncio
import itertools

import pytest

from k2jax.bench.gateway import TURNS, ask_in_turns, gateway_process


@pytest.mark.slow
def test_rollouts_ask_in_turns_whole_and_streamed():
    with gateway_process() as url:
        for stream in (False, True):
            seconds, lengths = asyncio.run(ask_in_turns(url, stream, rollouts=2))
            assert len(lengths) == TURNS and lengths == sorted(set(lengths)) and 0 < seconds < 10
            grown = {after - before for before, after in itertools.pairwise(lengths)}
            assert len(grown) == 1  # by the same answer and output
