"""Rows of trees against every path by itself (Tree Training): forward and backward pass, and an iteration of the loop.

The ratio to compare with stands in each name: tokens of all paths over tokens of the trees. Both sides compute the same
gradient of the same trajectories, all rows in one batch, so that costs of the size of the weights count once on both.
Trees have three levels, a sampled node on the second and on the third, and fill their rows like their paths do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import functools
from pathlib import Path
import statistics
import tempfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from k2jax.batch import PackedBatch, stack_rows
from k2jax.bench import attention
from k2jax.bench.rl_loop import SAMPLES, BenchLoop, bench_config
from k2jax.bench.rl_tasks import register
from k2jax.bench.timing import Clock, Row, interleaved, time_row
from k2jax.config import Config, PackingConfig
from k2jax.data.vocabulary import prepare_tokenizer
from k2jax.losses.registry import make_policy_loss
from k2jax.rl.packing.rows import PackedRows, pack, parts_of
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.train.program import Program
from k2jax.train.step import make_gradient_step
from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.types import ROOT
from pallas_kernels.mla_attention import mla_attention

MODEL, TREES = "micro", 4
PROMPTS, LONGEST = 8, 24  # of the iteration: prompts, and most tokens of a response
LAYOUTS = ("tree", "paths")


class TreeShape(NamedTuple):
    """A tree of three levels.

    Attributes:
        branches: children of the root, and of each of them.
        lengths: tokens of a node of each level.
    """

    branches: int
    lengths: tuple[int, int, int]


SHAPES = (TreeShape(2, (128, 64, 64)), TreeShape(4, (80, 28, 20)), TreeShape(6, (48, 29, 8)))
"""Paths hold 2, 4 and 6 times the tokens of the tree; tree and paths fill rows of 512 tokens to 99.6 % or more."""


def measure(rounds: int = 10) -> list[Row]:
    """A row for each shape of trees, and one for an iteration of the loop on answers that share their prompt."""
    register()
    config = bench_config(MODEL, LONGEST, PROMPTS)
    return [*_forward_backward(config, rounds), _iteration(config, rounds)]


def random_trees(shape: TreeShape, count: int, rng: np.random.Generator) -> list[TrainingSample]:
    """Trajectories of random tokens, each with one advantage."""
    samples = []
    for number in range(count):
        tree = Trajectory("bench", "tree", (1, number, 0), status="finished")
        root = tree.add(Node.observed(ROOT, rng.integers(0, 258, shape.lengths[0])))
        for _ in range(shape.branches):
            middle = tree.add(_sampled(root, shape.lengths[1], len(tree.nodes), rng))
            for _ in range(shape.branches):
                tree.add(_sampled(middle, shape.lengths[2], len(tree.nodes), rng))
        samples.append(TrainingSample(tree, float(rng.normal())))
    return samples


def _sampled(parent: int, count: int, turn: int, rng: np.random.Generator) -> Node:
    logprobs = rng.normal(-np.log(258), 0.1, count).astype(np.float32)
    tokens = rng.integers(0, 258, count).astype(np.int32)
    return Node(parent, tokens, np.ones(count, np.bool_), logprobs, versions=np.zeros(count, np.int64), turn=turn)


def _forward_backward(config: Config, rounds: int) -> Iterator[Row]:
    program = Program(config, jax.devices()[:1], make_policy_loss(config.rl.loss))
    gradient_step = jax.jit(make_gradient_step(config, program.layout, program.loss))
    params = program.init().params
    for shape in SHAPES:
        samples, candidates, packed = random_trees(shape, TREES, np.random.default_rng(0)), {}, {}
        for layout in LAYOUTS:
            packed[layout] = pack(samples, config.data.sequence_length, PackingConfig(layout, "paths"))
            batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], stack_rows(packed[layout].rows))
            denominators = program.loss.denominators(batch.targets)
            candidates[layout] = functools.partial(gradient_step, params, batch, denominators)
        candidates["attention"] = _attention(config, packed["paths"].rows)
        seconds = interleaved(candidates, rounds, warmup=1)
        share = config.model.layers * seconds["attention"] / seconds["paths"]
        name = f"{MODEL}, loss + gradients, {_sizes(packed)}, attention {share:.0%} of the paths' time"
        yield time_row(name, seconds["tree"], seconds["paths"], "every path by itself")


def _attention(config: Config, rows: Sequence[PackedBatch]) -> Any:
    """Forward and backward pass of one layer's attention on the paths, without its projections."""
    model, batch = config.model, stack_rows(rows)
    args = attention.inputs(model, *batch.tokens.shape)

    def attend(*args: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, stats = mla_attention(*args, exit=jnp.asarray(batch.exit), scale=attention.scale(*args[:2]))
        return out, stats.max_logit

    return functools.partial(attention.gradients(attend), *args)


def _iteration(config: Config, rounds: int) -> Row:
    """Rollouts, packing, update and weight sync; both layouts train on the same groups, in turn first and second."""
    with tempfile.TemporaryDirectory(prefix="k2jax-bench-") as folder:
        prepare_tokenizer(config.data).save(Path(folder) / "run" / "tokenizer")
        with BenchLoop(config, Path(folder)) as loop:
            rollouts, times = loop.rollouts(LONGEST, loop.client), []
            rng, packed = np.random.default_rng(0), {}
            for step in loop.run.steps():
                clock, seconds = Clock(), {}
                groups = loop.event_loop.run(rollouts.collect(step))
                shared = clock.lap()
                samples = [TrainingSample(each, float(rng.normal())) for group in groups for each in group.trajectories]
                for layout in LAYOUTS if step % 2 else LAYOUTS[::-1]:
                    clock.lap()
                    packed[layout] = pack(samples, config.data.sequence_length, PackingConfig(layout))
                    parts = parts_of(packed[layout].rows, config.train.batch_size, range(config.train.batch_size))
                    loop.run.update(parts)
                    seconds[layout] = clock.lap()
                loop.sync.push(loop.run.state.params, step)
                shared += clock.lap()
                times.append({layout: shared + each for layout, each in seconds.items()} | {"shared": shared})
                if len(times) == rounds + 1:  # the first compiles
                    break
    medians = {name: statistics.median(each[name] for each in times[1:]) for name in times[0]}
    share = 1 - medians["shared"] / medians["paths"]
    name = (
        f"{MODEL}, iteration of {PROMPTS} prompts x {SAMPLES} answers, {_sizes(packed)}, "
        f"training {share:.0%} of the paths' time"
    )
    return time_row(name, medians["tree"], medians["paths"], "every path by itself")


def _sizes(packed: dict[str, PackedRows]) -> str:
    tree, paths = packed["tree"], packed["paths"]
    return (
        f"{tree.stored_tokens} tokens in trees, {paths.stored_tokens / tree.stored_tokens:.2f} x in paths "
        f"(padding {tree.padding:.1%}, {paths.padding:.1%})"
    )
