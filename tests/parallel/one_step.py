"""One step on emulated devices, for the tests: a program of its own, because devices are made at its start."""

import json
import math
from pathlib import Path
import sys

import numpy as np

from k2jax.batch import PackedBatch, pack_row, stack_rows
from tests.emulated import dispatch_at_once, run_on


def steps(folder: Path, cases: dict[str, dict], timeout: int = 1800) -> dict[str, dict]:
    """Runs each case (config overrides) in one process with 8 emulated devices; results by case."""
    (folder / "cases.json").write_text(json.dumps(cases))
    run_on(8, "-m", "tests.parallel.eight", str(folder), timeout=timeout)
    results = {}
    for name in cases:
        with np.load(folder / f"{name}.npz") as found:
            results[name] = dict(found)
    return results


def rows_of(config) -> list[PackedBatch]:
    """One or two documents and padding in every row of the batch."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(config.train.batch_size):
        lengths = rng.integers(3, 14, rng.integers(1, 3))
        rows.append(pack_row([rng.integers(0, config.model.vocab, n) for n in lengths], config.data.sequence_length))
    return rows


def _gradients(program, params, batch):
    import jax

    from k2jax.parallel.gradients import make_loss_and_gradients

    function = make_loss_and_gradients(program.config, program.layout, program.loss)

    @jax.jit
    def gradients(params, batch):
        loss, stats, grads = function(program.layout.to_compute(params, "float32"), batch)
        return loss, stats, program.layout.gradients_to_storage(grads)

    loss, stats, grads = jax.block_until_ready(gradients(params, batch))
    return {
        **_flat(loss._asdict(), "loss"),
        **_flat(stats._asdict(), "stats"),
        **_flat(program.checkpoint_layout().logical_params(grads), "grads"),
    }


def _step(program, state, batch):
    """The step's results; Muon's first momentum and Adam's first moment are the gradients."""
    import jax

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


def _crowded(layers):
    import jax
    import jax.numpy as jnp

    bias = layers["router_bias"]
    bias = jnp.broadcast_to(-jnp.arange(bias.shape[-1], dtype=jnp.float32), bias.shape)
    put = lambda value, like: jax.device_put(value, like.sharding)  # noqa: E731
    return {
        "router": put(jnp.zeros_like(layers["router"]), layers["router"]),
        "router_bias": put(bias, layers["router_bias"]),
    }


def _experts(config, row):
    """Experts for some tokens of a row, a function of its tokens; the router chooses those of the others."""
    rng, moe = np.random.default_rng(int(row.tokens.sum())), config.model.moe
    shape = len(row.tokens), config.model.layers - config.model.dense_layers
    chosen = np.argsort(rng.random((*shape, moe.experts)), -1)[..., : moe.active_experts].astype(np.int16)
    return np.where(rng.random((shape[0], 1, 1)) < 0.7, chosen, np.int16(-1))


def _flat(tree, prefix):
    import jax

    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}


def _main(folder: Path) -> None:
    import jax

    from k2jax.train.program import Program
    from tests.parallel.policy_losses import every_policy_loss, with_policy_targets
    from tests.parallel.tiny import config_of
    from tests.parallel.turn_loss import TurnLoss, with_turns

    losses = {"turns": (TurnLoss, with_turns), "policies": (every_policy_loss, with_policy_targets)}
    for name, overrides in json.loads((folder / "cases.json").read_text()).items():
        config = config_of(overrides)
        axes = ("data", "stage", "expert", "context", "tensor")
        devices = jax.devices()[: math.prod(getattr(config.parallel, axis) for axis in axes)]
        make_loss, with_targets = next((losses[name] for name in losses if name in overrides["do"]), (None, None))
        program = Program(config, devices, make_loss and make_loss())
        placement, rows, padding = program.batch_sharding(), rows_of(config), pack_row([], config.data.sequence_length)
        if with_targets:
            rng = np.random.default_rng(1)
            *rows, padding = [with_targets(row, rng) for row in (*rows, padding)]
        if "replay" in overrides["do"]:
            rows = [row.replace(experts=_experts(config, row)) for row in rows]
            padding = padding.replace(experts=_experts(config, padding))
        batch = placement.put(stack_rows([rows[row] if row < len(rows) else padding for row in placement.rows]))
        state, found = program.init(), {"real": (batch.exit > np.arange(batch.exit.shape[-1])).sum(-1)}
        if "crowd" in overrides["do"]:  # everyone goes to the first experts
            state.params["moe"] |= _crowded(state.params["moe"])
        if "validate" in overrides["do"]:
            sums, denominators = program.evaluate(state.params, batch)
            found |= {**_flat(sums._asdict(), "sums"), **_flat(denominators, "denominators")}
        if "gradients" in overrides["do"]:
            found |= _gradients(program, state.params, batch)
        if "step" in overrides["do"]:
            found |= _step(program, state, batch)
        np.savez(folder / f"{name}.npz", **{key: np.asarray(value) for key, value in found.items()})


if __name__ == "__main__":
    dispatch_at_once()
    _main(Path(sys.argv[1]))
