"""The training state and its making."""

from __future__ import annotations

from typing import Any

from flax import struct
import jax
from jax import Array
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import optax

from k2jax import optim
from k2jax.config.schema import Config
from k2jax.parallel.layout import Layout
from k2jax.parallel.newton_schulz import make_newton_schulz
from k2jax.parallel.resharding import from_logical, optimizer_shardings
from k2jax.params import abstract, initialize


@struct.dataclass
class TrainState:
    """Everything a step changes, donated from step to step.

    Attributes:
        step: ``[]`` int32, optimizer updates done; it stops counting at the first unhealthy step.
        params: float32 master weights.
        opt_state: optimizer state.
        healthy: ``[]`` bool; once a step saw a non-finite loss, gradient or logit, or would have made a weight or a
            moment non-finite, it is False and nothing changes any more: the state stays that of the last good step.
    """

    step: Array
    params: Any
    opt_state: Any
    healthy: Array


def make_optimizer(config: Config, layout: Layout) -> optax.GradientTransformationExtraArgs:
    """The optimizer of a config for weights that are stored on a mesh."""
    newton_schulz = make_newton_schulz(layout) if layout.mesh.size > 1 else None
    dtype = compute_dtype(config.train.compute_dtype, layout.platform)
    return optim.build_optimizer(
        config.optimizer,
        config.router,
        layout.specs,
        total_updates(config),
        newton_schulz,
        dtype,
        phases=config.phases,
    )


def total_updates(config: Config) -> int:
    """The optimizer's updates of a whole run, over which schedules reach."""
    return config.train.steps * (config.rl.updates if config.stage == "rl" else 1)


def init_state(config: Config, optimizer: optax.GradientTransformationExtraArgs, layout: Layout) -> TrainState:
    """The state before the first step, a pure function of the config's seed; jit it with ``state_shardings``."""
    params = initialize(layout.logical, jax.random.key(config.train.seed), config.model.init_std)
    params = from_logical(layout, params)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), jnp.ones((), jnp.bool_))


def state_shardings(optimizer: optax.GradientTransformationExtraArgs, layout: Layout) -> TrainState:
    """The shardings of the state between steps: a TrainState of NamedShardings."""
    everywhere = NamedSharding(layout.mesh, PartitionSpec())
    opt_state = jax.eval_shape(optimizer.init, abstract(layout.specs))
    placed = optimizer_shardings(optimizer, opt_state, layout, layout.storage)
    return TrainState(everywhere, layout.shardings(layout.storage), placed, everywhere)


def all_finite(tree: Any) -> Array:
    """``[]`` bool: whether no float of a tree is NaN or infinite."""
    finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack(finite).all()


def non_finite_leaves(state: TrainState) -> list[str]:
    """Names of the weights and moments that hold NaN or infinity, ``params.moe.router`` for instance."""
    leaves, _ = jax.tree_util.tree_flatten_with_path({"params": state.params, "optimizer": state.opt_state})
    finite = jax.device_get([_leaf_finite(leaf) for _, leaf in leaves])
    return [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for (path, _), good in zip(leaves, finite, strict=True)
        if not good
    ]


@jax.jit
def _leaf_finite(leaf: Array) -> Array:
    return jnp.isfinite(leaf).all()


def compute_dtype(name: str, platform: str | None = None) -> jnp.dtype:
    """The dtype of activations: ``auto`` is bfloat16 on accelerators and float32 on a CPU."""
    if name == "auto":
        name = "float32" if (platform or jax.default_backend()) == "cpu" else "bfloat16"
    return jnp.dtype(name)
