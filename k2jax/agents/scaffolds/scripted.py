"""Episodes that a program plays in the place of a model: what bounds a task from above (oracle) and below (null)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
import json
from typing import Any

import numpy as np

from k2jax.agents.environment import OUTCOME, Environment, Message, Step
from k2jax.agents.task import Task
from k2jax.errors import InfrastructureError
from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.types import ROOT

Policy = Callable[[Task, Sequence[Message]], Message | Awaitable[Message]]
"""The next message of the assistant, given the task and the conversation so far; of a model it is awaited."""
MOST_STEPS = 500
"""Steps of an episode whose task has no budget of them."""


def null_policy(task: Task, messages: Sequence[Message]) -> Message:
    """Says nothing and calls nothing."""
    return said("")


def said(content: str) -> dict[str, Any]:
    """A message of the assistant without calls."""
    return {"role": "assistant", "content": content}


def called(name: str, content: str = "", **arguments: Any) -> dict[str, Any]:
    """A message of the assistant with one call."""
    return called_all([(name, arguments)], content)


def called_all(calls: Sequence[tuple[str, Mapping[str, Any]]], content: str = "") -> dict[str, Any]:
    """A message of the assistant with several calls, each a name and arguments."""
    written = [
        {"id": str(number), "type": "function", "function": {"name": name, "arguments": json.dumps(dict(arguments))}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}


def turn_of(messages: Sequence[Message]) -> int:
    """How many messages of a conversation the assistant wrote."""
    return sum(message["role"] == "assistant" for message in messages)


def play_actions(actions: Sequence[Message], messages: Sequence[Message]) -> Message:
    """The next of a list of actions; past its end, a message without calls."""
    turn = turn_of(messages)
    return actions[turn] if turn < len(actions) else said("")


async def play(task: Task, environment: Environment, policy: Policy, seed: int = 0) -> Trajectory:
    """Plays an episode to its end.

    Args:
        task: what is asked; its budget of steps holds, and one of tokens does not.
        environment: closed at the end, whatever happens.
        policy: what the assistant says.
        seed: of the environment.

    Returns:
        The trajectory, whose nodes have messages and no tokens: verifiers can score it, nobody can train on it.
    """
    trajectory = Trajectory(task.id, task.domain, (0, 0, 0), metadata={"seed": seed})
    environment.services = environment.services._replace(metadata=trajectory.metadata)
    messages: list[Message] = []
    node, limit = ROOT, task.budget.steps or MOST_STEPS
    try:
        step = Step(await environment.reset(task, seed))
        while not (step.terminated or step.truncated):
            for message in step.observation.messages:
                node = trajectory.add(Node.observed(node, (), dict(message)))
                messages.append(message)
            if turn_of(messages) >= limit:
                trajectory.status = "truncated"
                if task.judge_truncated and (left := await environment.collect()):
                    trajectory.metadata[OUTCOME] = dict(left)
                return trajectory
            action = policy(task, messages)
            action = await action if isinstance(action, Awaitable) else action
            node = trajectory.add(acted(node, turn_of(messages), action))
            messages.append(action)
            step = await environment.step(action)
        trajectory.status = "truncated" if step.truncated else "finished"
        if step.info:
            trajectory.metadata[OUTCOME] = dict(step.info)
    except InfrastructureError as error:
        trajectory.status, trajectory.error = "masked", f"{type(error).__name__}: {error}"
    finally:
        await environment.close()
    return trajectory


def acted(parent: int, turn: int, message: Message) -> Node:
    """The node of an assistant's message of which no tokens are known."""
    empty = np.zeros(0, np.int32)
    floats, versions = empty.astype(np.float32), empty.astype(np.int64)
    return Node(
        parent, empty, empty.astype(bool), floats, versions=versions, turn=turn, finish="stop", message=dict(message)
    )


Script = Generator[Message, list[str], None]
"""A policy as a program: it yields actions and gets the texts of what each was answered with."""


def scripted(script: Callable[[Task], Script]) -> Policy:
    """The policy of a program; past the program's end it says nothing.

    The program is run again for every action, so that the policy depends on the conversation alone.
    """

    def policy(task: Task, messages: Sequence[Message]) -> Message:
        running = script(task)
        try:
            action = next(running)
            answered: list[str] | None = None
            for message in messages:
                if message["role"] == "assistant":
                    if answered is not None:
                        action = running.send(answered)
                    answered = []
                elif answered is not None:
                    answered.append(str(message.get("content") or ""))
            return action if answered is None else running.send(answered)
        except StopIteration:
            return said("")

    return policy
