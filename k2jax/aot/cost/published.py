"""Two published runs, estimated by the same formulas as every layout: the deviation is the tool's error bar.

Both runs gather weights layer by layer (FSDP) and recompute every layer in the backward pass. The formulas do not know
what else their frameworks do: offloading, kernels, the partitioning of Muon. The figures are as published:

- DeepSeek-V3 with AdamW on 256 tpu7x chips, sequence 4096, 8 rows a device, FSDP over all: 26.79 s a step and 612.66
  TFLOP/s a chip, 26.6 % of its peak. AI-Hypercomputer/tpu-recipes, training/ironwood/README.md and
  deepseek3-671b/4k-bf16-tpu7x-4x8x8.
- Kimi K2 with Muon on 256 tpu7x chips, sequence 1024, 16 rows a device, FSDP 64 x experts 8, tokens passed to all
  ranks of the experts: 6.43 %. AI-Hypercomputer/maxtext, pull request 3632, and tests/end_to_end/tpu/kimi/Run_Kimi.md.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

from k2jax.aot.cost.estimate import Estimate, estimate
from k2jax.aot.topology import chip_of, devices
from k2jax.config import model_preset
from k2jax.config.schema import Config, DataConfig, OptimizerConfig, ParallelConfig, TrainConfig

TOPOLOGY = "tpu7x:4x8x8"


class PublishedRun(NamedTuple):
    """A published run beside its estimate.

    Attributes:
        name: model, optimizer and sharding.
        mfu: as published.
        estimate: of the same run.
    """

    name: str
    mfu: float
    estimate: Estimate

    @property
    def ratio(self) -> float:
        """Estimated MFU over published MFU."""
        return self.estimate.roofline.mfu() / self.mfu


@functools.cache
def published_runs() -> list[PublishedRun]:
    """Both runs."""
    runs = []
    for name, model, mfu, optimizer, sequence, rows, expert in (
        ("DeepSeek-V3, AdamW, FSDP 512", "deepseek_v3", 0.2656, "adamw", 4096, 8, 1),
        ("Kimi K2, Muon, FSDP 64 x experts 8", "k2", 0.0643, "muon", 1024, 16, 8),
    ):
        slice_devices = devices(TOPOLOGY)
        config = Config(
            model=model_preset(model),
            optimizer=dataclasses.replace(OptimizerConfig(), name=optimizer),
            data=dataclasses.replace(DataConfig(), sequence_length=sequence),
            train=TrainConfig(batch_size=rows * len(slice_devices), remat="full", gradient_dtype="bfloat16"),
            parallel=ParallelConfig(expert=expert, expert_backend="dense"),
        )
        estimated = estimate(config, chip_of(TOPOLOGY), slice_devices, gather_per_layer=True)
        runs.append(PublishedRun(name, mfu, estimated))
    return runs
