"""A rollout in progress at the gateway: its trajectories, its budget, and the log of what happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from k2jax.agents.api import ApiError, Conversation, ModelCard
from k2jax.agents.episode_key import EpisodeKey, turn_seed
from k2jax.agents.gateway.bodies import RepeatedBodies
from k2jax.agents.gateway.canonical import message_key
from k2jax.agents.gateway.history import Addition, MatchedHistory, RecordedHistory, addition_bytes
from k2jax.agents.gateway.log import encoded
from k2jax.agents.gateway.spec import GatewayRollout
from k2jax.client import Completion, Sampling
from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.steps import steps_of_answer
from k2jax.trajectory.types import ROOT

MOST_OVER_BUDGET = 100
"""Requests beyond a rollout's budget that are answered, by an empty answer, and recorded."""
MOST_SIDE_CALLS = 1000
"""Histories of side calls of a rollout, with each of which a further side call is compared."""
MOST_RECORDED = 128 << 20
"""Memory of what a rollout has recorded, roughly, from which on no request is answered [bytes]."""
_RECORD_BYTES = 8192
"""Memory of a record beside its tokens and texts, roughly [bytes]."""
AT_ONCE = 4096
"""Tokens that are encoded and compared without a thread, which would take longer to wake up."""
WriteRecord = Callable[[bytes], None]
"""Adds a record, as ``log.encoded`` makes a line of it, to the rollout's log."""


class GatewaySession:
    """One rollout.

    Attributes:
        name: of the rollout, in its URL.
        spec: what was said about it.
        digest: of its key, which is not kept itself.
        main: the agent's own history.
        sides: histories of side calls, each a trajectory of its own.
        requests: what happened, one JSON object per answered request.
        bodies: of its requests, as far as later ones may continue them.
        running: answers that are being generated.
        in_progress: answers that are being generated or wait for the budget.
        held_bytes: memory of the requests of these, roughly.
        sampled_tokens: tokens that the model has sampled in all answers.
        refused: why a prompt was refused because of its length; empty where none was.
        is_closed: whether its key is void, because it ends or has ended.
        has_ended: whether its end is in the log.
        ending: held by whoever ends it.
    """

    def __init__(self, name: str, spec: GatewayRollout, digest: str, card: ModelCard, write: WriteRecord | None):
        self.name, self.spec, self.digest = name, spec, digest
        self.main = self._new_history(card)
        self.sides: list[RecordedHistory] = []
        self.requests: list[dict[str, Any]] = []
        self.bodies = RepeatedBodies()
        self.running = self.in_progress = self.held_bytes = self.sampled_tokens = 0
        self.is_closed = self.has_ended = False
        self.refused = ""
        self.ending = asyncio.Lock()
        self._card, self._write = card, write
        self._turns = 0  # calls of the model so far, of any kind
        self._used = Counter[str]()  # by recorded answers: steps, side calls, tokens of prompts
        self._running_use = Counter[str]()  # by running answers, each of which takes a step at least
        self._recorded = 0  # bytes, roughly
        self._reserved = 0  # tokens that running answers may still take
        self._changed = asyncio.Condition()

    @property
    def histories(self) -> list[RecordedHistory]:
        """The main history and those of side calls."""
        return [self.main, *self.sides]

    def counts(self) -> dict[str, int]:
        """How many requests of each kind there were, what clients changed, and tokens."""
        counts = Counter(request["kind"] for request in self.requests)
        counts.update(f"drift: {request['drift']}" for request in self.requests if request["drift"])
        counts["requests"], counts["tokens"] = len(self.requests), self.sampled_tokens
        counts["abandoned"] = sum(request["abandoned"] for request in self.requests)
        return dict(sorted(counts.items()))

    def history_for(self, conversation: Conversation, keys: tuple[str, ...]) -> tuple[int, MatchedHistory]:
        """Chooses the history that a conversation goes on: 0 the main one, 1 the first side call's, and so on."""
        if conversation.tools or not self.spec.declares_tools:
            return 0, self.main.match(conversation, keys)
        for number, history in enumerate(self.sides, 1):
            match = history.match(conversation, keys)
            if match.kind in ("extend", "repeat"):
                return number, match
        if len(self.sides) >= MOST_SIDE_CALLS:
            raise ApiError(429, f"a rollout has at most {MOST_SIDE_CALLS} side calls", code="insufficient_quota")
        return len(self.sides) + 1, self._new_history(self._card).match(conversation, keys)

    def history(self, number: int) -> RecordedHistory:
        """The history of a number; a side call that is new gets one."""
        while number > len(self.sides):
            side = self._new_history(self._card)
            side.trajectory.metadata["side_call"] = len(self.sides) + 1
            self.sides.append(side)
        return self.histories[number]

    async def reserve(self, prompt_tokens: int, is_side: bool) -> tuple[int, Sampling] | None:
        """Waits until an answer may have all tokens that the budget leaves it, and sets these aside.

        Args:
            prompt_tokens: length of the prompt.
            is_side: whether it is a side call, which takes no step but one of the side calls.

        Returns:
            The number of the call and its sampling; None where the budget is used up.
        """
        budget, sampling, use = self.spec.budget, self.spec.sampling, _use(prompt_tokens, is_side)
        async with self._changed:
            while True:
                if self._is_used_up(use, self._used):
                    return None
                left = sampling.max_tokens if budget.tokens is None else budget.tokens - self.sampled_tokens
                wanted = min(sampling.max_tokens, self._card.max_length - prompt_tokens, left)
                if wanted < 1:
                    return None
                has_tokens = budget.tokens is None or self._reserved + wanted <= left
                if has_tokens and not self._is_used_up(use, self._used + self._running_use):
                    break
                await self._changed.wait()
            self._reserved += wanted
            self._running_use += use
            self.running += 1
            turn, self._turns = self._turns, self._turns + 1
        assert self._card.chat is not None
        stops = (self._card.chat.end, self._card.tokenizer.eos, *sampling.stop_tokens)
        seed = turn_seed(sampling.seed, EpisodeKey(self.spec.purpose, *self.spec.key), turn)
        return turn, dataclasses.replace(
            sampling, max_tokens=wanted, seed=seed, stop_tokens=tuple(dict.fromkeys(stops))
        )

    def check_recorded(self) -> None:
        """Raises ApiError 429 where a rollout has recorded so much that its host's memory would be at risk."""
        if self._recorded >= MOST_RECORDED:
            raise ApiError(429, "this rollout has recorded as much as one may", code="insufficient_quota")

    def check_over_budget(self) -> None:
        """Raises ApiError 429 where an agent has been told again and again that its budget is used up.

        Each of these answers is a record, and nothing else would limit how many there are.
        """
        if sum("over_budget" in request for request in self.requests) >= MOST_OVER_BUDGET:
            raise ApiError(429, "the budget of this rollout is used up", code="insufficient_quota")

    def _is_used_up(self, use: Counter[str], used: Counter[str]) -> bool:
        """Whether nothing is left of a limit that an answer would use."""
        limits = self.spec.limits()
        return any(name in limits and used[name] >= limits[name] for name in use)

    async def release(self, sampling: Sampling, prompt_tokens: int, is_side: bool) -> None:
        """Gives back what ``reserve`` set aside, after the answer is recorded or failed."""
        async with self._changed:
            self._reserved -= sampling.max_tokens
            self._running_use -= _use(prompt_tokens, is_side)
            self.running -= 1
            self._changed.notify_all()

    async def wait_until_idle(self) -> None:
        """Returns when no answer is being generated."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.running)

    async def record(
        self,
        number: int,
        match: MatchedHistory,
        additions: Sequence[Addition],
        answer: Node | None,
        facts: Mapping[str, Any],
    ) -> None:
        """Writes an answered request to the log and adds it to its history; a caller that is cancelled records nothing.

        Args:
            number: of the history.
            match: where the client's history leaves it.
            additions: nodes of the client's messages.
            answer: what the model sampled, its parent not yet set; None where nothing was sampled.
            facts: for readers: JSON values.

        Raises:
            OSError: the log could not be written; nothing is recorded.
        """
        kind = "side call" if number else match.kind
        request = {"history": number, "kind": kind, "drift": match.drift, "tokens": 0, **facts}
        record: dict[str, Any] = {"event": "request", "request": request}
        if answer is not None:
            request["tokens"], request["turn"] = len(answer.tokens), answer.turn
            assert answer.message is not None
            key = message_key(answer.message)  # before anything is written
            record |= {"at": match.node, "additions": [list(addition) for addition in additions], "key": key}
            record["answer"] = _answer_json(answer)
        if self._write is not None:
            new = request["tokens"] + sum(len(addition.tokens) for addition in additions)
            self._write(encoded(record) if new <= AT_ONCE else await asyncio.to_thread(encoded, record))
        if answer is None:
            self._add(request)
        else:
            self._apply(match.node, additions, answer, key, request)

    def replay(self, record: Mapping[str, Any]) -> None:
        """Applies a request's record of the log."""
        request = dict(record["request"])
        if "answer" not in record:
            self._add(request)
            return
        additions = [Addition(*addition) for addition in record["additions"]]
        self._apply(record["at"], additions, _answer_node(record["answer"]), record["key"], request)

    def trajectories(self) -> list[Trajectory]:
        """The main trajectory and those of side calls that were answered, with the requests of each in the metadata."""
        for number, history in enumerate(self.histories):
            requests = [request for request in self.requests if request["history"] == number]
            history.trajectory.metadata["requests"] = requests
        self.main.trajectory.metadata["counts"] = self.counts()
        sides = [history.trajectory for history in self.sides if history.trajectory.nodes]
        return [self.main.trajectory, *sides]

    def _apply(self, at: int, additions: Sequence[Addition], answer: Node, key: str, request: dict[str, Any]) -> None:
        history = self.history(request["history"])
        parent = history.commit(at, additions)
        request["node"] = history.add(dataclasses.replace(answer, parent=parent), key)
        self._turns = max(self._turns, answer.turn + 1)
        self._recorded += sum(map(addition_bytes, additions)) + answer.tokens.nbytes * 8
        use = _use(request.get("prompt_tokens", 0), request["history"] > 0)
        self._used += use
        self._used["steps"] += (steps_of_answer(answer.message) - 1) * use["steps"]
        self._add(request)

    def _add(self, request: dict[str, Any]) -> None:
        self.requests.append(request)
        self.sampled_tokens += request["tokens"]
        self._recorded += _RECORD_BYTES

    def sampled_node(
        self, turn: int, completion: Completion, finish: str, message: Mapping[str, Any], is_side: bool
    ) -> Node:
        """What the model sampled, as a node whose parent is not yet known."""
        values = {
            "turn": turn, "temperature": self.spec.sampling.temperature, "finish": finish, "message": message,
            "mask": self.spec.train_side_calls or not is_side,
        }  # fmt: skip
        return _answer_node({name: getattr(completion, name) for name in ("tokens", "logprobs", "versions")} | values)

    def _new_history(self, card: ModelCard) -> RecordedHistory:
        metadata = {**self.spec.metadata, "rollout": self.name}
        about = {"metadata": metadata, "purpose": self.spec.purpose}
        return RecordedHistory(Trajectory(self.spec.task, self.spec.domain, self.spec.key, **about), card)


def _use(prompt_tokens: int, is_side: bool) -> Counter[str]:
    """What an answer takes of the limits of a rollout, at least."""
    return Counter({"side_calls" if is_side else "steps": 1, "prompt_tokens": prompt_tokens})


_PLAIN = ("turn", "temperature", "finish", "message")


def _answer_json(node: Node) -> dict[str, Any]:
    return {
        "tokens": node.tokens.tolist(),
        "mask": bool(node.mask.all()),
        "logprobs": [float(value) for value in node.logprobs],  # float32 survives the way through float64
        "versions": node.versions.tolist(),
        **{name: getattr(node, name) for name in _PLAIN},
    }


def _answer_node(values: Mapping[str, Any]) -> Node:
    tokens, logprobs = np.array(values["tokens"], np.int32), np.array(values["logprobs"], np.float32)
    mask, versions = np.full(len(tokens), values["mask"], np.bool_), np.array(values["versions"], np.int64)
    return Node(ROOT, tokens, mask, logprobs, versions=versions, **{name: values[name] for name in _PLAIN})
