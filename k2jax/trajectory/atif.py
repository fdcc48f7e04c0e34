"""Episodes in the Agent Trajectory Interchange Format of Harbor (ATIF 1.7), sub-agents embedded.

A document is a list of steps in the order in which they happened:

| node of the token tree | step |
| --- | --- |
| sampled | `agent`, with its text, reasoning, calls of tools, ids and log-probabilities |
| copy of a sampled one, in a context that was rewritten | `agent`, with `is_copied_context` |
| result of a tool | an entry of the `observation` of the answer that it follows |
| other message | `user`, or else `system`, with its role in `extra` |

The sub-agents that an answer spawned are documents in `subagent_trajectories`, and the results of its calls refer to
them by `trajectory_id`; so at every depth. `extra.k2jax` holds what the format has no field for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
import json
from typing import Any

import numpy as np

from k2jax.trajectory.answers import is_answer
from k2jax.trajectory.links import SpawnLink, spawn_links, spawning_node
from k2jax.trajectory.steps import AGENT, CRITICAL_STEPS, NO_CALL, POLICY, ROLE, SPAWNED, STEPS, TOTAL_STEPS
from k2jax.trajectory.types import NO_TURN, NO_VERSION, ROOT, Node, Trajectory

VERSION = "ATIF-v1.7"
_OWN = "k2jax"
"""Key of what the format has no field for, and name of the package."""


def atif_document(trajectory: Trajectory, run: str) -> dict[str, Any]:
    """An episode as a document of the format: JSON values, log-probabilities that are not finite left out.

    Args:
        trajectory: the episode.
        run: name of the run, for the document's ``session_id``. Its ``trajectory_id`` is ``atif_name``; that of a
            sub-agent is its spawner's, a slash, and its number.
    """
    name = atif_name(trajectory)
    return _Document(trajectory, name, f"{run}/{name}").whole()


def atif_name(trajectory: Trajectory) -> str:
    """``PURPOSE-STEP-PROMPT-SAMPLE``: which episode of a run it is."""
    return "-".join(map(str, (trajectory.purpose, *trajectory.key)))


class _Document:
    """A document while its steps are added."""

    def __init__(self, trajectory: Trajectory, name: str, session: str, role: str = POLICY):
        self._trajectory, self._name, self._session = trajectory, name, session
        self._role = str(trajectory.metadata.get(ROLE) or role)
        self._steps: list[dict[str, Any]] = []
        self._of_node: dict[int, dict[str, Any]] = {}  # steps of answers
        self._calls: dict[int, list[str]] = {}  # ids of the calls of tools, by node

    def whole(self) -> dict[str, Any]:
        for index in range(len(self._trajectory.nodes)):
            self._add_node(index)
        links = spawn_links(self._trajectory)
        for link in links:
            if link.trajectory is not None:
                self._refer(link)
        if not self._steps:
            self._step("system", "", {})
        below = [
            _Document(link.trajectory, self._id(link), self._session, link.role or self._role).whole()
            for link in links
            if link.trajectory is not None
        ]
        metadata = self._trajectory.metadata
        document = {
            "schema_version": VERSION,
            "session_id": self._session,
            "trajectory_id": self._name,
            "agent": {
                "name": str(metadata.get(AGENT) or self._role),
                "version": version(_OWN),
                "extra": {"role": self._role},
            },
            "steps": self._steps,
            "final_metrics": self._final_metrics(),
            "extra": {_OWN: self._extra([link for link in links if link.trajectory is None])},
        }
        return document | ({"subagent_trajectories": below} if below else {})

    def _step(self, source: str, message: Any, extra: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        step = {"step_id": len(self._steps) + 1, "source": source, "message": message, **fields}
        self._steps.append(step | ({"extra": {_OWN: dict(extra)}} if extra else {}))
        return self._steps[-1]

    def _add_node(self, index: int) -> None:
        node = self._trajectory.nodes[index]
        message, extra = node.message or {}, {"node": index, "parent": node.parent}
        role = message.get("role")
        if is_answer(self._trajectory, index):
            self._add_answer(index, message, extra)
        elif role == "tool":
            self._add_result(index, message)
        elif role == "user":
            self._step("user", _content(message.get("content")), extra)
        else:
            more = {"role": role} if message else {"token_ids": node.tokens.tolist()}
            self._step("system", _content(message.get("content")), extra | more)

    def _add_answer(self, index: int, message: Mapping[str, Any], extra: dict[str, Any]) -> None:
        node, fields = self._trajectory.nodes[index], {}
        if reasoning := message.get("reasoning_content"):
            fields["reasoning_content"] = str(reasoning)
        if calls := _tool_calls(message, f"node_{index}"):
            fields["tool_calls"] = calls
        if node.turn == NO_TURN:
            fields["is_copied_context"] = True
        else:
            prompt = len(self._trajectory.path_tokens(node.parent))
            fields |= {"llm_call_count": 1, "metrics": _metrics(node, prompt)}
        self._of_node[index] = self._step("agent", _content(message.get("content")), extra, **fields)
        self._calls[index] = [call["tool_call_id"] for call in calls]

    def _add_result(self, index: int, message: Mapping[str, Any]) -> None:
        """Adds what a tool returned to the answer that it follows, or as a step of its own where there is none."""
        result = {"content": _content(message.get("content"))}
        extra = {key: message[key] for key in ("name", "is_error") if key in message}
        answer = self._trajectory.nodes[index].parent
        while answer != ROOT and answer not in self._of_node:
            answer = self._trajectory.nodes[answer].parent
        call = message.get("tool_call_id")
        if answer != ROOT and call in self._calls[answer]:
            result = {"source_call_id": call} | result
        elif call is not None:
            extra["tool_call_id"] = call
        step = self._step("system", "", {}) if answer == ROOT else self._of_node[answer]
        _results(step).append(result | {"extra": {_OWN: {"node": index, **extra}}})

    def _refer(self, link: SpawnLink) -> None:
        """Lets the result of the call that spawned a sub-agent refer to it."""
        node = spawning_node(self._trajectory, link)
        if node is None:
            node, step = ROOT, self._step("system", "", {"spawned_without_an_answer": True})
        else:
            step = self._of_node[node]
        calls = self._calls.get(node, [])
        source = calls[link.call] if NO_CALL < link.call < len(calls) else None
        results = _results(step)
        result = next((each for each in results if source and each.get("source_call_id") == source), None)
        if result is None:
            result = {"source_call_id": source} if source else {}
            results.append(result)
        about = {"agent": link.agent, "role": link.role or self._role, "status": link.status or "unknown"}
        reference = {"trajectory_id": self._id(link), "session_id": self._session, "extra": about}
        result.setdefault("subagent_trajectory_ref", []).append(reference)

    def _id(self, link: SpawnLink) -> str:
        return f"{self._name}/{link.number}"

    def _final_metrics(self) -> dict[str, Any]:
        counts = [step["metrics"] for step in self._steps if "metrics" in step]
        metadata = self._trajectory.metadata
        return {
            "total_prompt_tokens": sum(count["prompt_tokens"] for count in counts),
            "total_completion_tokens": sum(count["completion_tokens"] for count in counts),
            "total_steps": len(self._steps),
            "extra": {key: metadata[key] for key in (STEPS, CRITICAL_STEPS, TOTAL_STEPS) if key in metadata},
        }

    def _extra(self, without_trajectory: list[SpawnLink]) -> dict[str, Any]:
        trajectory = self._trajectory
        extra = trajectory.about | {"status": trajectory.status}
        extra |= {"error": trajectory.error} if trajectory.error else {}
        if trajectory.reward is not None:
            extra |= {"reward_parts": dict(trajectory.reward.parts), "reward_info": dict(trajectory.reward.info)}
        extra["metadata"] = {key: value for key, value in trajectory.metadata.items() if key != SPAWNED}
        if without_trajectory:
            extra["sub_agents_without_trajectory"] = [
                {key: value for key, value in vars(link).items() if key != "trajectory"} for link in without_trajectory
            ]
        return extra


def _results(step: dict[str, Any]) -> list[dict[str, Any]]:
    return step.setdefault("observation", {"results": []})["results"]


def _metrics(node: Node, prompt_tokens: int) -> dict[str, Any]:
    sampled = node.versions[node.versions != NO_VERSION]
    extra = {"temperature": node.temperature, "finish": node.finish, "turn": node.turn}
    if len(sampled):
        extra["versions"] = [int(sampled.min()), int(sampled.max())]
    metrics = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(node.tokens),
        "completion_token_ids": node.tokens.tolist(),
    }
    if np.isfinite(node.logprobs).all():
        metrics["logprobs"] = node.logprobs.tolist()
    return metrics | {"extra": extra}


def _tool_calls(message: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """The calls of an answer; those without an id of their own get one, and arguments that are no object are kept."""
    written = message.get("tool_calls")
    calls, ids = [], set()
    for index, call in enumerate(written if isinstance(written, list | tuple) else ()):
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        function = function if isinstance(function, Mapping) else {}
        name = call.get("id") if isinstance(call, Mapping) else None
        name = name if isinstance(name, str) and name and name not in ids else f"{place}_call_{index}"
        ids.add(name)
        entry = {"tool_call_id": name, "function_name": str(function.get("name") or "unknown")}
        arguments = _parsed(function.get("arguments"))
        if isinstance(arguments, dict):
            calls.append(entry | {"arguments": arguments})
        else:
            calls.append(entry | {"arguments": {}, "extra": {_OWN: {"arguments": function.get("arguments")}}})
    return calls


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _content(content: Any) -> str | list[dict[str, str]]:
    """A message's content as text or parts; of a part that is no text only its kind stays, as text."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else "" if content is None else json.dumps(content, default=str)
    return [{"type": "text", "text": _part(part)} for part in content]


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    return f"[{kind}]"
