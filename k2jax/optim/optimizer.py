"""The complete optimizer: gradient clipping, one update rule for each group of weights, and QK-Clip."""

from __future__ import annotations

from collections.abc import Mapping
import math

import jax
import optax

from k2jax.config.fields import check_fields
from k2jax.config.schema import OptimizerConfig, PhaseConfig, RouterConfig
from k2jax.errors import UserError
from k2jax.optim.balance import balance_router_bias
from k2jax.optim.groups import FROZEN, decays, group_labels
from k2jax.optim.muon import NewtonSchulz, scale_by_muon
from k2jax.optim.qk_clip import clip_groups
from k2jax.optim.schedule import build_phase_schedule, build_schedule
from k2jax.optim.signals import where_signal, with_signals
from k2jax.params import VISION, Specs, map_specs
from pallas_kernels.newton_schulz import Coefficients
from pallas_kernels.newton_schulz import coefficients as newton_schulz_coefficients

ADAM_DECAYS = 0.9, 0.95
"""Of the first and the second moment of AdamW (DeepSeek-V3, section 4.2)."""


def build_optimizer(
    optimizer_config: OptimizerConfig,
    router_config: RouterConfig,
    specs: Specs,
    steps: int,
    newton_schulz: NewtonSchulz | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    *,
    phases: Mapping[str, PhaseConfig] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Builds the optimizer: gradient clipping, one rule for each group, QK-Clip last.

    ``update(grads, state, params, *, max_logit, expert_tokens)`` takes the step's statistics: ``max_logit`` by
    group of layers float32 ``[layers, heads]`` (for muonclip), ``expert_tokens`` int32 ``[L_moe, E]`` (if there are
    router biases); a missing one is an error. A non-finite ``max_logit`` gives NaN updates, so check them before
    applying them. ``init`` also accepts abstract parameters. A part of the vision tower whose gradient is exactly 0
    keeps its weights, momentum and moments, and only its schedule goes on; see ``train.step`` for the whole model.

    Args:
        optimizer_config: rule and its constants.
        router_config: update rates of the router biases.
        specs: spec tree of the parameters.
        steps: optimizer steps of the run, which the schedules span.
        newton_schulz: as in ``scale_by_muon``.
        dtype: as in ``scale_by_muon``.
        phases: of the run, which may say its learning rate.

    Raises:
        UserError: if a value is invalid, or the schedule is longer than the run.
    """
    check_fields(optimizer_config, "optimizer")
    config = optimizer_config
    # Without a threshold the norm is clipped at infinity, so that the optimizer state always has the same structure.
    chain = [optax.clip_by_global_norm(config.grad_clip or math.inf)]
    muon = scale_by_muon(
        specs,
        coefficients=_coefficients(config),
        momentum=config.momentum,
        dtype=dtype,
        newton_schulz=newton_schulz,
    )
    rules = _rules(router_config, specs, steps, muon, config, phases or {})
    chain.append(optax.partition(rules, group_labels(specs, config)))
    if config.name == "muonclip":
        chain.append(clip_groups(specs, config))
    optimizer = optax.with_extra_args_support(optax.chain(*chain))
    return with_signals(specs, optimizer) if VISION in specs else optimizer


def learning_rate(
    optimizer_config: OptimizerConfig, steps: int, phases: Mapping[str, PhaseConfig] | None = None
) -> optax.Schedule:
    """Learning rate of the 0-based step, shared by Muon and AdamW: of the schedule, or of phases that say theirs."""
    ordered = sorted((phases or {}).values(), key=lambda phase: phase.begin)
    if ordered and ordered[0].rate != "schedule":
        return build_phase_schedule(optimizer_config.schedule, optimizer_config.learning_rate, steps, ordered)
    return build_schedule(optimizer_config.schedule, optimizer_config.learning_rate, steps)


def _rules(
    router: RouterConfig,
    specs: Specs,
    steps: int,
    muon: optax.GradientTransformation,
    config: OptimizerConfig,
    phases: Mapping[str, PhaseConfig],
) -> dict[str, optax.GradientTransformation]:
    """Transformation of each label. Muon and AdamW share the learning rate and the decoupled weight decay."""
    rate = learning_rate(config, steps, phases)
    decay = optax.add_decayed_weights(config.weight_decay, mask=map_specs(decays, specs))
    adam = optax.scale_by_adam(*ADAM_DECAYS, config.adam_eps)
    bias_rate = optax.linear_schedule(router.bias_rate, router.bias_rate_final, max(steps - 1, 1))
    rules = {}
    if "text" not in config.frozen:
        last = optax.scale_by_learning_rate(rate)
        rules = {"muon": optax.chain(muon, decay, last), "adamw": optax.chain(adam, decay, last)}
        rules["balance"] = balance_router_bias(specs, bias_rate)
    if VISION in specs:
        for part, factor in (("tower", config.tower_rate), ("projector", config.projector_rate)):
            last = optax.scale_by_learning_rate(lambda count, factor=factor: factor * rate(count))
            rules |= {
                f"muon/{part}": where_signal(part, muon, decay, last),
                f"adamw/{part}": where_signal(part, adam, decay, last),
            }
        rules[FROZEN] = optax.set_to_zero()
    return rules


def _coefficients(config: OptimizerConfig) -> Coefficients:
    """Newton-Schulz coefficients of every step; an invalid preset or number of steps is a UserError."""
    try:
        return newton_schulz_coefficients(config.newton_schulz, config.newton_schulz_steps)
    except ValueError as error:
        raise UserError(f"optimizer.newton_schulz: {error}") from error
