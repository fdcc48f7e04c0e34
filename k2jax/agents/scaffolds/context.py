"""Management of long contexts: past a threshold, the episode continues in a new branch of its tree with less history.

| method | what is left past the threshold |
| --- | --- |
| `none` | everything: an overflow ends the episode, as a failure |
| `hide_tool_result` | everything but the results of tools before the last round; thoughts and calls stay |
| `discard_all` | what the system and the user said |
| `summary` | the instruction, and a summary that the model itself writes |

Source: Kimi K2.5, appendix E.6. Nothing leaves the tree: the old context stays as it was sampled, and the new one is a
path from the last node that both share. What the model sampled is copied as its ids, which are context there and are
not trained on a second time.

The trajectory's metadata record every change as ``{"method", "begin", "end", "head"}`` under ``context``: it added the
nodes from ``begin`` to before ``end``, and the episode continued at ``head``. While a summary is being written, there
is no ``end`` (null).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from k2jax.agents.episode import Rollout
from k2jax.agents.errors import EpisodeTruncatedError
from k2jax.client import Sampling
from k2jax.trajectory import Trajectory
from k2jax.trajectory.answers import is_answer
from k2jax.trajectory.types import NO_TURN, ROOT

Method = Literal["none", "hide_tool_result", "discard_all", "summary"]
HIDDEN = "[this result is no longer shown]"
"""Stands where the result of a tool was."""
ASK = (
    "Your context is full. Write a summary of what you were asked, what you have found out and what is left to do; you "
    "will go on with the summary alone."
)
SUMMARY = "Summary of your work so far:\n"
_KEY = "context"


class _Part(NamedTuple):
    """A part of a context: a node, or of a new one a message that is to become a node."""

    node: int | None
    message: Mapping[str, Any]
    is_answer: bool = False


async def manage(rollout: Rollout, node: int, method: Method, threshold: int, sampling: Sampling) -> int:
    """The node from which an episode continues: this one, or the last of a new branch.

    Args:
        rollout: the episode, which waits for the model's next message.
        node: its last node.
        method: see the module.
        threshold: tokens of a context that are not yet too many; 0 is any number.
        sampling: of a summary.

    Raises:
        EpisodeTruncatedError: the context is over the threshold, and nothing can be left out.
        EpisodePausedError: as of ``Rollout.generate``, while a summary is being written.
    """
    trajectory = rollout.trajectory
    if _is_open(trajectory):
        return await _summarise(rollout, sampling)
    if not threshold or trajectory.nodes[node].turn != NO_TURN or len(trajectory.path_tokens(node)) <= threshold:
        return node
    if _is_new(trajectory, node):
        return node
    if method == "hide_tool_result":
        return _rebranch(rollout, node, _without_results(trajectory, node), method)
    if method == "discard_all":
        kept = [part for part in _parts(trajectory, node) if not part.is_answer and part.message["role"] != "tool"]
        if len(kept) < len(trajectory.path(node)):
            return _rebranch(rollout, node, kept, method)
    if method == "summary" and any(part.is_answer for part in _parts(trajectory, node)):
        _events(trajectory).append({"method": method, "begin": len(trajectory.nodes), "end": None, "head": node})
        _branch(rollout, node, [*_parts(trajectory, node), _Part(None, {"role": "user", "content": ASK})])
        return await _summarise(rollout, sampling)
    raise EpisodeTruncatedError(f"a context of more than {threshold} tokens")


def head(trajectory: Trajectory) -> int:
    """The node at which an episode continues: the last one, unless its context was changed after that."""
    events = trajectory.metadata.get(_KEY)
    return events[-1]["head"] if events and events[-1]["end"] == len(trajectory.nodes) else len(trajectory.nodes) - 1


def managed_nodes(trajectory: Trajectory) -> set[int]:
    """Indices of the nodes that the context's management added: copies, hidden results, and what makes a summary."""
    ends = ((each["begin"], each["end"]) for each in trajectory.metadata.get(_KEY, ()))
    return {index for begin, end in ends for index in range(begin, len(trajectory.nodes) if end is None else end)}


def _events(trajectory: Trajectory) -> list[dict[str, Any]]:
    return trajectory.metadata.setdefault(_KEY, [])


def _is_new(trajectory: Trajectory, node: int) -> bool:
    """Whether the episode has only just gone on at a node with another context: it is left as it is."""
    events = trajectory.metadata.get(_KEY)
    return bool(events) and (events[-1]["head"], events[-1]["end"]) == (node, len(trajectory.nodes))


def _is_open(trajectory: Trajectory) -> bool:
    """Whether a summary was asked for that is not there yet."""
    events = trajectory.metadata.get(_KEY)
    return bool(events) and events[-1]["end"] is None


async def _summarise(rollout: Rollout, sampling: Sampling) -> int:
    """Lets the model write the summary that it was asked for, and begins anew with it."""
    trajectory = rollout.trajectory
    event, last = _events(trajectory)[-1], len(trajectory.nodes) - 1
    if trajectory.nodes[last].finish != "stop":
        last = await rollout.generate(last, sampling)
    if trajectory.nodes[last].finish == "length":
        raise EpisodeTruncatedError("a summary that does not end")
    parts = _parts(trajectory, event["head"])
    asked = next(number for number, part in enumerate(parts) if part.is_answer)
    instruction = [part for part in parts[:asked] if not _is_summary(trajectory, part)]
    text = str((trajectory.nodes[last].message or {}).get("content") or "")
    summary = _Part(None, {"role": "user", "content": SUMMARY + text})
    node = _branch(rollout, event["head"], [*instruction, summary])
    event |= {"end": len(trajectory.nodes), "head": node}
    return node


def _parts(trajectory: Trajectory, node: int) -> list[_Part]:
    nodes = ((index, trajectory.nodes[index].message or {"role": "user"}) for index in trajectory.path(node))
    return [_Part(index, message, is_answer(trajectory, index)) for index, message in nodes]


def _is_summary(trajectory: Trajectory, part: _Part) -> bool:
    return part.node in managed_nodes(trajectory) and str(part.message.get("content")).startswith(SUMMARY)


def _without_results(trajectory: Trajectory, node: int) -> list[_Part]:
    """The context with every result of a tool hidden but those of the last round."""
    parts = _parts(trajectory, node)
    last = max((number for number, part in enumerate(parts) if part.is_answer), default=-1)
    return [
        _Part(None, {**part.message, "content": HIDDEN})
        if number < last and part.message["role"] == "tool" and part.message["content"] != HIDDEN
        else part
        for number, part in enumerate(parts)
    ]


def _rebranch(rollout: Rollout, node: int, parts: Sequence[_Part], method: Method) -> int:
    """Continues with other parts, and records it; the same node where they are the old ones."""
    begin = len(rollout.trajectory.nodes)
    new = _branch(rollout, node, parts)
    if new != node:
        end = len(rollout.trajectory.nodes)
        _events(rollout.trajectory).append({"method": method, "begin": begin, "end": end, "head": new})
    return new


def _branch(rollout: Rollout, node: int, parts: Sequence[_Part]) -> int:
    """Adds the path of a new context from the last node that it shares with the path to ``node``; returns its end.

    The tokens of an observation end with the generation prompt where an answer follows, so that a node is shared only
    where the same kind of message follows it.
    """
    old = _parts(rollout.trajectory, node)
    shared = 0
    while shared < min(len(old), len(parts)) and parts[shared].node == old[shared].node:
        shared += 1
    while shared and _is_followed_by_answer(old, shared - 1) != _is_followed_by_answer(parts, shared - 1):
        shared -= 1
    last, observed = ROOT if shared == 0 else old[shared - 1].node, []
    for part in parts[shared:]:
        if not part.is_answer:
            observed.append(part.message)
            continue
        if observed:
            last, observed = rollout.observe(last, observed), []
        last = rollout.copy(part.node, last)
    return rollout.observe(last, observed) if observed else last


def _is_followed_by_answer(parts: Sequence[_Part], number: int) -> bool:
    return number + 1 == len(parts) or parts[number + 1].is_answer
