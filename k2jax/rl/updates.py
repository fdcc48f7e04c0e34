"""The optimizer's updates of an iteration: groups to advantages, rows, gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from k2jax import processes
from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.data import prepare_data
from k2jax.rl.advantages import group_advantages
from k2jax.rl.packing import Sample, in_updates, pack, parts_of, ptx_row
from k2jax.rl.rewards import group_rewards
from k2jax.rl.rollouts import Group
from k2jax.train.run import Run, say
from k2jax.train.step import StepMetrics


class Updates:
    """Trains on the groups of an iteration in ``config.rl.updates`` optimizer steps.

    Args:
        run: the run.

    Raises:
        UserError: PTX is asked for, and its data cannot be prepared.
    """

    def __init__(self, run: Run):
        self._run, self._config = run, run.config
        self._local_rows = run.program.batch_sharding().rows
        self._ptx = _ptx_rows(run.config)

    def train(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Updates the weights, and returns metrics of the updates.

        Updates without signal, in which every advantage is 0, are left out: the size of an update of Muon or Adam does
        not depend on that of the gradient, and it would be a step into a random direction.
        """
        rl, data = self._config.rl, self._config.data
        samples, flat = [], 0
        for group in groups:
            rewards, counted = group_rewards(group.trajectories, rl.tasks[group.prompt.kind])
            advantages = group_advantages(rewards[None], counted[None], rl.advantage)[0]
            flat += not advantages.any()
            if advantages.any() or not rl.skip_flat_groups:
                samples.append(_counted(group, advantages, counted))
        record = {"flat_groups": flat / max(1, len(groups))}
        if flat == len(groups):
            return record | {"updates": 0}
        metrics, rows = [], 0
        for number, update in enumerate(in_updates(samples, rl.updates)):
            if not any(sample.advantage for sample in update):
                continue
            packed = pack(update, data.sequence_length)
            rows += len(packed)
            if self._ptx:
                packed += [ptx_row(self._ptx(row)) for row in self._ptx_numbers(step, number)]
            parts = parts_of(packed, self._config.train.batch_size, self._local_rows)
            metrics.append(self._run.update_in_parts(parts))
        return record | {"updates": len(metrics), "rows": rows} | _means(metrics)

    def _ptx_numbers(self, step: int, update: int) -> Iterator[int]:
        count = self._config.rl.loss.ptx_rows
        start = ((step - 1) * self._config.rl.updates + update) * count
        return iter(range(start, start + count))


def _counted(group: Group, advantages: np.ndarray, counted: np.ndarray) -> list[Sample]:
    chosen = [i for i in range(len(counted)) if counted[i]]
    return [Sample(group.trajectories[i], float(advantages[i])) for i in chosen]


def _means(metrics: Sequence[StepMetrics]) -> Mapping[str, float]:
    """What the loss reports, over all updates: means, and the largest maxima; the mismatch is that of the first."""
    if not metrics:
        return {}
    shares = [m.shares for m in metrics]
    means = {name: float(np.mean([share.metrics[name] for share in shares])) for name in shares[0].metrics}
    maxima = {name: float(np.max([share.maxima[name] for share in shares])) for name in shares[0].maxima}
    first = shares[0]
    mismatch = {
        "mismatch": float(first.metrics["tokens/mismatch"]),
        "mismatch_max": float(first.maxima["tokens/mismatch_max"]),
    }
    return {"loss": float(np.mean([m.loss for m in metrics])), **means, **maxima, **mismatch}


def _ptx_rows(config: Config) -> Any:
    """A function from a row's number to that row of ``config.data``; None without PTX."""
    if not config.rl.loss.ptx:
        return None
    loss = config.rl.loss
    data = prepare_data(
        config.data,
        batch_size=max(1, loss.ptx_rows),
        seed=config.train.seed,
        steps=config.train.steps * config.rl.updates,
        builder=processes.is_first(),
        log=say,
    )
    return lambda number: _row(data.loader.batch(number // loss.ptx_rows), number % loss.ptx_rows)


def _row(batch: PackedBatch, number: int) -> PackedBatch:
    import jax

    return jax.tree.map(lambda leaf: leaf[number], batch)
