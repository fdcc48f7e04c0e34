"""Every layout of a config on a topology, by the formulas of ``layouts``: those that fit, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

from k2jax.analysis.chips import Chip
from k2jax.analysis.hbm import Hbm
from k2jax.analysis.layouts import Estimate, estimate, memory
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.parallel.schedule import cut

MOST_ROUNDS = 8
ROWS = (1, 2, 4)  # of a micro-batch on one device
REMAT = ("none", "full")


class Candidate(NamedTuple):
    """A config and its estimate."""

    config: Config
    estimate: Estimate

    @property
    def flags(self) -> str:
        """What makes this config of the one that was given."""
        parallel, train = self.config.parallel, self.config.train
        return (
            f"--config.parallel.stage={parallel.stage} --config.parallel.virtual_stages={parallel.virtual_stages} "
            f"--config.parallel.expert={parallel.expert} --config.parallel.data={parallel.data} "
            f"--config.train.micro_batches={train.micro_batches} --config.train.remat={train.remat}"
        )


def sweep(config: Config, chip: Chip, devices: list[Any]) -> list[Candidate]:
    """All layouts of stages x virtual stages x experts x data, micro-batches and recomputation that fit.

    The batch, the schedule and how experts exchange stay as they are. Layers and rows are not shared.

    Raises:
        UserError: none fits, and it says how much the smallest needs; or the config shares layers or rows.
    """
    if config.parallel.tensor > 1 or config.parallel.context > 1:
        raise UserError("a sweep estimates no config.parallel.tensor and no config.parallel.context; set both to 1")
    found = [(one, needed) for one in layouts(config, len(devices)) if (needed := _memory(one, chip, devices))]
    fitting = [Candidate(one, estimate(one, chip, devices)) for one, needed in found if needed.fits]
    if not found:
        raise UserError(
            f"no layout of {config.train.batch_size} rows over {len(devices)} devices; "
            f"raise config.train.batch_size to a multiple of {len(devices)}"
        )
    if not fitting:
        least = min((needed for _, needed in found), key=lambda one: one.total)
        raise UserError(
            f"no layout fits: the smallest takes {least.total / 1e9:.0f} GB of {least.limit / 1e9:.0f} GB a device; "
            f"about {math.ceil(len(devices) * least.total / least.limit)} devices would do"
        )
    return sorted(fitting, key=lambda one: one.estimate.roofline.seconds)


def _memory(config: Config, chip: Chip, devices: list[Any]) -> Hbm | None:
    """None where the layout cannot be."""
    try:
        return memory(config, chip, devices)
    except UserError:
        return None


def layouts(config: Config, devices: int) -> Iterator[Config]:
    """Every config whose mesh has so many devices and whose micro-batches have whole rows on each."""
    model = config.model
    body = model.layers - model.dense_layers or model.layers
    routed = model.layers > model.dense_layers
    for stage, expert in itertools.product(_divisors(devices), _divisors(devices)):
        if devices % (stage * expert) or (expert > 1 and (not routed or model.experts % expert)):
            continue
        for rounds in range(1, MOST_ROUNDS + 1) if stage > 1 else (1,):
            if stage > 1 and not cut(body, stage, rounds):
                continue
            for rows, remat in itertools.product(ROWS, REMAT):
                groups = devices // stage * rows
                if config.train.batch_size % groups:
                    continue
                yield dataclasses.replace(
                    config,
                    parallel=dataclasses.replace(
                        config.parallel,
                        data=devices // (stage * expert),
                        stage=stage,
                        virtual_stages=rounds,
                        expert=expert,
                    ),
                    train=dataclasses.replace(
                        config.train, micro_batches=config.train.batch_size // groups, remat=remat
                    ),
                )


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
