"""Activation memory: which named activations of a layer live until its backward pass, in which form and where.

What is kept is data, ``k2jax.config.activations``; here it becomes a policy of ``jax.checkpoint`` and a count of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from k2jax.config.activations import BY_NAME, LISTS, Activation, kept_names, present
from k2jax.config.schema import Config, ModelConfig, TrainConfig
from pallas_kernels.routed_experts import kept_rows
from pallas_kernels.routed_experts.stored import TILE


@dataclasses.dataclass(frozen=True)
class Remat:
    """What becomes of a layer's activations; the keys of ``config.train`` of the same names.

    Attributes:
        policy: ``none``, ``selective`` or ``full``.
        keep: names kept beside those of the policy.
        recompute: names recomputed though the policy keeps them.
        store_fp8: names kept in FP8: the forward pass is the same, gradients see the rounded copy.
        offload: names kept in the host's memory.
    """

    policy: str = "none"
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    store_fp8: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()

    @classmethod
    def of(cls, train: Remat | TrainConfig | str) -> Remat:
        """From a config, or from a policy's name alone."""
        if isinstance(train, Remat):
            return train
        if isinstance(train, str):
            return cls(train)
        return cls(train.remat, *(getattr(train, key) for key in LISTS))

    def checkpoint(self, layer: Callable) -> Callable:
        """The layer, which keeps what this says until its backward pass and recomputes the rest there."""
        names = kept_names(TrainConfig(remat=self.policy, **{key: getattr(self, key) for key in LISTS}))
        if names is None:
            return layer
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=sorted(names - set(self.offload)),
            names_which_can_be_offloaded=sorted(self.offload),
            offload_src="device",
            offload_dst="pinned_host",
        )
        return jax.checkpoint(layer, policy=policy)


def named(x: Any, name: str) -> Any:
    """``x`` (an array or a tree) under a name of the table, for policies."""
    return checkpoint_name(x, BY_NAME[name].name)


def activation_bytes(config: Config, tokens: int, group: str, dtype: Any = jnp.bfloat16) -> dict[str, int]:
    """Bytes of each activation that one layer keeps until its backward pass, in the order of the forward pass.

    All experts are on one device, and sequences fill the blocks of the attention kernel.

    Args:
        config: the experiment; its policy is not ``none``, which keeps more than has a name.
        tokens: of a micro-batch, padding included.
        group: ``dense`` or ``moe``.
        dtype: what ``compute`` stands for.

    Returns:
        Name to bytes; those in ``config.train.offload`` are the host's.
    """
    kept = kept_names(config.train)
    if kept is None:
        raise ValueError("remat none keeps whatever differentiation keeps: no table counts it")
    rows = functools.partial(_rows_and_plan, config.model, tokens, jnp.dtype(dtype))
    result = {}
    for activation in present(config.model, group):
        if activation.name not in kept:
            continue
        if activation.rows == "own":
            result[activation.name] = rows()[1]
            continue
        count = tokens if activation.rows == "token" else rows()[0]
        fp8 = activation.name in config.train.store_fp8
        result[activation.name] = count * row_bytes(activation, config.model, dtype, fp8)
    return result


def row_bytes(activation: Activation, model: ModelConfig, dtype: Any, fp8: bool) -> int:
    """Bytes of one row: of a token, or of a copy of one."""
    widths = activation.widths(model)
    if fp8:
        return sum(width + 4 * -(-width // TILE) for width in widths)
    return sum(widths) * jnp.dtype(dtype if activation.dtype == "compute" else activation.dtype).itemsize


def _rows_and_plan(model: ModelConfig, tokens: int, dtype: jnp.dtype) -> tuple[int, int]:
    """Rows of sorted copies and bytes of their plan."""
    return kept_rows(
        tokens,
        model.active_experts,
        (model.experts, model.expert_ffn, model.d_model),
        dtype,
        impl=model.kernels,
        capacity_factor=model.capacity_factor,
    )


def activation_table(config: Config, dtype: Any = jnp.bfloat16) -> str:
    """Every activation of ``config.model`` as a Markdown table: bytes a token, and what becomes of it."""
    kept, train = kept_names(config.train), config.train
    lines = ["| name | what it is | layers | bytes a token | kept |", "| --- | --- | --- | --- | --- |"]
    for name, activation in BY_NAME.items():
        groups = [group for group in activation.groups if activation in present(config.model, group)]
        if not groups:
            continue
        per_token = config.model.active_experts if activation.rows == "copy" else 1
        fp8, host = name in train.store_fp8, name in train.offload
        size = per_token * row_bytes(activation, config.model, dtype, fp8)
        counted = "by the plan" if activation.rows == "own" else f"{size:,}"
        fate = f"recomputed ({activation.recomputed or 'config'})"
        if kept is None or name in kept:
            fate = "yes" + ", in FP8" * fp8 + ", on the host" * host
        lines.append(f"| `{name}` | {activation.meaning} | {', '.join(groups)} | {counted} | {fate} |")
    return "\n".join(lines) + "\n"
