"""The training step: accumulation, the guard against non-finite values, balancing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import pack_row, stack_rows
from k2jax.config import replace_keys
from k2jax.losses import NLL
from k2jax.model.decoder import ModelStats
from k2jax.parallel.accumulate import accumulate
from k2jax.parallel.gradients import make_objective
from k2jax.parallel.objective import LossShares
from k2jax.train.record import UNBALANCED_STEPS, Recorder, max_violation
from k2jax.train.step import StepMetrics, _finite, make_train_step
from tests.train.programs import once_per_config, shared_program
from tests.train.tiny import tiny, write_corpus


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    # One compiled step for all: a threshold below every head's logits, and a router's bias that moves fast.
    moving = {"optimizer.qk_clip_tau": 1e-3, "router.bias_rate": 0.02, "router.bias_rate_final": 0.02}
    return tiny(folder, **moving, **{"train.steps": 60, "router.balance_loss": 0.01})


@pytest.fixture(scope="module")
def batch(config):
    rng = np.random.default_rng(0)
    lengths = ([20, 9], [32], [5], [30])
    rows = [pack_row([rng.integers(0, config.model.vocab, n) for n in row], 32) for row in lengths]
    return stack_rows(rows)


def make(config):
    program = shared_program(config, jax.devices()[:1])
    return program.init(), lambda state, batch: step_of(config)(state, program.batch_sharding().put(batch))


@once_per_config
def step_of(config):
    """The training step, not donated: states are kept."""
    program = shared_program(config, jax.devices()[:1])
    return jax.jit(make_train_step(config, program.optimizer, program.layout, program.loss))


@once_per_config
def gradients(config):
    def of(params, batch):
        rows = config.train.micro_batches, -1
        split = jax.tree.map(lambda a: jnp.asarray(a).reshape(*rows, *a.shape[1:]), batch)
        return accumulate(params, split, make_objective(config, NLL(), NLL().denominators(split.targets)), config)

    return jax.jit(of)


def with_parts(config, parts):
    return replace_keys(config, {"train.micro_batches": parts})


def test_accumulated_gradients_equal_those_of_the_whole_batch(config, batch):
    params = make(config)[0].params
    whole = gradients(with_parts(config, 1))(params, batch)
    parts = gradients(with_parts(config, 4))(params, batch)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1e-3, np.abs(a).max()))


def test_loss_is_the_mean_over_targets_of_unequal_rows(config, batch):
    shares, _, _ = gradients(with_parts(config, 1))(make(config)[0].params, batch)
    assert float(batch.targets["weights"].sum()) == 19 + 8 + 31 + 4 + 29
    assert abs(float(shares.total) - np.log(config.model.vocab)) < 0.1  # near-uniform at initialisation


@pytest.mark.parametrize("poison", ["embed", "logits"])
def test_a_non_finite_step_changes_nothing_for_good(config, batch, poison):
    state, step = make(config)
    good, _ = step(state, batch)
    if poison == "embed":
        bad_params = {**good.params, "embed": good.params["embed"].at[:].set(jnp.nan)}
    else:  # finite weights whose logits overflow
        attention = {k: v * 1e25 if k in ("q_b", "kv_b") else v for k, v in good.params["moe"]["attention"].items()}
        bad_params = {**good.params, "moe": {**good.params["moe"], "attention": attention}}
    bad = good.replace(params=bad_params)
    after, metrics = step(bad, batch)
    assert not metrics.healthy and int(after.step) == 1
    for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(bad.params), strict=True):
        np.testing.assert_array_equal(a, b)
    recovered, metrics = step(after.replace(params=good.params), batch)
    assert not metrics.healthy and int(recovered.step) == 1  # stays stopped


def test_the_update_s_norm_is_the_distance_that_all_weights_move(config, batch):
    """Also through QK-Clip and the routers' biases."""
    state, step = make(config)
    after, metrics = step(state, batch)
    moved = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), after.params, state.params)
    assert metrics.stats.max_logit["text"].min() > 1e-3 and np.abs(moved["moe"]["router_bias"]).max() > 0
    expected = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(moved)))
    np.testing.assert_allclose(metrics.update_norm, expected, rtol=1e-5)


def test_the_bias_moves_and_load_evens_out(config, batch):
    state, step = make(config)
    skew = jnp.array([0.5, 0.0, 0.0, -0.5])[None]  # start from a router that starves an expert
    state = state.replace(params={**state.params, "moe": {**state.params["moe"], "router_bias": skew}})
    violations = []
    for _ in range(60):
        state, metrics = step(state, batch)
        violations.append(float(max_violation(np.asarray(metrics.stats.expert_tokens)).max()))
    bias = np.asarray(state.params["moe"]["router_bias"])
    assert violations[0] > 0.9 and np.mean(violations[-10:]) < 0.4
    assert bias[0, 0] < 0.5 and bias[0, 3] > -0.5


def test_micro_batch_maxima_are_not_summed(config, batch):
    params = make(config)[0].params
    _, stats, _ = gradients(with_parts(config, 4))(params, batch)
    rows = [jax.tree.map(lambda a, i=i: a[i : i + 1], batch) for i in range(4)]
    alone = gradients(with_parts(config, 1))
    each = [np.asarray(alone(params, row)[1].max_logit["text"]) for row in rows]
    np.testing.assert_allclose(stats.max_logit["text"], np.max(each, axis=0), rtol=1e-5)


@pytest.mark.parametrize(("logit", "fine"), [(3.0, True), (-np.inf, True), (np.inf, False), (np.nan, False)])
def test_an_infinite_logit_is_not_healthy_but_an_unseen_head_is(logit, fine):
    assert bool(_finite(jnp.float32(1), jnp.float32(1), {"text": jnp.array([[logit, 1.0]])})) is fine


def test_spikes_are_counted_and_survive_a_restart(config):
    recorder = Recorder(config, {})
    losses = [5.0, 4.9, 4.8, 7.0, 4.8, 4.7]
    assert [recorder.is_spike(loss) for loss in losses] == [False, False, False, True, False, False]
    again = Recorder(config, recorder.meta())
    assert again.spikes == 1 and again.is_spike(9.0)


@pytest.mark.parametrize(("term", "counted"), [("nll", 1), ("policy", None)])
def test_only_a_likelihood_has_spikes(config, term, counted):
    recorder = Recorder(config, {})
    for loss in (1.0, 9.0):
        shares = LossShares({term: loss}, {}, {})
        stats = ModelStats(*[np.zeros((1, 0))] * len(ModelStats._fields))._replace(max_logit={"text": np.ones((1, 1))})
        metrics = StepMetrics(loss, shares, 8, 1.0, update_norm=1.0, stats=stats, balance_loss=0.0, healthy=True)
        record = recorder.values(metrics, 1e-3, 1.0)
    assert record.get("spikes") == counted


def test_a_resumed_run_keeps_its_measure_of_the_device(config):
    meta = Recorder(config, {}).meta()
    assert Recorder(config, meta | {"peak_flops": 1.0}).peak_flops == 1.0
    assert Recorder(config, meta | {"peak_flops": 1.0, "device": "8 x TPU v5p"}).peak_flops > 1e6


@pytest.mark.parametrize(("busiest", "told"), [(1.0, 1), (0.7, 0)])
def test_experts_that_stay_out_of_balance_are_told_once(config, batch, busiest, told):
    """``busiest``: of the tokens of a layer, those of the two experts that each token goes to."""
    state, step = make(config)
    metrics = jax.device_get(step(state, batch)[1])
    experts = config.model.moe.experts
    counts = np.full((1, experts), (1 - busiest) / (experts - 2))
    counts[:, :2] = busiest / 2
    metrics = metrics._replace(stats=metrics.stats._replace(expert_tokens=1000 * counts))
    recorder, said = Recorder(config, {}), []
    for _ in range(2 * UNBALANCED_STEPS):
        recorder.values(metrics, 1e-3, 1.0)
        said += [warning for warning in [recorder.balance_warning()] if warning]
    assert len(said) == told
    assert all("raise config.router.bias_rate, now 0.02" in text for text in said)
