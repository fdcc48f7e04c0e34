"""FLOPs of Newton-Schulz, absolute and as a share of the training FLOPs."""

from __future__ import annotations

from k2jax.config.schema import Config, OptimizerConfig
from k2jax.optim.groups import group_of
from k2jax.params import ParamSpec, Specs, named_specs


def newton_schulz_flops(spec: ParamSpec, config: OptimizerConfig) -> float:
    """FLOPs of Newton-Schulz on all matrices of a weight in one optimizer step.

    A matrix with smaller side n and larger side m costs ``4 n² m + 2 n³`` per iteration: ``X Xᵀ``, its square, and the
    polynomial times X.
    """
    n, m = sorted((spec.size_of(spec.inputs), spec.size_of(spec.outputs)))
    return spec.size_of(spec.stack) * config.newton_schulz_steps * (4.0 * n * n * m + 2.0 * n**3)


def newton_schulz_share(specs: Specs, config: Config, tokens_per_step: int) -> float:
    """FLOPs of Newton-Schulz over the training FLOPs of the matrices that Muon updates.

    In one optimizer step a matrix with sides n and m costs ``newton_schulz_flops``, and ``6 n m`` for each of its
    tokens: all tokens of the step, or for an expert the mean share ``active_experts / experts`` of them.

    Args:
        specs: spec tree of the parameters.
        config: the experiment, of which ``optimizer`` and ``model.moe.active_experts`` are used.
        tokens_per_step: tokens of an optimizer step, over all micro-batches and devices.

    Returns:
        The ratio; 0 without Muon.
    """
    orthogonalisation = training = 0.0
    for _, spec in named_specs(specs):
        if group_of(spec, config.optimizer) != "muon":
            continue
        routed = "experts" in spec.stack
        share = config.model.moe.active_experts / spec.size_of(("experts",)) if routed else 1.0
        orthogonalisation += newton_schulz_flops(spec, config.optimizer)
        n, m = spec.size_of(spec.inputs), spec.size_of(spec.outputs)
        training += spec.size_of(spec.stack) * 6.0 * n * m * tokens_per_step * share
    return orthogonalisation / training if training else 0.0
