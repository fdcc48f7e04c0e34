"""From a step's device metrics to the values of one line of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
import re
import resource
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from k2jax.chips import PEAK_FLOPS
from k2jax.config.phases import run_phases
from k2jax.config.schema import Config, MoEConfig
from k2jax.model import training_flops_per_token
from k2jax.optim import clips, qk_clip_gamma
from k2jax.parallel.objective import LossShares
from k2jax.params import TEXT
from k2jax.runtime import device_name
from k2jax.train.step import StepMetrics

UNBALANCED, UNBALANCED_STEPS = 0.75, 50
"""Part of the worst possible violation, and steps on end above it, after which a person is told."""


def peak_flops() -> float:
    """Peak FLOP/s of all devices: the data sheet's where known, else the rate of a large float32 matrix product."""
    kind = jax.devices()[0].device_kind
    if kind in PEAK_FLOPS:
        return PEAK_FLOPS[kind] * jax.device_count()
    size = 1024
    x = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(lambda a: a @ a)
    jax.block_until_ready(multiply(x))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(multiply(x))
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best * jax.local_device_count()


def memory_gb() -> float:
    """Peak memory: of the device where it tells, else of the process [GB]."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / 1e9
    return _process_memory() / 1e9


def _process_memory() -> int:
    """Peak memory of this process [bytes].

    On Linux ``ru_maxrss`` of a process begins with the size of the one that started it, so the kernel's record of the
    present address space is read there.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def max_violation(expert_tokens: np.ndarray) -> np.ndarray:
    """Busiest expert over the mean, minus 1, per layer ``[L_moe]``; ``expert_tokens`` is ``[L_moe, E]``."""
    return expert_tokens.max(-1) / np.maximum(expert_tokens.mean(-1), 1e-9) - 1


def scalar_metrics(shares: LossShares) -> dict[str, Any]:
    """Metrics and maxima ``[]`` of a loss; arrays are there for a loop that makes numbers of them."""
    return {name: share for name, share in (shares.metrics | shares.maxima).items() if not np.ndim(share)}


def group_metric(group: str, name: str) -> str:
    """The name of a metric of a group of layers: the decoder's as it is, ``vision_max_logit`` of the tower."""
    return name if group == TEXT else f"{group}_{name}"


def logit_metrics(max_logit: Mapping[str, Any]) -> dict[str, Any]:
    """The largest logit of each group of layers, and those of its heads ``[layers, heads]``."""
    record = {}
    for group, logits in max_logit.items():
        heads = np.asarray(logits)
        record |= {group_metric(group, "max_logit"): float(heads.max()), group_metric(group, "max_logit_heads"): heads}
    return record


def _worst_violation(moe: MoEConfig) -> float:
    """The max violation of a layer that sends every token to the same experts."""
    return moe.experts / moe.active_experts - 1


def run_work(config: Config) -> Callable[[int], float]:
    """Model FLOPs of the first steps of a run, by their number: what a step of each phase costs beside the others."""
    costs = []
    for phase in run_phases(config):
        own = phase.config
        tokens = own.train.batch_size * own.data.sequence_length
        costs.append((phase, tokens * training_flops_per_token(own.model, own.data.sequence_length)))
    return lambda step: sum(cost * min(max(step - phase.first, 0), phase.steps) for phase, cost in costs)


class Recorder:
    """Keeps what spans steps: totals of real tokens and seconds, the loss's running mean for spikes."""

    def __init__(self, config: Config, meta: dict):
        self.enter(config)
        # A measured peak varies from start to start; a resumed run keeps it, so that its utilisation stays comparable.
        same_device = meta.get("device") == device_name()
        self.peak_flops: float = meta["peak_flops"] if same_device and "peak_flops" in meta else peak_flops()
        self._unbalanced = 0
        self.tokens: int = meta.get("tokens", 0)
        self.spikes: int = meta.get("spikes", 0)
        self.running_loss: float | None = meta.get("running_loss")
        self.seconds: float = meta.get("seconds", 0.0)

    def enter(self, config: Config) -> None:
        """Goes on with the configuration of another phase of the run."""
        self._config = config
        self._flops_per_token = training_flops_per_token(config.model, config.data.sequence_length)

    def meta(self) -> dict:
        """JSON values to save with a checkpoint, so that a resumed run goes on counting."""
        return {
            "tokens": self.tokens,
            "spikes": self.spikes,
            "running_loss": self.running_loss,
            "seconds": self.seconds,
            "device": device_name(),
            "peak_flops": self.peak_flops,
        }

    def balance_warning(self) -> str | None:
        """What to say once, when the experts have been far out of balance for ``UNBALANCED_STEPS`` steps on end."""
        moe = self._config.model.moe
        if self._unbalanced != UNBALANCED_STEPS:
            return None
        return (
            f"the experts are out of balance: for {UNBALANCED_STEPS} steps the busiest one of a layer got more than "
            f"{1 + UNBALANCED * _worst_violation(moe):.3g} times its share ({moe.experts / moe.active_experts:.3g} at "
            f"most); raise config.router.bias_rate, now {self._config.router.bias_rate:g} (a run of some hundred steps "
            "needs about 5e-2)"
        )

    def is_spike(self, loss: float) -> bool:
        """Whether ``loss`` jumps above its running mean; updates the mean and the count."""
        spike = self.running_loss is not None and loss > self._config.train.spike_factor * self.running_loss
        self.spikes += spike
        self.running_loss = loss if self.running_loss is None else 0.95 * self.running_loss + 0.05 * loss
        return spike

    def rates(self, tokens: int, seconds: float) -> dict[str, float]:
        """Tokens per second of training, and the part of the devices' peak that it uses."""
        rate = tokens / seconds
        return {"tokens_per_second": rate, "mfu": self._flops_per_token * rate / self.peak_flops}

    def values(self, metrics: StepMetrics, learning_rate: float, seconds: float) -> dict:
        """The record of one step.

        Args:
            metrics: on the host.
            learning_rate: used at this step.
            seconds: wall time of the step [s].
        """
        tokens = int(metrics.tokens)
        self.seconds, self.tokens = self.seconds + seconds, self.tokens + tokens
        loss, terms = float(metrics.loss), {name: float(share) for name, share in metrics.shares.terms.items()}
        record = {
            "loss": loss,
            "learning_rate": learning_rate,
            "grad_norm": float(metrics.grad_norm),
            "update_norm": float(metrics.update_norm),
            **self.rates(tokens, seconds),
            **logit_metrics(metrics.stats.max_logit),
            "memory_gb": memory_gb(),
            "seconds": self.seconds,
            "tokens": self.tokens,
        }
        if terms.keys() == {"nll"}:  # the loss of a policy changes sign, and may rise while it learns
            self.is_spike(loss)
            record["spikes"] = self.spikes
        if len(terms) > 1:
            record |= {f"loss/{name}": share for name, share in terms.items()}
        record |= {name: float(share) for name, share in scalar_metrics(metrics.shares).items()}
        for group, max_logit in metrics.stats.max_logit.items():
            if clips(group, self._config.optimizer):
                gamma = np.asarray(qk_clip_gamma(max_logit, self._config.optimizer.qk_clip_tau))
                clipped = {"clipped_heads": int((gamma < 1).sum()), "qk_clip_gamma": gamma}
                record |= {group_metric(group, name): value for name, value in clipped.items()}
        expert_tokens = np.asarray(metrics.stats.expert_tokens)
        if expert_tokens.size:
            violation = max_violation(expert_tokens)
            record |= {
                "max_violation": float(violation.max()),
                "max_violation_layers": violation,
                "expert_tokens": expert_tokens,
                "balance_loss": float(metrics.balance_loss),
            }
            is_unbalanced = record["max_violation"] > UNBALANCED * _worst_violation(self._config.model.moe)
            self._unbalanced = self._unbalanced + 1 if is_unbalanced else 0
        if self._config.parallel.expert_slots < 1:
            dropped = np.asarray(metrics.stats.dropped_rows)
            record |= {"dropped_rows": int(dropped.sum()), "dropped_rows_layers": dropped}
        return record


def infinite_logits(max_logit: Mapping[str, np.ndarray]) -> str:
    """The first heads whose logits are infinite or no number, of the groups of layers."""
    heads = [
        f"{group_metric(group, 'layer')} {layer} head {head}"
        for group, logits in max_logit.items()
        for layer, head in np.argwhere(~(np.asarray(logits) < np.inf))
    ]
    return ", ".join(heads[:3])
