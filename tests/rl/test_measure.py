"""How an iteration used the engine, and what share of its tokens older weights chose, counted by hand."""

import numpy as np
import pytest

from k2jax.agents.mixture import DrawnTask
from k2jax.agents.verifier import FAILED
from k2jax.inference.stats import EngineStats
from k2jax.rl.groups import PromptGroup, reward_terms
from k2jax.rl.iteration_metrics import engine_record, iteration_record, staleness_record
from k2jax.rl.schedules import reward_weights
from k2jax.trajectory import Node, Reward, Trajectory
from tests.rl.tiny import tiny

STATES = dict.fromkeys(("running", "waiting", "paused", "pages", "pages_in_use", "pages_cached"), 0)
OTHERS = dict.fromkeys(("tokens_generated", "prompt_tokens", "prompt_tokens_cached", "steps"), 0)


def stats(**counted):
    return EngineStats(slots=8, **STATES, **OTHERS, **counted)


def test_used_slots_are_of_all_slots_in_every_decode_step_of_the_iteration():
    before = stats(decode_steps=10, decode_tokens=80, prefill_tokens=7)
    record = engine_record(before, stats(decode_steps=30, decode_tokens=120, prefill_tokens=57))
    assert record == {"decode_steps": 20, "prefill_tokens": 50, "slots_used": 40 / (20 * 8)}
    assert "slots_used" not in engine_record(before, before)


def trajectory(*turns):
    """Turns of sampled tokens by their versions, each after an observation."""
    made = Trajectory("t", "d", (1, 0, 0))
    for turn, versions in enumerate(turns):
        made.add(Node.observed(len(made.nodes) - 1, [5, 6, 7]))
        count = len(versions)
        ids, mask, logprobs = np.arange(count, dtype=np.int32), np.ones(count, bool), np.zeros(count, np.float32)
        made.add(Node(len(made.nodes) - 1, ids, mask, logprobs, versions=np.array(versions, np.int64), turn=turn))
    return made


def test_answers_that_failed_their_verifier_are_counted_beside_those_that_are_masked():
    config = tiny()
    verdicts = (Reward(1.0), Reward(0.0, info={FAILED: "no verdict in 10 s"}), Reward(0.0), None)
    answers = [
        Trajectory("t", "d", (0, 0, n), status="finished" if reward else "masked", reward=reward)
        for n, reward in enumerate(verdicts)
    ]
    group = PromptGroup(0, (0, 0), DrawnTask("low", None), answers)
    group.terms = reward_terms(group, config.rl.tasks["low"], reward_weights(config.rl.tasks["low"], 0, 1))
    record = iteration_record(config, [group], 1, 1.0)
    assert (record["failed_verdicts"], record["masked_samples"]) == (1, 1)


@pytest.mark.parametrize(("version", "share", "age"), [(2, 3 / 8, 4 / 8), (3, 1.0, 12 / 8), (5, 1.0, 28 / 8)])
def test_stale_tokens_are_sampled_ones_of_older_weights(version, share, age):
    groups = [PromptGroup(0, (1, 0), None, [trajectory([0, 1], [2]), trajectory([1, 2, 2, 2, 2])])]
    assert staleness_record(groups, version) == {"stale_tokens": share, "staleness": age}
    assert staleness_record([], version) == {"stale_tokens": 0.0, "staleness": 0.0}
