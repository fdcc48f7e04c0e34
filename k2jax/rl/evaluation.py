"""Held-out accuracy of the model of a step: greedy, and of several samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
import re
from typing import Any

import numpy as np

from k2jax.agents.mixture import TaskMixture
from k2jax.agents.roles import RoleClient
from k2jax.config.schema import Config, ModelConfig
from k2jax.convert.loading import from_pretrained, tokenizer_of
from k2jax.evaluate.pass_at_k import average_at_k, summarize_samples
from k2jax.inference import LockstepClient, engine_of
from k2jax.inference.roles import open_roles, roles_in_lockstep
from k2jax.rl.episodes import Episodes
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.groups import PromptGroup
from k2jax.rl.inputs import open_images, open_scorer
from k2jax.text.chat import configured_chat
from k2jax.text.tokenizer import Tokenizer


class HeldOutTasks:
    """Evaluates on the first held-out tasks of the mixture, with the run's own engine and verifiers.

    A response counts as right where its reward is at least ``config.rl.correct_reward``; one whose verdict the
    infrastructure withheld does not count at all.
    """

    def __init__(self, config: Config, mixture: TaskMixture, episodes: Episodes):
        self._config, self._episodes = config, episodes
        self._prompts = mixture.held_out(config.rl.eval_prompts) if config.rl.eval_prompts else []

    def is_due(self, step: int) -> bool:
        """Whether a step is evaluated: at the interval, before the first one and after the last."""
        last = self._config.train.steps
        return bool(self._prompts) and (step in (0, last) or step % self._config.eval.every == 0)

    async def sample(self, step: int) -> list[PromptGroup]:
        """Answers to every held-out prompt: a greedy one, then ``config.rl.eval_samples`` sampled ones."""
        samples = self._config.rl.eval_samples
        groups = [
            PromptGroup(-1, (step, place), prompt, [None] * (1 + samples), purpose="eval")
            for place, prompt in enumerate(self._prompts)
        ]
        await self._episodes.run(step, groups, greedy=1)
        return groups

    def record(self, groups: Sequence[PromptGroup]) -> dict[str, float]:
        """Metrics ``eval/...``: greedy accuracy, Avg@k, pass@k and pass^k with 95 % intervals, and response lengths.

        A metric of which no verdict is left is left out. ``eval/masked`` counts the samples without a verdict, where
        there are any.
        """
        first = [group for group in groups if group.trajectories[0].reward is not None]
        k = self._config.rl.eval_samples
        drawn, right = [], []
        for group in groups:
            scored = [i for i in range(1, k + 1) if group.trajectories[i].reward is not None]
            drawn.append(len(scored))
            right.append(sum(self.is_right(group, i) for i in scored))
        record, shares = {}, {}
        if first:
            shares["greedy"] = average_at_k([self.is_right(group, 0) for group in first], [1] * len(first), 1)
        if max(drawn) >= k:
            shares |= summarize_samples(np.array(right), np.array(drawn), k)
        if without := sum(each.reward is None for group in groups for each in group.trajectories):
            record["eval/masked"] = float(without)
        for name, share in shares.items():
            record |= {f"eval/{name}": share.value, f"eval/{name}/low": share.low, f"eval/{name}/high": share.high}
        record["eval/length"] = float(np.mean([group.trajectories[0].sampled_tokens for group in groups]))
        kinds = defaultdict(list)
        for group in first:
            kinds[group.prompt.task.domain].append(self.is_right(group, 0))
        return record | {f"eval/greedy/{domain}": float(np.mean(marks)) for domain, marks in sorted(kinds.items())}

    def is_right(self, group: PromptGroup, sample: int) -> bool:
        """Whether a sample that was scored is right."""
        return group.trajectories[sample].reward.value >= self._config.rl.correct_reward


def held_out_words(step: int, record: Mapping[str, float]) -> str:
    """An evaluation in a line: greedy accuracy, the mean over samples, and masked ones, of ``HeldOutTasks.record``."""
    shown = [name for name in record if name == "eval/greedy" or re.fullmatch(r"eval/avg@\d+", name)]
    shares = ", ".join(f"{name.removeprefix('eval/')} {record[name]:.3f}" for name in shown)
    without = f" ({record['eval/masked']:.0f} samples were masked)" if "eval/masked" in record else ""
    return f"step {step:,}: held-out accuracy {shares or 'unknown: no answer got a verdict'}{without}"


def evaluate_checkpoint(config: Config, checkpoint: str) -> tuple[HeldOutTasks, list[PromptGroup]]:
    """Samples answers of any checkpoint to the held-out tasks of ``config.rl``, with a new engine.

    Args:
        config: its ``rl`` group and ``data.chat_format`` are read; the model is the checkpoint's.
        checkpoint: a checkpoint argument.

    Returns:
        What makes a record of groups, and the groups: each has a greedy answer and ``rl.eval_samples`` others.

    Raises:
        UserError: a mistake in the tasks, or a checkpoint that cannot be read.
    """
    model, params = from_pretrained(checkpoint)
    return evaluate_params(config, model.config, params, tokenizer_of(checkpoint))


def evaluate_params(
    config: Config, model: ModelConfig, params: Any, tokenizer: Tokenizer
) -> tuple[HeldOutTasks, list[PromptGroup]]:
    """``evaluate_checkpoint`` of weights in memory, those of a mean of checkpoints for instance.

    Args:
        config: its ``rl`` group and ``data.chat_format`` are read.
        model: the architecture.
        params: parameter tree of ``model_specs(model)``, and of a tower where the model has one; it is copied.
        tokenizer: its vocabulary.
    """
    client, chat = _new_engine(config, model, params, tokenizer), configured_chat(tokenizer, config.data.chat_format)
    last = max(1, config.train.steps)  # of roles that change, those of the end of the run answer
    roles = roles_in_lockstep(client, chat, tokenizer, open_roles(config, tokenizer, mesh=None, iteration=last))
    mixture = TaskMixture(config.rl.tasks, config.train.seed)
    with open_scorer(config, None, mixture) as scorer:
        media = open_images(model, config.data.images, tokenizer)
        episodes = Episodes(config, client, chat, tokenizer, scorer, media=media, roles=roles)
        held_out = HeldOutTasks(config, mixture, episodes)
        with EventLoop() as event_loop:
            return held_out, event_loop.run(held_out.sample(0))


def open_policy(config: Config, checkpoint: str) -> RoleClient:
    """A new engine with the weights of a checkpoint, its conversations and its vocabulary."""
    (model, params), tokenizer = from_pretrained(checkpoint, vision=False), tokenizer_of(checkpoint)
    client = _new_engine(config, model.config, params, tokenizer)
    return RoleClient(client, configured_chat(tokenizer, config.data.chat_format), tokenizer)


def _new_engine(config: Config, model: ModelConfig, params: Any, tokenizer: Tokenizer) -> LockstepClient:
    rollout = config.rl.rollout
    return LockstepClient(engine_of(model, params, tokenizer, slots=rollout.slots, max_length=rollout.max_length))
