"""One step of a config on emulated devices: its loss, gradients, update and statistics by name, for the tests."""

import functools
import math

import jax
import numpy as np

from k2jax.batch import PackedBatch, pack_row, stack_rows
from k2jax.parallel.gradients import make_loss_and_gradients
from k2jax.train.program import Program
from k2jax.train.state import TrainState
from tests.parallel.tiny import config_of

AXES = ("data", "stage", "expert", "context", "tensor")


def one_step(
    overrides,
    *,
    step=False,
    gradients=False,
    counts=False,
    validate=False,
    crowd=False,
    replay=False,
    loss=None,
    init=False,
):
    """What a config computes of one batch, by name.

    Args:
        overrides: keys of the config.
        step: take the whole step.
        gradients: compute the loss, its statistics and its gradients.
        counts: compute the loss and its statistics.
        validate: compute the held-out loss.
        crowd: every token goes to the first experts; all weights but the routers' biases are 0.
        replay: rows hold experts for some of their tokens.
        loss: (makes the loss, puts its targets into a row with a generator); by default that of pretraining.
        init: the state is made on the mesh, not put there from one device, whose program compiles faster.
    """
    config = config_of(overrides)
    devices = jax.devices()[: math.prod(getattr(config.parallel, axis) for axis in AXES)]
    make_loss, with_targets = loss or (lambda: None, None)
    program = Program(config, devices, make_loss())
    placement, rows, padding = program.batch_sharding(), rows_of(config), pack_row([], config.data.sequence_length)
    if with_targets:
        rng = np.random.default_rng(1)
        *rows, padding = [with_targets(row, rng) for row in (*rows, padding)]
    if replay:
        *rows, padding = [row.replace(experts=_experts(config, row)) for row in (*rows, padding)]
    batch = placement.put(stack_rows([rows[row] if row < len(rows) else padding for row in placement.rows]))
    state = _crowded(program) if crowd else program.init() if init else _placed(program, overrides)
    found = {"real": (batch.exit > np.arange(batch.exit.shape[-1])).sum(-1)}
    if validate:
        sums, denominators = program.evaluate(state.params, batch)
        found |= {**_flat(sums._asdict(), "sums"), **_flat(denominators, "denominators")}
    if gradients or counts:
        found |= _gradients(program, state.params, batch, gradients)
    if step:
        found |= _step(program, state, batch)
    return {key: np.asarray(value) for key, value in found.items()}


def _placed(program, overrides):
    params, opt_state = _start(tuple(item for item in overrides.items() if item[0].startswith("model.")))
    params, opt_state = program.checkpoint_layout().load(params, opt_state)
    return jax.device_put(TrainState(np.int32(0), params, opt_state, np.True_), program.shardings)


@functools.cache
def _start(model):
    """Parameters and optimizer state of one device, in their logical form."""
    program = Program(config_of(dict(model)), jax.devices()[:1])
    state = program.init()
    return jax.device_get(program.checkpoint_layout().save(state.params, state.opt_state))


def rows_of(config) -> list[PackedBatch]:
    """One or two documents and padding in every row of the batch."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(config.train.batch_size):
        lengths = rng.integers(3, 14, rng.integers(1, 3))
        rows.append(pack_row([rng.integers(0, config.model.vocab, n) for n in lengths], config.data.sequence_length))
    return rows


def _gradients(program, params, batch, wanted):
    """Without the gradients, if they are not wanted, nothing of the backward pass is compiled."""
    function = make_loss_and_gradients(program.config, program.layout, program.loss)

    @jax.jit
    def gradients(params, batch):
        loss, stats, grads = function(program.layout.to_compute(params, "float32"), batch)
        return loss, stats, program.layout.gradients_to_storage(grads) if wanted else None

    loss, stats, grads = jax.block_until_ready(gradients(params, batch))
    found = {**_flat(loss._asdict(), "loss"), **_flat(stats._asdict(), "stats")}
    return found | (_flat(program.checkpoint_layout().logical_params(grads), "grads") if wanted else {})


def _step(program, state, batch):
    """The step's results; Muon's first momentum and Adam's first moment are the gradients."""
    form = program.checkpoint_layout()
    # One program at a time: emulated devices share a few threads, for which the collectives of two programs compete.
    state, metrics = jax.block_until_ready(program.step(state, batch))
    params, opt_state = jax.block_until_ready(form.save(state.params, state.opt_state))
    again = jax.block_until_ready(form.load(params, opt_state))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), (state.params, state.opt_state), again)
    found = {key: getattr(metrics, key) for key in ("loss", "grad_norm", "update_norm")}
    found |= _flat(metrics.stats._asdict(), "stats")
    found |= {**_flat(params, "params"), **_flat(opt_state, "opt")}
    return found | {"round_trip": np.array(all(jax.tree.leaves(same)))}


def _crowded(program):
    state, _ = program.abstract()
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    bias = state.params["moe"]["router_bias"]
    state.params["moe"]["router_bias"] = np.broadcast_to(-np.arange(bias.shape[-1], dtype=bias.dtype), bias.shape)
    return jax.device_put(state, program.shardings)


def _experts(config, row):
    """Experts for some tokens of a row, a function of its tokens; the router chooses those of the others."""
    rng, moe = np.random.default_rng(int(row.tokens.sum())), config.model.moe
    shape = len(row.tokens), config.model.layers - config.model.dense_layers
    chosen = np.argsort(rng.random((*shape, moe.experts)), -1)[..., : moe.active_experts].astype(np.int16)
    return np.where(rng.random((shape[0], 1, 1)) < 0.7, chosen, np.int16(-1))


def _flat(tree, prefix):
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}
