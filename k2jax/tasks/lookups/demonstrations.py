"""An imperfect teacher of wide questions, who mostly looks one key up after another and seldom uses sub-agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import random
from typing import Any

from k2jax.agents.scaffolds.scripted import called, called_all, play_actions, said
from k2jax.agents.task import Task
from k2jax.agents.toolsets.store import STORE
from k2jax.tasks.generated import check_share
from k2jax.tasks.lookups.dataset import KEYS, answer_of, hops_of, pair_of

CREATE, ASSIGN = "n", "a"
"""The compact tools of the toolset ``swarm``."""
CREATED = "."
Messages = list[Mapping[str, Any]]


def lookup_demonstrations(
    tasks: Iterable[Task],
    *,
    parallel: float = 0.08,
    partial: float = 0.02,
    idle: float = 0.03,
    shown: float = 0.3,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """One conversation for every task: ``{"messages": [user, assistant, tool, ..., assistant]}``.

    A question of one key is what a sub-agent is asked, and is always looked up.

    Args:
        tasks: of the dataset ``lookups``.
        parallel: share of questions of several keys of which sub-agents look up all.
        partial: share of those of which they look up some, and the teacher the others.
        idle: share of those for which sub-agents are created and given no task.
        shown: share of those of which sub-agents look up all, and only what the teacher makes of it is trained on: who
            seldom works in parallel must still be able to read what sub-agents say.
        seed: of the choice of styles.

    Raises:
        UserError: a share is none, or all together are more than 1.
    """
    shares = {"parallel": parallel, "partial": partial, "idle": idle, "shown": shown}
    for name, share in (*shares.items(), ("all styles but the serial one", sum(shares.values()))):
        check_share(name, share)
    rng = random.Random(seed)
    for task in tasks:
        (style,) = rng.choices(["serial", *shares], [1 - sum(shares.values()), *shares.values()])
        keys = list(task.metadata[KEYS])
        by_agents = {"parallel": len(keys), "shown": len(keys), "partial": rng.randint(1, max(1, len(keys) - 1))}.get(
            style, 0
        )
        messages = [*task.instruction]
        if len(keys) > 1 and style != "serial":
            calls, *results = _with_agents(task, keys[:by_agents], rng.randint(1, len(keys)))
            messages += [{**calls, "weight": 0} if style == "shown" else calls, *results]
            keys = keys[by_agents:]
        yield {"messages": [*messages, *one_by_one(task, keys), said(answer_of(task))]}


def _with_agents(task: Task, keys: Sequence[str], idle: int) -> Messages:
    """An answer that creates a sub-agent for each key and gives it that key, or some idle ones without any key."""
    calls, results = [], []
    for number in range(1, 1 + (len(keys) or idle)):
        calls.append((CREATE, {"name": str(number)}))
        results.append((CREATE, CREATED))
        if keys:
            key = keys[number - 1]
            calls.append((ASSIGN, {"agent": str(number), "prompt": f"{key}="}))
            results.append((ASSIGN, pair_of(task.metadata[STORE], key)))
    return [called_all(calls), *(_result(*result, number) for number, result in enumerate(results))]


def one_by_one(task: Task, keys: Iterable[str]) -> Messages:
    """The calls that look keys up, each in an answer of its own, and their results."""
    messages: Messages = []
    for key in keys:
        for hop in hops_of(task.metadata[STORE], key)[0]:
            messages += [called("get", key=hop), _result("get", task.metadata[STORE][hop])]
    return messages


def _result(name: str, content: str, call: int = 0) -> Mapping[str, Any]:
    return {"role": "tool", "tool_call_id": str(call), "name": name, "content": content}


def serial(task: Task, messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The oracle: one key after another."""
    steps = [each for each in one_by_one(task, task.metadata[KEYS]) if each["role"] == "assistant"]
    return play_actions([*steps, said(answer_of(task))], messages)


def styles_of(records: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many conversations create sub-agents, and how many give them tasks, for reports."""
    counts: Counter[str] = Counter()
    for record in records:
        called_names = {c["function"]["name"] for m in record["messages"] for c in m.get("tool_calls") or ()}
        counts["assigning" if ASSIGN in called_names else "idle" if CREATE in called_names else "alone"] += 1
    return counts
