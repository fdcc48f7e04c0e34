"""Activation memory: which named activations of a layer live until its backward pass, in which form and where.

The table of ``k2jax.config.activations`` becomes a policy of ``jax.checkpoint`` and a count of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from k2jax.config.activations import BY_NAME, LISTS, Activation, kept_names, present
from k2jax.config.schema import Config, ModelConfig, RematPolicy, TrainConfig
from pallas_kernels.routed_experts import NAMES, kept_rows
from pallas_kernels.routed_experts.fp8_residuals import TILE


@dataclasses.dataclass(frozen=True)
class Remat:
    """What a layer keeps for its backward pass and in which form; see the keys of ``config.train``.

    Attributes:
        policy: ``none``, ``selective`` or ``full``.
        keep: names kept beside those of the policy.
        recompute: names recomputed though the policy keeps them.
        store_fp8: names kept in FP8: the forward pass is the same, gradients see the rounded copy.
        offload: names kept in the host's memory.
        across: names kept from a pipeline chunk's forward pass to its backward pass, which the others are of.
    """

    policy: RematPolicy = "none"
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    store_fp8: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    across: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, train: TrainConfig, *, chunk: bool = False) -> Remat:
        """Reads it from ``config.train``; with ``chunk`` for layers of a pipeline's chunk."""
        across = train.keep_across if chunk else ()
        return cls(train.remat, train.keep, train.recompute, train.store_fp8, train.offload, across)

    def checkpoint(self, layer: Callable) -> Callable:
        """Wraps a layer so that it keeps these activations until its backward pass and recomputes the others there."""
        names = kept_names(TrainConfig(remat=self.policy, **{key: getattr(self, key) for key in LISTS}))
        if names is not None:
            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=sorted(names - set(self.offload)),
                names_which_can_be_offloaded=sorted(self.offload),
                offload_src="device",
                offload_dst="pinned_host",
            )
            layer = jax.checkpoint(layer, policy=policy)
        if not self.across:
            return layer
        # Nothing to guard against: the forward pass that it repeats ran at another tick.
        policy = jax.checkpoint_policies.save_only_these_names(*self.across)
        return jax.checkpoint(layer, policy=policy, prevent_cse=False)


NO_REMAT = Remat()
"""Keeps whatever differentiation keeps."""


def named(x: Any, name: str) -> Any:
    """Gives ``x`` (an array or a tree) a name of the table, by which policies keep or recompute it."""
    return checkpoint_name(x, BY_NAME[name].name)


class ExpertRows(NamedTuple):
    """What the routed experts of a layer hold on one device.

    Attributes:
        tokens: rows of ``d_model`` that they compute.
        copies: rows of the hidden width: copies of tokens, with the room that the kernels ask for.
        plan_bytes: of the integers and gates that say where copies lie.
    """

    tokens: int
    copies: int
    plan_bytes: int


def activation_bytes(
    config: Config,
    tokens: int,
    group: str,
    dtype: Any = jnp.bfloat16,
    *,
    experts: ExpertRows | None = None,
    names: frozenset[str] | None = None,
) -> dict[str, int]:
    """Bytes of each activation that one layer keeps until its backward pass, in the order of the forward pass.

    Sequences fill the blocks of the attention kernel.

    Args:
        config: the experiment; its policy is not ``none``, which keeps more than has a name.
        tokens: of a micro-batch, padding included.
        group: ``dense`` or ``moe``.
        dtype: what ``compute`` stands for.
        experts: rows of the routed experts; by default all experts are on this device.
        names: the activations to count instead of those that the policy keeps.

    Returns:
        Name to bytes; those in ``config.train.offload`` are the host's.
    """
    kept = kept_names(config.train) if names is None else names
    if kept is None:
        raise ValueError("remat none keeps whatever differentiation keeps: no table counts it")
    result = {}
    for activation in present(config.model, group):
        if activation.name not in kept:
            continue
        rows = tokens
        if group == "moe" and activation.name in NAMES:
            experts = experts or _experts_here(config.model, tokens, jnp.dtype(dtype))
            rows = experts.copies if activation.rows == "copy" else experts.tokens
            if activation.rows == "own":
                result[activation.name] = experts.plan_bytes
                continue
        fp8 = activation.name in config.train.store_fp8
        result[activation.name] = rows * row_bytes(activation, config.model, dtype, fp8)
    return result


def row_bytes(activation: Activation, model: ModelConfig, dtype: Any, fp8: bool) -> int:
    """Counts the bytes of one row: of a token, or of a copy of a token."""
    widths = activation.widths(model)
    if fp8:
        return sum(width + 4 * -(-width // TILE) for width in widths)
    return sum(widths) * jnp.dtype(dtype if activation.dtype == "compute" else activation.dtype).itemsize


def _experts_here(model: ModelConfig, tokens: int, dtype: jnp.dtype) -> ExpertRows:
    """The rows where all experts are on one device."""
    copies, plan = kept_rows(
        tokens,
        model.moe.active_experts,
        (model.moe.experts, model.moe.expert_ffn, model.d_model),
        dtype,
        impl=model.kernels,
        capacity_factor=model.moe.capacity_factor,
    )
    return ExpertRows(tokens, copies, plan)


def activation_table(config: Config, dtype: Any = jnp.bfloat16) -> str:
    """Lists every activation of ``config.model`` in a Markdown table: bytes per token, and whether it is kept."""
    kept, train = kept_names(config.train), config.train
    lines = ["| name | what it is | layers | bytes a token | kept |", "| --- | --- | --- | --- | --- |"]
    for name, activation in BY_NAME.items():
        groups = [group for group in activation.groups if activation in present(config.model, group)]
        if not groups:
            continue
        per_token = config.model.moe.active_experts if activation.rows == "copy" else 1
        fp8, host = name in train.store_fp8, name in train.offload
        size = per_token * row_bytes(activation, config.model, dtype, fp8)
        counted = "by the plan" if activation.rows == "own" else f"{size:,}"
        fate = f"recomputed ({activation.recomputed or 'config'})"
        if kept is None or name in kept:
            fate = "yes" + ", in FP8" * fp8 + ", on the host" * host
        lines.append(f"| `{name}` | {activation.meaning} | {', '.join(groups)} | {counted} | {fate} |")
    return "\n".join(lines) + "\n"
