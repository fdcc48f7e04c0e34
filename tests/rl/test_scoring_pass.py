"""The pass that scores rows says what the model's whole logits say, on every mesh."""

import jax
import numpy as np
import pytest

from k2jax.config import PackingConfig
from k2jax.model import K2
from k2jax.rl.methods.scoring_pass import ScoringPass
from k2jax.rl.packing.rows import pack
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.train.program import Program
from tests.parallel.tiny import config_of
from tests.rl.trees import forked, several_turns, single_turn


def packed_rows(length=32):
    """Rows of which the last batch is not full, at several temperatures, one of them with a forked trajectory."""
    rng = np.random.default_rng(0)
    trajectories = [single_turn(rng, 7, 9, temperature=(0.5, 1.0, 1.7)[n % 3]) for n in range(30)]
    trajectories += [several_turns(rng), forked(rng)]
    return pack([TrainingSample(trajectory, 1.0) for trajectory in trajectories], length, PackingConfig()).rows


def expected(model, params, rows):
    """Float64 log-softmax over the whole vocabulary of a model, by token; each path is a document of its own."""
    apply, table = jax.jit(model.apply), np.zeros((len(rows), len(rows[0].tokens)))
    for number, row in enumerate(rows):
        starts = np.flatnonzero((row.parent < 0) & (row.exit > np.arange(len(row.exit))))
        for start in starts:
            document = slice(start, row.exit[start])
            tokens = np.zeros((1, len(row.tokens)), np.int32)  # one length compiles once; what follows is not seen
            tokens[0, : row.exit[start] - start] = row.tokens[document]
            logits = np.asarray(apply({"params": params}, tokens).logits[0], np.float64)
            for index in range(start + 1, row.exit[start]):
                temperature = row.targets.temperature[index] or 1.0
                scaled = logits[row.parent[index] - start] / temperature
                table[number, index] = scaled[row.tokens[index]] - np.log(np.exp(scaled - scaled.max()).sum())
                table[number, index] -= scaled.max()
    return table


def check(overrides):
    config = config_of(overrides)
    program = Program(config)
    state, rows = program.init(), packed_rows()
    assert len(rows) > 14 and len(rows) % 14
    logical = jax.tree.map(np.array, program.checkpoint_layout().logical_params(state.params))
    found = ScoringPass(config, program.mesh).score_rows(state.params, rows)
    wanted = expected(K2(config.model), logical, rows)
    assert found.dtype == np.float32 and (found[wanted == 0] == 0).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)


def test_scores_are_the_log_softmax_of_the_logits_at_the_temperature_of_each_token():
    check({})


def test_one_program_scores_any_number_of_rows():
    config = config_of({})
    program = Program(config)
    scoring, rows, params = ScoringPass(config, program.mesh), packed_rows(), program.init().params
    for count in (1, 5, 14, 15):
        assert scoring.score_rows(params, rows[:count]).shape[0] == count
    assert (scoring._score._cache_size(), scoring._to_compute._cache_size()) == (1, 1)


@pytest.mark.slow
@pytest.mark.devices(8)
@pytest.mark.parametrize(
    "mesh",
    [
        {"parallel.data": 2, "parallel.expert": 2, "parallel.stage": 2},
        {"parallel.expert": 2, "parallel.context": 2, "parallel.tensor": 2},
    ],
)
def test_every_mesh_fills_in_the_same_table(mesh):
    check(mesh)
