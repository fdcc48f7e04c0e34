"""The white-box scaffold: the model answers, the environment carries out its calls of tools and shows the results."""

from __future__ import annotations

import dataclasses

from k2jax.agents.environment import OUTCOME, Environment, Step
from k2jax.agents.episode import Rollout
from k2jax.agents.errors import EpisodePausedError, EpisodeTruncatedError, ReplayError
from k2jax.agents.scaffolds import context
from k2jax.agents.toolsets.image_results import readable
from k2jax.client import Sampling, TokenConstraint
from k2jax.errors import UserError
from k2jax.text.call_grammars import optional_calls, tool_rules
from k2jax.trajectory.types import NO_TURN, ROOT


class ChatScaffold:
    """Answers and observations in turn, until the environment ends the episode or a budget is used up.

    What an episode has left in its environment when a budget ends it is collected for its verifier, as at any other
    end, unless its task says that such episodes are not judged.

    Args:
        context: see ``k2jax.agents.scaffolds.context``.
        tokens: length of a context from which on it is managed; 0 is no threshold.
        constrained: whether calls of tools obey the chat format and the tools' schemas by a mask over the logits.

    Raises:
        UserError: a method without a threshold.
    """

    def __init__(self, context: context.Method = "none", tokens: int = 0, constrained: bool = False):
        if context != "none" and tokens < 1:
            raise UserError(f"the scaffold 'chat' needs a threshold: write chat context={context} tokens=4096")
        self._context, self._threshold, self._constrained = context, tokens, constrained

    async def run(self, rollout: Rollout, environment: Environment, sampling: Sampling) -> None:
        """See ``k2jax.agents.scaffolds``."""
        trajectory, task, budget = rollout.trajectory, rollout.task, rollout.task.budget
        if self._context != "none" and budget.steps is None and budget.tokens is None:
            raise UserError(
                f"the task {task.id!r} has neither a budget of steps nor of tokens, and with "
                f"context={self._context} no length ends its episode; set config.rl.tasks.*.steps"
            )
        try:
            node, step = await rebuild(rollout, environment)
            asked = _with_calls(rollout, sampling) if self._constrained and rollout.tools else sampling
            if trajectory.nodes[-1].finish == "length":  # what it had left could not be collected
                raise EpisodeTruncatedError
            while not (step.terminated or step.truncated):
                node = await context.manage(rollout, node, self._context, self._threshold, sampling)
                node = await rollout.generate(node, asked)
                if trajectory.nodes[node].finish == "length":
                    raise EpisodeTruncatedError
                step = await environment.step(trajectory.nodes[node].message)
                if not (step.terminated or step.truncated):
                    node = rollout.observe(node, step.observation.messages)
            trajectory.status = "truncated" if step.truncated else "finished"
            if step.info:
                trajectory.metadata[OUTCOME] = dict(step.info)
        except EpisodeTruncatedError:
            trajectory.status = "truncated"
            if task.judge_truncated and (left := await environment.collect()):
                trajectory.metadata[OUTCOME] = dict(left)
        except EpisodePausedError:
            trajectory.status = "unfinished"


def _with_calls(rollout: Rollout, sampling: Sampling) -> Sampling:
    """Sampling of messages whose calls of tools obey their schemas, while their text is free."""
    before = rollout.chat.reasoning_rule(rollout.task.thinking)
    rules = tool_rules(rollout.chat, rollout.tools)
    return dataclasses.replace(sampling, constraint=TokenConstraint(*optional_calls(rules, before)))


async def rebuild(rollout: Rollout, environment: Environment) -> tuple[int, Step]:
    """Begins the episode, or replays the actions that it records; returns its last node and step.

    What the context's management added is no action: the environment never saw it.

    Raises:
        ReplayError: the environment shows something else than it did.
        UserError: the task has tools, and the environment has none.
    """
    trajectory, task = rollout.trajectory, rollout.task
    observation = await environment.reset(task, trajectory.metadata["seed"])
    rollout.tools = environment.tools
    if task.tools and not rollout.tools:
        raise UserError(
            f"the task {task.id!r} needs the toolset {task.tools[0]!r}, and its environment {task.environment!r} has "
            "no tools; the environment 'tools' has"
        )
    step, shown = Step(observation), list(observation.messages)
    if not trajectory.nodes:
        return rollout.observe(ROOT, shown), step
    managed = context.managed_nodes(trajectory)
    for index, node in enumerate(trajectory.nodes):
        if index in managed:
            continue
        if node.turn == NO_TURN:
            if not shown or dict(readable(shown.pop(0), rollout.media)) != node.message:
                raise ReplayError("the environment, rebuilt by replay, does not show what the episode records")
        elif node.finish == "stop":
            step = await environment.step(node.message)
            shown = list(step.observation.messages)
    last = context.head(trajectory)
    if shown and not (step.terminated or step.truncated):
        last = rollout.observe(last, shown)
    return last, step
