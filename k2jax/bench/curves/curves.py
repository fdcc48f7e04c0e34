"""The curves: what is measured, at which sizes, and how a point is measured.

Costs are processor seconds of the process that does the work, which other programs on the machine change little, or
arithmetic of the analysis ahead of time where the devices are not there. Of several rounds the median counts.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from pathlib import Path
import statistics
import tempfile
import time
from typing import Any

import jax
import numpy as np

from k2jax.batch import PackedBatch, pack_row, stack_rows
from k2jax.client import Sampling
from k2jax.config import Config, DataConfig, ModelConfig, OptimizerConfig, TrainConfig, model_preset, resolve
from k2jax.config.schema import ParallelConfig
from k2jax.errors import UserError

TOKENS = 2048
"""Tokens of a training step."""
POD_CONFIG = "experiments/pretrain/k2_1t.py"
POD_TOPOLOGIES = {256: "4x8x8", 512: "8x8x8", 1024: "8x8x16", 2048: "8x16x16", 4096: "16x16x16"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """A cost against a size.

    Attributes:
        title: what costs.
        size: what grows, with its unit.
        cost: the unit of the cost.
        sizes: where it is measured, growing.
        measure: the cost at a size, given the number of rounds.
        devices: emulated devices that the process of a point has.
        expected: what a reader should expect, and why.
    """

    title: str
    size: str
    cost: str
    sizes: tuple[int, ...]
    measure: Callable[[int, int], float]
    devices: Callable[[int], int] = lambda size: 1
    expected: str


def step_of_width(width: int, rounds: int) -> float:
    """Processor seconds of a step of MuonClip of nano with another width."""
    return _step_seconds(model_of_width(width), 256, rounds)


def model_of_width(width: int) -> ModelConfig:
    """A nano whose heads, latents and feed-forward widths grow with its width; experts and layers stay."""
    nano = model_preset("nano")
    scaled = lambda size: max(8, size * width // nano.d_model // 8 * 8)  # noqa: E731
    mla = nano.mla
    latents = {name: scaled(getattr(mla, name)) for name in ("kv_lora_rank", "qk_nope_dim", "qk_rope_dim", "v_dim")}
    return dataclasses.replace(
        nano,
        d_model=width,
        dense_ffn=scaled(nano.dense_ffn),
        mla=dataclasses.replace(mla, **latents, q_lora_rank=mla.q_lora_rank and scaled(mla.q_lora_rank)),
        moe=dataclasses.replace(nano.moe, expert_ffn=scaled(nano.moe.expert_ffn)),
    )


def token_of_sequence(length: int, rounds: int) -> float:
    """Processor milliseconds of a token of nano's training in rows of a length."""
    tokens = max(TOKENS, length)
    return 1e3 * _step_seconds(model_preset("nano"), length, rounds, tokens) / tokens


def decoded_token(context: int, rounds: int) -> float:
    """Processor milliseconds of a token of nano's generation behind a prompt of a length."""
    from k2jax.inference import Engine
    from k2jax.model import model_specs
    from k2jax.params import initialize

    model, new = model_preset("nano"), 64
    params = jax.jit(lambda: initialize(model_specs(model), jax.random.key(0), model.init_std))()
    engine = Engine(model, params, slots=1, max_length=context + new + 1)
    rng = np.random.default_rng(0)

    def seconds(count: int) -> float:
        prompt = rng.integers(0, model.vocab, context).tolist()
        began = time.process_time()
        engine.generate([prompt], Sampling(max_tokens=count, temperature=0.0))
        return time.process_time() - began

    for _ in range(2):
        pairs = [(seconds(1), seconds(new + 1)) for _ in range(rounds)]  # the first time both are compiled
    return 1e3 * statistics.median(longer - shorter for shorter, longer in pairs) / new


def step_on_devices(devices: int, rounds: int) -> float:
    """Processor seconds of one step of nano whose rows are divided over emulated devices."""
    return _step_seconds(model_preset("nano"), 256, rounds, parallel=ParallelConfig(data=devices))


def step_of_a_pod(chips: int, rounds: int) -> float:
    """Chip hours of a step of Kimi K2 in the layout that the analysis' formulas find best; nothing is compiled."""
    del rounds
    from k2jax.aot import compiling, topology
    from k2jax.config.experiments import load_experiment

    topology.prepare()
    config = compiling.for_tpu(resolve(load_experiment(Path(POD_CONFIG)).get_config()))
    best = compiling.best_layouts(config, f"v5p:{POD_TOPOLOGIES[chips]}")[0]
    return best.estimate.roofline.seconds * chips / 3600


def episode_among(episodes: int, rounds: int) -> float:
    """Processor milliseconds of an episode of which so many run at a time: scheduler, workers and simulated engine."""
    del rounds
    from k2jax.bench.rollout import run_scale

    result = run_scale(episodes, kills=0)
    return 1e3 * result.processors[0] * result.seconds / episodes


def documents(count: int, rounds: int) -> float:
    """Processor seconds of the removal of near duplicates, with making the documents."""
    del rounds
    from k2jax.bench.near_duplicates import OF_A_PART, MadePart
    from k2jax.data.duplicates.removal import remove_duplicates
    from k2jax.data.duplicates.settings import DuplicateSettings

    parts = [MadePart(number) for number in range(count // OF_A_PART)]
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        remove_duplicates(parts, Path(folder), DuplicateSettings(), attributes=Path(folder))
        return time.process_time() - began


CURVES: dict[str, Curve] = {
    "model": Curve(
        title="a training step of 2,048 tokens",
        size="width of nano [numbers]",
        cost="processor s",
        sizes=(64, 96, 128, 192, 256, 384, 512),
        measure=step_of_width,
        expected="2 once products outweigh what each operation costs by itself",
    ),
    "sequence": Curve(
        title="a token of nano's training",
        size="row [tokens]",
        cost="processor ms",
        sizes=(128, 256, 512, 1024, 2048, 4096, 8192),
        measure=token_of_sequence,
        expected="0 while attention is the smaller part, then towards 1",
    ),
    "decode": Curve(
        title="a generated token of nano",
        size="context [tokens]",
        cost="processor ms",
        sizes=(64, 256, 1024, 4096, 16_384, 65_536),
        measure=decoded_token,
        expected="0 while the weights are the larger part, then towards 1",
    ),
    "devices": Curve(
        title="one step of nano, its rows divided",
        size="emulated devices",
        cost="processor s",
        sizes=(1, 2, 4, 8),
        measure=step_on_devices,
        devices=lambda size: size,
        expected="0: the work is the same; what is more are copies of the update, gathers and smaller products",
    ),
    "pod": Curve(
        title="a step of Kimi K2, best layout by formulas",
        size="v5p chips",
        cost="chip hours",
        sizes=tuple(POD_TOPOLOGIES),
        measure=step_of_a_pod,
        expected="0: the batch is the same; what is more are bubbles and exchanges",
    ),
    "episodes": Curve(
        title="an episode with a simulated engine",
        size="episodes at a time",
        cost="processor ms",
        sizes=(80, 240, 800, 2400, 8000, 24_000),
        measure=episode_among,
        expected="below 0 while starting the workers is shared by more, then 0",
    ),
    "documents": Curve(
        title="removal of near duplicates",
        size="documents",
        cost="processor s",
        sizes=(5_000, 10_000, 20_000, 50_000, 100_000, 200_000),
        measure=documents,
        expected="1",
    ),
}


def curve_of(name: str) -> Curve:
    """The curve of a name.

    Raises:
        UserError: there is none.
    """
    if name not in CURVES:
        raise UserError(f"no curve {name!r}; there are {', '.join(CURVES)}")
    return CURVES[name]


def _step_seconds(
    model: ModelConfig, length: int, rounds: int, tokens: int = TOKENS, parallel: ParallelConfig | None = None
) -> float:
    from k2jax.train.program import Program

    parallel = parallel or ParallelConfig()
    config = Config(
        model=model,
        optimizer=OptimizerConfig(name="muonclip", learning_rate=1e-3),
        data=DataConfig(sequence_length=length),
        train=TrainConfig(batch_size=tokens // length, steps=10_000),
        parallel=parallel,
    )
    program = Program(config, jax.devices())
    state, batch = program.init(), program.batch_sharding().put(_packed(model, length, tokens))
    spent = []
    for _ in range(2 + rounds):
        began = time.process_time()
        state, metrics = program.step(state, batch)
        jax.block_until_ready(metrics)
        spent.append(time.process_time() - began)
    return statistics.median(spent[2:])


def _packed(model: ModelConfig, length: int, tokens: int) -> PackedBatch:
    rows: Any = np.random.default_rng(0).integers(0, model.vocab, (tokens // length, length))
    return stack_rows([pack_row([row], length) for row in rows])
