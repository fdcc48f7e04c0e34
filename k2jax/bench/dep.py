"""The decoupled encoder (Kimi K2.5, section 4.5.1): what images cost a step, and how evenly devices share them.

The first row is timed: a step of the nano preset with and without images.

The next are counted: FLOPs of the tower's forward pass on drawn sizes with a long tail, the largest device's over the
mean. The baseline computes images where their tokens are.

The next are arithmetic (nothing is run): Kimi K2.5's step on v5p:8x8x16, laid out as in experiments/pretrain/k2_1t.py,
``efficiency = time on text alone / time on as many tokens of which some stand for images``. The pipeline's table is
replayed with the times that ``python -m k2jax.aot`` estimates for a chunk of layers; a tick takes as long as its
slowest stage. Decoupled, all devices compute forward, forward again and backward of the tower before and after the
pipeline, rows of padding included, gather the features and reduce their gradient. Co-located, stage 0 computes a
micro-batch's images when it enters and again when its gradient leaves, without recomputing and without padding.

What the tower's backward pass reads of its forward pass is counted from the traced program: decoupled, a device holds
that of one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses
import time

import jax
import numpy as np

from k2jax.aot import topology
from k2jax.aot.compiling import for_tpu
from k2jax.aot.cost.estimate import Estimator, place
from k2jax.aot.cost.expert_rows import BFLOAT16
from k2jax.aot.cost.roofline import device_seconds
from k2jax.aot.cost.tower_cost import residual_bytes
from k2jax.batch import PackedBatch, pack_row, stack_rows
from k2jax.bench.timing import Row, cost_row, interleaved, rate_row, time_row
from k2jax.config import Config, defaults, resolve
from k2jax.config.presets import vision_preset
from k2jax.config.schema import VisionConfig
from k2jax.data.images.patch_packing import GROUP, PatchChunk, pack_rows
from k2jax.data.images.placement import PatchRows, chunk_load, place_chunks
from k2jax.losses import NLL
from k2jax.parallel.schedule import Schedule, build_pipeline_schedule
from k2jax.train.program import Program

TOPOLOGY = "v5p:8x8x16"
LARGEST = 4096  # patches of the largest image
PASSES = 4  # a forward pass, the same again, and a backward pass of twice as much
SHARES = (0.1, 0.5)  # of the tokens that stand for images


def measure(rounds: int = 10) -> list[Row]:
    """Rows of one device's time, of balance, of efficiency and of memory."""
    topology.prepare()
    return [_one_device(rounds), *_balance(), *_efficiency(), _memory()]


def image_sizes(rng: np.random.Generator, count: int) -> list[int]:
    """Patches of photographs, icons, pages and screenshots: log-normal, at most ``LARGEST``, multiples of 4."""
    patches = np.clip(np.exp(rng.normal(5.5, 1.3, count)), GROUP, LARGEST)
    return (patches // GROUP * GROUP).astype(int).tolist()


def drawn_rows(rng: np.random.Generator, rows: int, features: float, length: int) -> list[list[int]]:
    """Patches of the images of each row of tokens: images go from row to row, until there are ``features`` a row.

    Args:
        rng: draws the images.
        rows: of tokens.
        features: wanted for each row, on average.
        length: most patches of a row; an image that does not fit is passed over.
    """
    drawn: list[list[int]] = [[] for _ in range(rows)]
    room, missing = np.full(rows, length), rows * features * GROUP
    while missing > 0:
        for row, size in enumerate(image_sizes(rng, rows)):
            if size <= room[row] and missing > 0:
                drawn[row].append(size)
                room[row] -= size
                missing -= size
    return drawn


def device_loads(filled: list[list[int]], sizes: list[int], devices: int, vision: VisionConfig) -> np.ndarray:
    """FLOPs of the tower on each device, ``[devices]``: forward, of what is no padding."""
    rows = [sum(chunk_load(sizes[number], vision) for number in row) for row in filled]
    return np.array(rows).reshape(devices, -1).sum(1)


def replay(schedule: Schedule, forward: float, backward: float, entering: np.ndarray, leaving: np.ndarray) -> float:
    """Seconds of a pipeline's table whose stage 0 also works on micro-batches that enter and leave.

    Args:
        schedule: the table.
        forward: seconds of a chunk.
        backward: the same.
        entering: ``[micro-batches]``, seconds of stage 0 where a micro-batch is embedded.
        leaving: the same where its embedding's gradient is computed.
    """
    cells = forward * (schedule.table["forward"] >= 0) + backward * (schedule.table["backward"] >= 0)
    for column, seconds in ((schedule.embed, entering), (schedule.embed_backward, leaving)):
        cells[:, 0] += np.where(column >= 0, seconds[np.maximum(column, 0)], 0.0)
    return float(cells.max(1).sum())


def _balance() -> Iterator[Row]:
    vision, rng = vision_preset("moonvit"), np.random.default_rng(0)
    for devices, each in ((8, 16), (64, 16), (1024, 4)):  # the last is Kimi K2.5's batch
        own = drawn_rows(rng, each * devices, 400, LARGEST)
        sizes = [size for row in own for size in row]
        shape = PatchRows(len(own), len(own), LARGEST, devices)
        before = time.process_time()
        filled = place_chunks(own, shape, vision)
        seconds = time.process_time() - before
        ours = device_loads(filled, sizes, devices, vision)
        numbers = iter(range(len(sizes)))
        theirs = device_loads([[next(numbers) for _ in row] for row in own], sizes, devices, vision)
        spread = [float(loads.max() / loads.mean()) for loads in (ours, theirs)]
        name = (
            f"tower's work, largest device over the mean, {len(sizes)} images on {devices} devices, placed in "
            f"{seconds:.1f} s of a core"
        )
        yield cost_row(name, *spread, "x", "images where their tokens are", device="counted")


def _efficiency() -> Iterator[Row]:
    config, chip, vision = k2_config(), topology.chip_of(TOPOLOGY), vision_preset("moonvit")
    estimator = Estimator(config, place(config, chip, topology.devices(TOPOLOGY)))
    alone, _, last, _ = estimator.work()
    forward, backward = (max(device_seconds(chip, work.flops, work.bytes)) for work in (alone, last))
    parallel, count = config.parallel, config.train.micro_batches
    schedule = build_pipeline_schedule(parallel.stage, parallel.virtual_stages, estimator.layout.chunks, count)
    nothing = np.zeros(count)
    pipeline = replay(schedule, forward, backward, nothing, nothing)
    text = estimator.estimate().roofline.seconds
    devices, groups = estimator.layout.mesh.size, estimator.layout.mesh.size // parallel.stage
    rate = 1 / device_seconds(chip, 1.0, 0.0)[0]
    for share in SHARES:
        features = share * config.data.sequence_length
        length = max(LARGEST, int(1.5 * features * GROUP))
        own = drawn_rows(np.random.default_rng(1), config.train.batch_size, features, length)
        loads = np.array([sum(chunk_load(size, vision) for size in row) for row in own])
        padding = len(own) * length - sum(map(sum, own))
        # Placed on fewer devices at a time; rows of padding take the tower's products, not its attention.
        work = (loads.sum() + padding * chunk_load(1, vision)) / devices
        features = len(own) * length // GROUP // parallel.stage * config.model.d_model * BFLOAT16
        network, axes = estimator.network, ("data", "expert")
        moved = network.collective("all-gather", axes, features).seconds
        moved += network.collective("reduce-scatter", axes, 2 * features).seconds
        decoupled = text + PASSES * work / rate + moved
        slowest = loads.reshape(count, groups, -1).sum(-1).max(-1) / rate  # of a micro-batch, among stage 0's devices
        located = text - pipeline + replay(schedule, forward, backward, slowest, 2 * slowest)
        name = f"efficiency of Kimi K2.5's step, {share:.0%} of the tokens are images"
        pair = text / decoupled, text / located
        device = f"estimated for {TOPOLOGY}"
        yield rate_row(name, *pair, "of text", "the tower in stage 0", device=device)


def _memory() -> Row:
    """What a device holds of the tower while the decoder runs, and one row at a time in its own backward pass."""
    config = k2_config()
    rows = config.train.batch_size // len(topology.devices(TOPOLOGY))
    one = residual_bytes(dataclasses.replace(config.model, vision=vision_preset("moonvit")), LARGEST) / 1e9
    name = f"residuals of K2.5's tower on a device, {rows} rows of {LARGEST:,} patches"
    return cost_row(name, one, rows * one, "GB", "kept while the decoder runs", device=f"traced for {TOPOLOGY}")


def k2_config() -> Config:
    """The model, batch and layout of experiments/pretrain/k2_1t.py."""
    config = defaults("pretrain", model="k2")
    config.data.sequence_length = 4096
    config.train.batch_size, config.train.micro_batches = 16384, 256
    parallel = {"stage": 16, "virtual_stages": 4, "expert": 16, "expert_chunks": 2}
    config.parallel.update(parallel)
    return for_tpu(resolve(config))


def _one_device(rounds: int) -> Row:
    """A step with 96 of 256 tokens from images, beside a step of the same model without a tower."""
    seconds = interleaved({name: _stepper(name) for name in ("nano_vision", None)}, rounds, warmup=1)
    name = "step of nano, 8 rows of 256 tokens, 37 % of them from images"
    return time_row(name, seconds["nano_vision"], seconds[None], "text alone")


def _stepper(vision: str | None) -> Callable[[], jax.Array]:
    config = defaults("pretrain", model="nano", vision=vision)
    config.data.sequence_length, config.train.batch_size = 256, 8
    config.train.steps = 1000
    config = resolve(config)
    program = Program(config, jax.devices()[:1], NLL())
    batch = program.batch_sharding().put(_batch(config))
    state = [program.init()]

    def step() -> jax.Array:
        state[0], metrics = program.step(state[0], batch)
        return metrics.loss

    return step


def _batch(config: Config) -> PackedBatch:
    """Rows of random tokens; with a tower, six images of 8 x 8 patches in each."""
    rng, vision, rows = np.random.default_rng(0), config.model.vision, 8
    batch = stack_rows([pack_row([rng.integers(2, 258, 256)], 256) for _ in range(rows)])
    if not vision.layers:
        return batch
    pixels = 3 * vision.patch**2
    chunks = [PatchChunk(rng.normal(size=(64, pixels)).astype(np.float32), (1, 8, 8)) for _ in range(6 * rows)]
    filled = np.arange(6 * rows).reshape(rows, 6).tolist()
    packed = pack_rows(chunks, filled, length=6 * 64, patch=vision.patch)
    feature = np.full((rows, 256), -1, np.int32)
    feature[:, 4 : 4 + 6 * 16] = np.concatenate(packed.features).reshape(rows, -1)
    return batch.replace(media=feature, patches=packed.batch)
