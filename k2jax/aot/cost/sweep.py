"""Every layout of a config on a topology, by the formulas of ``estimate``: those that fit, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

from k2jax.aot.cost.activations import fp8_names, offload_names
from k2jax.aot.cost.estimate import Estimate, Estimator, Placement, place
from k2jax.aot.cost.hbm import Hbm
from k2jax.chips import Chip
from k2jax.config.activations import LISTS, PIPELINE_LIST, POLICIES
from k2jax.config.schema import Config, ModelConfig, TrainConfig
from k2jax.errors import UserError
from k2jax.parallel.schedule import cut

MAX_ROUNDS = 8
ROWS = (1, 2, 4)  # of a micro-batch on one device
PARTS = (1, 2, 4)  # of an exchange of tokens


class Candidate(NamedTuple):
    """A config and its estimate.

    Attributes:
        config: the layout.
        estimate: of it.
        start: the config that the sweep started from.
    """

    config: Config
    estimate: Estimate
    start: Config

    @property
    def flags(self) -> str:
        """The flags that make the given config this one."""
        parallel, train = self.config.parallel, self.config.train
        lists = [key for key in (*LISTS, PIPELINE_LIST) if getattr(train, key) or getattr(self.start.train, key)]
        names = [f' --config.train.{key}="{getattr(train, key)}"'.replace(", ", ",") for key in lists]
        return (
            f"--config.parallel.stage={parallel.stage} --config.parallel.virtual_stages={parallel.virtual_stages} "
            f"--config.parallel.expert={parallel.expert} --config.parallel.data={parallel.data} "
            f"--config.parallel.expert_chunks={parallel.expert_chunks} "
            f"--config.train.micro_batches={train.micro_batches} --config.train.remat={train.remat}{''.join(names)}"
        )

    @property
    def recomputation(self) -> str:
        """The policy, and whether activations lie in FP8 or in the host's memory: ``selective, fp8, offload``."""
        train = self.config.train
        return ", ".join([train.remat, *["fp8"] * bool(train.store_fp8), *["offload"] * bool(train.offload)])


def sweep(config: Config, chip: Chip, devices: list[Any]) -> list[Candidate]:
    """All layouts that fit, the fastest first.

    Searched are stages x virtual stages x experts x data, rows of a micro-batch, parts of the experts' exchange and
    recomputation. FP8, which rounds gradients, and offloading are tried only where a policy does not fit without. The
    batch, the schedule and the backend of the exchange stay as given; the axes ``tensor`` and ``context`` are not
    searched.

    Raises:
        UserError: none fits, and it says how much the smallest needs; or the config shares layers or rows.
    """
    if config.parallel.tensor > 1 or config.parallel.context > 1:
        raise UserError("a sweep estimates no config.parallel.tensor and no config.parallel.context; set both to 1")
    fitting: list[Candidate] = []
    refused: list[Hbm] = []
    for layout in layouts(config, len(devices)):
        try:
            placement = place(layout, chip, devices)
        except UserError:
            continue
        for variant in _batches(layout):
            with contextlib.suppress(UserError):  # more copies of tokens at a time than the experts' kernels sort
                _add_policies(variant, placement, config, fitting, refused)
    if not fitting and not refused:
        raise UserError(
            f"no layout of {config.train.batch_size} rows over {len(devices)} devices; "
            f"raise config.train.batch_size to a multiple of {len(devices)}"
        )
    if not fitting:
        least = min(refused, key=lambda hbm: hbm.total)
        raise UserError(
            f"no layout fits: the smallest takes {least.total / 1e9:.0f} GB of {least.limit / 1e9:.0f} GB a device; "
            f"about {math.ceil(len(devices) * least.total / least.limit)} devices would do"
        )
    return sorted(fitting, key=lambda candidate: candidate.estimate.roofline.seconds)


def layouts(config: Config, devices: int) -> Iterator[Config]:
    """Every config whose mesh has this number of devices, and whose stages hold whole layers."""
    model = config.model
    body = model.layers - model.dense_layers or model.layers
    routed = model.layers > model.dense_layers
    for stage, expert in itertools.product(_divisors(devices), _divisors(devices)):
        if devices % (stage * expert) or (expert > 1 and (not routed or model.moe.experts % expert)):
            continue
        for rounds in range(1, MAX_ROUNDS + 1) if stage > 1 else (1,):
            if stage == 1 or cut(body, stage, rounds):
                axes = {"data": devices // (stage * expert), "stage": stage, "expert": expert}
                parallel = dataclasses.replace(config.parallel, **axes, virtual_stages=rounds)
                rows = _rows(config, devices // stage)
                if rows:
                    train = dataclasses.replace(config.train, micro_batches=rows[0])
                    yield dataclasses.replace(config, parallel=parallel, train=train)


def _rows(config: Config, groups: int) -> list[int]:
    """Numbers of micro-batches that have whole rows on each of ``groups`` groups of devices."""
    sizes = (groups * rows for rows in ROWS)
    return [config.train.batch_size // size for size in sizes if config.train.batch_size % size == 0]


def _batches(layout: Config) -> Iterator[Config]:
    """The layout with every number of micro-batches and of parts of the exchange."""
    parallel = layout.parallel
    asynchronous = parallel.expert > 1 and parallel.expert_backend != "dense"  # beside which nothing runs
    for micro_batches, parts in itertools.product(
        _rows(layout, parallel.data * parallel.expert), PARTS if asynchronous else (1,)
    ):
        train = dataclasses.replace(layout.train, micro_batches=micro_batches)
        yield dataclasses.replace(layout, train=train, parallel=dataclasses.replace(parallel, expert_chunks=parts))


def _add_policies(
    config: Config, placement: Placement, start: Config, fitting: list[Candidate], refused: list[Hbm]
) -> None:
    """Adds the policies of recomputation that fit; FP8 and offloading only where a policy does not fit without."""
    for remat in POLICIES:
        for train in policy_variants(config.train, config.model, remat):
            variant = dataclasses.replace(config, train=train)
            estimator = Estimator(variant, placement)
            hbm = estimator.hbm()
            if not hbm.fits:
                refused.append(hbm)
                continue
            fitting.append(Candidate(variant, estimator.estimate(), start))
            if not (train.store_fp8 or train.offload):
                break


def policy_variants(train: TrainConfig, model: ModelConfig, remat: str) -> Iterator[TrainConfig]:
    """A policy as it is, then with activations in FP8 or on the host; names that were given before are dropped."""
    plain = dataclasses.replace(train, remat=remat, **dict.fromkeys((*LISTS, PIPELINE_LIST), ()))
    yield plain
    if remat == "none":
        return
    kept = POLICIES[remat]
    offloaded = offload_names(model, kept)
    fp8 = tuple(name for name in fp8_names(model) if name in kept)
    if fp8:
        yield dataclasses.replace(plain, store_fp8=fp8)
    yield dataclasses.replace(plain, offload=offloaded)
    if fp8:
        yield dataclasses.replace(plain, offload=offloaded, store_fp8=fp8)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
