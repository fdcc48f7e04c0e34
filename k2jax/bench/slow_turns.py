"""Tasks whose environment takes its time, for benchmarks of what waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
import random
import string
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from k2jax.agents.environment import Environment, Message, Observation, Step
from k2jax.agents.registry import datasets, environments, toolsets, verifiers
from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.config import Config, defaults, resolve, task
from k2jax.data.vocabulary import prepare_tokenizer
from k2jax.rl.policy import Policy
from k2jax.text.chat import configured_chat
from k2jax.train.run import Run

DATASET = "bench_slow_turns"
ENVIRONMENT = "bench_slow_turns"
TOOLS = "bench_fixed_time"
COUNT = 4096
END_NORM = 5.0
"""Norm of the end token's row of the head: an answer of a random model then ends after some tokens."""


def register() -> None:
    """Makes dataset, environment, tools and verifiers known to this process."""
    datasets.add(DATASET, f"{__name__}:SlowTasks")
    environments.add(ENVIRONMENT, f"{__name__}:SlowTurns")
    toolsets.add(TOOLS, f"{__name__}:FixedTimeTools")
    toolsets.add("simulated", "k2jax.agents.collect.simulated:SimulatedTools")
    verifiers.add("share_of_ascii", "k2jax.bench.rl_tasks:share_of_ascii")


class Times:
    """How long the steps of the environments of this process take.

    Attributes:
        factor: of every drawn time; an iteration that compiles needs no slow tools.
        fixed: times that the next steps take in the place of drawn ones [s].
    """

    factor: float = 1.0
    fixed: ClassVar[list[float]] = []


class SlowTasks:
    """Prompts of eight random letters, or of so many as ``tools`` need.

    Args:
        turns: answers of an episode.
        seconds: mean time of a step of the environment [s].
        tool: mean time of a call of the simulated tool; 0 are tasks of ``turns`` without tools [s].
        split: the splits have other letters.
    """

    def __init__(self, turns: int = 8, seconds: float = 1.0, tool: float = 0.0, split: Split = "train"):
        self._metadata, self._tool, self._split = {"turns": turns, "seconds": seconds}, tool, split

    def load(self) -> Iterator[Task]:
        """The tasks, always the same."""
        rng = random.Random(self._split)
        acts = {"environment": "tools", "tools": (f"simulated seconds={self._tool}",)}
        named = acts if self._tool else {"environment": ENVIRONMENT, "metadata": self._metadata}
        for number in range(COUNT):
            letters = "".join(rng.choices(string.ascii_lowercase, k=8))
            messages = ({"role": "user", "content": letters},)
            yield Task(f"{self._split}/{number}", "slow", messages, "share_of_ascii", **named)


class SlowTurns(Environment):
    """Answers every message after a time that is drawn from an exponential distribution."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """The instruction, at once."""
        self._left, self._seconds = task.metadata["turns"], task.metadata["seconds"]
        self._drawn = np.random.Generator(np.random.SFC64(seed))
        return Observation(task.instruction)

    async def step(self, action: Message) -> Step:
        """Another letter, after the drawn time."""
        self._left -= 1
        drawn = Times.factor * self._seconds * self._drawn.exponential()
        await asyncio.sleep(Times.fixed.pop() if Times.fixed else drawn)
        return Step(Observation(({"role": "user", "content": "b"},)), terminated=not self._left)


class FixedTimeTools(FunctionTools):
    """The toolset of one tool, which always takes as long.

    Args:
        seconds: time of a call [s].
    """

    def __init__(self, seconds: float = 0.1):
        super().__init__([self.rest], concurrent=True)
        self._seconds = seconds

    async def rest(self) -> str:
        """Rests."""
        await asyncio.sleep(self._seconds)
        return "rested"


def slow_config(*, options: tuple[str, ...], steps: int, max_tokens: int = 64, **rollout: object) -> Config:
    """A run of reinforcement learning of a model of two layers on these tasks.

    Args:
        options: of the dataset.
        steps: iterations.
        max_tokens: of an answer.
        rollout: keys of ``rl.rollout``.
    """
    config = defaults("rl")
    config.model.update({"layers": 2, "d_model": 32, "heads": 2, "dense_ffn": 48, "vocab": 258})
    config.model.mla.update({"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_dim": 8, "qk_rope_dim": 4, "v_dim": 8})
    config.model.moe.update({"expert_ffn": 16, "experts": 4, "active_experts": 2})
    config.data.tokenizer.kind = "bytes"
    config.data.chat_format = "compact"
    del config.rl.tasks.characters
    config.rl.tasks.slow = task(dataset=DATASET, options=options, max_tokens=max_tokens)
    config.rl.rollout.update(rollout)
    config.data.sequence_length = config.rl.rollout.max_length
    config.rl.update({"updates": 1, "eval_prompts": 0})
    config.rl.scoring.workers = 1
    config.train.update({"batch_size": 8, "steps": steps})
    config.checkpoint.every = 10 * steps
    config.eval.every = 10 * steps
    config.log.plots_every = 10 * steps
    config.log.tensorboard = False
    return resolve(config)


def answer_briefly(run: Run, policy: Policy) -> None:
    """Lets the random model of a run that begins end its answers after some tokens, where it would after hundreds."""
    end = configured_chat(prepare_tokenizer(run.config.data), run.config.data.chat_format).end
    head = run.state.params["head"]
    row = head[end] * (END_NORM / jnp.linalg.norm(head[end]))
    params = {**run.state.params, "head": jax.device_put(head.at[end].set(row), head.sharding)}
    run.state = run.state.replace(params=params)
    policy.push(params, run.start)
