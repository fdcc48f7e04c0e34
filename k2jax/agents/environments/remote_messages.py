"""Messages between a remote environment's client and its server: bounds, requests, steps.

Either side may be hostile. So messages are parsed within bounds, by callers in a thread, and what is read has nothing
that could not be written again: no infinite number, no half surrogate pair, no nesting without end.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Any, NamedTuple

from k2jax.agents.environment import Observation, Step
from k2jax.agents.task import Task
from k2jax.errors import InfrastructureError, UserError, abbreviate
from k2jax.files.bounded_json import BYTES_OF_A_VALUE, parse_bounded_json

PROTOCOL = "k2jax.environment.1"
"""Name and version of these messages, as a client offers it and a server chooses it (RFC 6455, section 1.9)."""
LARGEST_MESSAGE = 8 << 20
"""Bytes of a request or a reply."""
MOST_VALUES = 100_000
"""JSON values of a request, of the task in it, or of a reply."""
DEEPEST = 64
"""Levels of a message: what goes on with it is written in Python, which ends at some hundreds."""
MOST_CALLS = 256
"""Calls of tools in an action; each may have a result of 20,000 characters."""
_SEEDS = range(-(1 << 63), 1 << 64)


class EnvironmentRequest(NamedTuple):
    """What a client asks.

    Attributes:
        task: that begins an episode; None for a step.
        seed: of the episode.
        action: of the step.
        collects: asks for what the episode has left, in the place of a step.
    """

    task: Task | None = None
    seed: int = 0
    action: Mapping[str, Any] = {}
    collects: bool = False


def other_protocol(who: str) -> str:
    """What is wrong where ``who`` speaks another version of these messages, and what mends it."""
    return f"{who} does not speak {PROTOCOL}; install the same k2jax at both ends"


def memory_of(text: str) -> int:
    """What a message takes once it is parsed, at most [bytes]."""
    width = 1 if text.isascii() and "\\u" not in text else 4  # one wide character makes all of its string wide
    return width * len(text) + BYTES_OF_A_VALUE * (1 + sum(map(text.count, ",:[{")))


def write_step(step: Step) -> dict[str, Any]:
    """A step as JSON; ``read_step`` is the inverse."""
    messages = [dict(message) for message in step.observation.messages]
    return {**step._asdict(), "observation": messages, "info": dict(step.info)}


def read_step(value: Mapping[str, Any]) -> Step:
    """A step from JSON.

    Raises:
        ValueError, TypeError, KeyError: it is none.
    """
    messages = tuple(value["observation"])
    if not all(isinstance(message, dict) and _is_message(message) for message in messages):
        raise ValueError("an observation that holds something else than messages")
    if not isinstance(value["info"], dict):
        raise ValueError("an info that is no object")
    return Step(Observation(messages), value["terminated"] is True, value["truncated"] is True, value["info"])


def read_tools(value: Any) -> list[dict[str, Any]]:
    """Declarations of tools from JSON.

    Raises:
        ValueError, TypeError, KeyError: they are none.
    """
    for tool in value:
        if not isinstance(tool["function"]["name"], str):
            raise ValueError("a tool without a name")
    return list(value)


def _is_message(message: Mapping[str, Any]) -> bool:
    content, names = message.get("content"), (message.get("name"), message.get("tool_call_id"))
    parts = content if isinstance(content, list) else []
    return (
        isinstance(message.get("role"), str)
        and isinstance(content, str | list | None)
        and all(isinstance(part, dict) for part in parts)
        and all(isinstance(name, str | None) for name in names)
    )


def read_request(text: str) -> EnvironmentRequest:
    """A request of a client.

    Raises:
        UserError: it is none.
    """
    try:
        values = read_object(text)
        if values.get("method") == "reset":
            return _reset(values)
        if values.get("method") == "collect":
            return EnvironmentRequest(collects=True)
        action = values["action"] if values["method"] == "step" else None
        calls = action.get("tool_calls") or [] if isinstance(action, dict) else None
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise ValueError("it is no reset with a task and a seed, no step with an action and no collect")
    except KeyError as error:
        raise UserError(f"a request without {error}") from None
    except ValueError as error:
        raise UserError(f"a request that is none: {abbreviate(str(error), 200)}") from None
    if len(calls) > MOST_CALLS:
        raise InfrastructureError(f"an answer with {len(calls):,} calls of tools is too long for a remote environment")
    return EnvironmentRequest(action=action)


def _reset(values: Mapping[str, Any]) -> EnvironmentRequest:
    task, seed = values["task"], values["seed"]
    if type(seed) is not int or seed not in _SEEDS:
        raise ValueError("its seed is no integer of 64 bits")
    read_object(task)
    return EnvironmentRequest(Task.from_json(task), seed)


def read_object(text: Any) -> dict[str, Any]:
    """A reply of a server, or another JSON object within bounds, of which everything can be written again.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(text, str):
        raise ValueError("it is no text of JSON")
    value = parse_bounded_json(text, MOST_VALUES)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    level = [value]
    for _ in range(DEEPEST):
        level = [part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole)]
        level = [part for part in level if isinstance(part, dict | list)]
    if level:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # ValueError: an infinite number, half a character
    return value


def write_message(values: Mapping[str, Any]) -> str:
    """A request or a reply as text.

    Raises:
        ValueError: it is not JSON.
        InfrastructureError: it is too long.
    """
    try:
        text = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if (size := len(text.encode())) > LARGEST_MESSAGE:
        raise InfrastructureError(f"a message of {size:,} bytes is too long for a remote environment")
    return text
