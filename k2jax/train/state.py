"""The training state and its making."""

from __future__ import annotations

from typing import Any

from flax import struct
import jax
from jax import Array
import jax.numpy as jnp
import optax

from k2jax.config.schema import Config
from k2jax.model import model_specs
from k2jax.params import initialize


@struct.dataclass
class TrainState:
    """Everything a step changes, donated from step to step.

    Attributes:
        step: ``[]`` int32, optimizer steps done; it stops counting at the first unhealthy step.
        params: float32 master weights.
        opt_state: optimizer state.
        healthy: ``[]`` bool; once a step saw a non-finite loss, gradient or logit it is False and nothing changes any
            more, so the state stays that of the last good step.
    """

    step: Array
    params: Any
    opt_state: Any
    healthy: Array


def init_state(config: Config, optimizer: optax.GradientTransformationExtraArgs) -> TrainState:
    """The state before the first step, a pure function of the config's seed; jit it."""
    params = initialize(model_specs(config.model), jax.random.key(config.train.seed), config.model.init_std)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), jnp.ones((), jnp.bool_))


def compute_dtype(name: str) -> jnp.dtype:
    """The dtype of activations: ``auto`` is bfloat16 on accelerators and float32 on a CPU."""
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return jnp.dtype(name)
