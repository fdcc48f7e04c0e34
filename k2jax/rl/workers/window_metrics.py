"""Metrics of an iteration whose episodes did not wait for one another."""

from __future__ import annotations

import numpy as np

from k2jax.agents.collect.event_loop import Lag
from k2jax.agents.collect.worker import Waits
from k2jax.rl.groups import PromptGroup
from k2jax.rl.workers.rollouts import Batch


def batch_record(batch: Batch, running: int) -> dict[str, float]:
    """Metrics of a batch.

    Args:
        batch: of an iteration.
        running: episodes that are under way at its end.

    Returns:
        ``window/running``, those episodes; ``window/left_behind``, older prompts that the batch has overtaken;
        ``window/stale``, the share of complete groups that were too stale to be trained on and are sampled again;
        ``window/late``, groups that an earlier batch had overtaken, and where there are both kinds the mean lengths
        ``length_late`` and ``length_in_turn`` [tokens]: groups that end first are short, and this is by how much.
        ``wait/engine``, ``wait/environment`` and ``wait/scoring`` are what an episode waited for, in the mean [s].
    """
    record = {"window/running": float(running), "window/left_behind": float(batch.left_behind)}
    drawn = [group for group in batch.groups if group.number >= 0]
    record["window/stale"] = batch.stale / (batch.stale + len(drawn))
    late = [group for group in drawn if group.number in batch.overtaken]
    record["window/late"] = float(len(late))
    if late and len(late) < len(drawn):
        record["length_late"] = _length(late)
        record["length_in_turn"] = _length([group for group in drawn if group.number not in batch.overtaken])
    if batch.waits:
        means = np.mean(np.array(batch.waits), 0)
        record |= {f"wait/{name}": float(mean) for name, mean in zip(Waits._fields, means, strict=True)}
    return record


def lag_record(lag: Lag) -> dict[str, float]:
    """``lag_p99``: 99 % of the time since the last batch the run's event loop was this late or less [s]."""
    return {"lag_p99": lag.p99}


def _length(groups: list[PromptGroup]) -> float:
    return float(np.mean([trajectory.sampled_tokens for group in groups for trajectory in group.trajectories]))
