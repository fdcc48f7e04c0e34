"""MuonClip and its parts (Kimi K2, section 2.1, algorithm 1), as optax transformations built from a config."""

from __future__ import annotations

import math

import jax.numpy as jnp
import optax

from k2jax.config.schema import Config, OptimizerConfig, RouterConfig
from k2jax.errors import UserError
from k2jax.optim.balance import balance_router_bias
from k2jax.optim.groups import GroupRow, decays, group_of, group_table, labels
from k2jax.optim.muon import Member, NewtonSchulz, matrix_parts, scale_by_muon
from k2jax.optim.qk_clip import qk_clip, qk_clip_gamma
from k2jax.optim.schedule import build_schedule
from k2jax.params import Specs, map_specs, named_specs
from pallas_kernels.newton_schulz import Coefficients
from pallas_kernels.newton_schulz import coefficients as newton_schulz_coefficients

__all__ = [
    "GroupRow",
    "Member",
    "NewtonSchulz",
    "balance_router_bias",
    "build",
    "build_schedule",
    "group_of",
    "group_table",
    "learning_rate",
    "newton_schulz_share",
    "qk_clip",
    "qk_clip_gamma",
    "scale_by_muon",
]

_DTYPES = {"auto": None, "float32": jnp.float32, "bfloat16": jnp.bfloat16}


def build(
    optimizer_config: OptimizerConfig,
    router_config: RouterConfig,
    specs: Specs,
    steps: int,
    newton_schulz: NewtonSchulz | None = None,
) -> optax.GradientTransformationExtraArgs:
    """The whole update: gradient clipping, one rule per group, QK-Clip last.

    ``update(grads, state, params, *, max_logit, expert_tokens)`` takes the step's statistics: ``max_logit`` float32
    ``[L, H]`` (for muonclip), ``expert_tokens`` int32 ``[L_moe, E]`` (where there are router biases); a missing one is
    an error. A non-finite ``max_logit`` gives NaN updates: check before applying them. ``init`` works abstractly.

    Args:
        optimizer_config: rule and its constants.
        router_config: bias rates.
        specs: spec tree of the parameters.
        steps: optimizer steps of the run, which the schedules span.
        newton_schulz: as of ``scale_by_muon``.

    Raises:
        UserError: a value that means nothing, or a schedule that does not fit.
    """
    _check(optimizer_config)
    c = optimizer_config
    # No clipping is clipping at infinity: checkpoints keep one structure whatever the threshold.
    chain = [optax.clip_by_global_norm(c.grad_clip or math.inf)]
    chain.append(optax.partition(_rules(c, router_config, specs, steps, newton_schulz), labels(specs, c)))
    if c.name == "muonclip":
        chain.append(qk_clip(specs, tau=c.qk_clip_tau, alpha=c.qk_clip_alpha))
    return optax.with_extra_args_support(optax.chain(*chain))


def _rules(c: OptimizerConfig, router: RouterConfig, specs: Specs, steps: int, iterate: NewtonSchulz | None) -> dict:
    """The transformation of each group. Muon and AdamW share the learning rate and the decoupled decay."""
    after = (
        optax.add_decayed_weights(c.weight_decay, mask=map_specs(decays, specs)),
        optax.scale_by_learning_rate(learning_rate(c, steps)),
    )
    muon = scale_by_muon(
        specs,
        coefficients=_coefficients(c),
        momentum=c.momentum,
        momentum_form=c.momentum_form,
        update_rms=c.update_rms,
        dtype=_DTYPES[c.newton_schulz_dtype],
        split_heads=c.split_heads,
        newton_schulz=iterate,
    )
    bias_rate = optax.linear_schedule(router.bias_rate, router.bias_rate_final, max(steps - 1, 1))
    return {
        "muon": optax.chain(muon, *after),
        "adamw": optax.chain(optax.scale_by_adam(c.adam_b1, c.adam_b2, c.adam_eps), *after),
        "balance": balance_router_bias(specs, bias_rate),
    }


def learning_rate(optimizer_config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate of the 0-based step, shared by Muon and AdamW."""
    return build_schedule(optimizer_config.schedule, optimizer_config.learning_rate, steps)


def newton_schulz_share(specs: Specs, config: Config, tokens_per_step: int) -> float:
    """FLOPs of Newton-Schulz over the training FLOPs of the matrices it works on.

    A matrix with smaller side n, larger m costs ``4 n² m + 2 n³`` per iteration, and ``6 n m`` per token it sees per
    optimizer step: all of them, or ``active_experts / experts`` of them for an expert (on average).

    Args:
        specs: spec tree.
        config: the experiment; its optimizer and ``model.active_experts`` count.
        tokens_per_step: tokens per optimizer step, over all micro-batches and devices.

    Returns:
        The ratio; 0 without Muon.
    """
    orthogonalisation = training = 0.0
    for _, spec in named_specs(specs):
        if group_of(spec, config.optimizer) != "muon":
            continue
        routed = "experts" in spec.stack
        share = config.model.active_experts / spec.size_of(("experts",)) if routed else 1.0
        for part in matrix_parts(spec, config.optimizer.split_heads):
            n, m = sorted((part.spec.size_of(part.spec.inputs), part.spec.size_of(part.spec.outputs)))
            count = part.spec.size_of(part.spec.stack)
            orthogonalisation += count * config.optimizer.newton_schulz_steps * (4.0 * n * n * m + 2.0 * n**3)
            training += count * 6.0 * n * m * tokens_per_step * share
    return orthogonalisation / training if training else 0.0


def _coefficients(c: OptimizerConfig) -> Coefficients:
    """The coefficients of every step, a wrong preset or count being the user's mistake."""
    try:
        return newton_schulz_coefficients(c.newton_schulz, c.newton_schulz_steps)
    except ValueError as error:
        raise UserError(f"optimizer.newton_schulz: {error}") from error


def _check(c: OptimizerConfig) -> None:
    """Refuses values that mean nothing."""
    choices = {
        "name": ("muonclip", "muon", "adamw"),
        "momentum_form": ("heavy_ball", "nesterov"),
        "newton_schulz_dtype": tuple(_DTYPES),
    }
    for key, allowed in choices.items():
        if getattr(c, key) not in allowed:
            raise UserError(f"optimizer.{key} is {getattr(c, key)!r}; there are {', '.join(allowed)}")
    if c.qk_clip_tau <= 0 or not 0 <= c.qk_clip_alpha <= 1:
        raise UserError(
            f"need optimizer.qk_clip_tau > 0 and 0 ≤ qk_clip_alpha ≤ 1, not {c.qk_clip_tau}, {c.qk_clip_alpha}"
        )
    if min(c.grad_clip, c.weight_decay) < 0:
        raise UserError("optimizer.grad_clip and optimizer.weight_decay cannot be negative")
