"""One trajectory as a gateway records it: which of its nodes a client's history repeats, and what that history adds.

Every message that the model did not write is a node, and so is every generation prompt; what the model sampled hangs
below a generation prompt. A history is matched message by message from the root. The model's own messages are matched
by the value that the client received and keep their sampled ids; from the first message on that was never recorded in
its place, the history is a branch whose messages are encoded as the client wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math
import sys
from typing import Any, Literal, NamedTuple

import numpy as np

from k2jax.agents.api import Conversation, ModelCard
from k2jax.agents.api.api_error import bad_request
from k2jax.agents.api.conversation import start_builder
from k2jax.agents.api.once import Once
from k2jax.agents.api.requests import check_prompt_length
from k2jax.agents.gateway.canonical import answer_parts, message_key, plain_message, tools_key
from k2jax.errors import UserError, abbreviate
from k2jax.text.call_ids import with_call_ids
from k2jax.text.chat import ChatBuilder
from k2jax.text.media_reading import NO_PAD, start_reading
from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.types import NO_TURN, ROOT

Kind = Literal["start", "extend", "repeat", "branch"]
"""How a request goes on: a first one, one that extends a leaf, one that asks the same again, one that branches off."""


_MOST_LEFT_OUT = 20
"""Kinds of tools and names of fields that a record of a request names."""


class Addition(NamedTuple):
    """A node that a history adds: its key, its tokens, and its message, None for tools and generation prompts."""

    key: str
    tokens: list[int]
    message: Mapping[str, Any] | None


def addition_bytes(addition: Addition) -> int:
    """Memory of a node's tokens and texts once it is recorded, roughly."""
    size = 4 * len(addition.tokens)
    values: list[Any] = [addition.message]
    while values:
        value = values.pop()
        if isinstance(value, str):
            size += sys.getsizeof(value)
        elif isinstance(value, Mapping):
            values += value.values()
        elif isinstance(value, list):
            values += value
    return size


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchedHistory:
    """Where a conversation leaves what is recorded.

    Attributes:
        conversation: what the client sent.
        keys: of its tools, if any, and messages.
        node: the last node that it repeats; ROOT where it repeats none.
        matched: how many of its keys are recorded.
        kind: see Kind.
        drift: of a branch, what the client changed in the model's own message: ``thought``, ``call id``, ``call`` or
            ``text``; ``message`` where it changed something else.
        sampled: indices of the messages that it repeats and that the model sampled.
    """

    conversation: Conversation
    keys: tuple[str, ...]
    node: int
    matched: int
    kind: Kind
    drift: str = ""
    sampled: frozenset[int] = frozenset()

    def without_messages(self) -> MatchedHistory:
        """What is needed once the history is encoded, without what the client sent, which may be megabytes."""
        told = self.conversation
        asked = {name: _short(value) for name, value in told.asked.items()}
        left_out = tuple(dict.fromkeys(told.left_out))[:_MOST_LEFT_OUT]
        rest = Conversation((), (), (), told.options, asked=asked, left_out=left_out)
        return dataclasses.replace(self, conversation=rest, keys=())


def conversation_keys(conversation: Conversation, once: Once) -> tuple[str, ...]:
    """Returns the keys of a conversation's tools, if it declares any, and of its messages.

    A message that the model is to continue is none: it belongs to the answer's beginning.

    Args:
        conversation: what the client sent.
        once: what is known about the messages.

    Raises:
        ApiError: a message is malformed.
    """
    messages = conversation.messages[: len(conversation.messages) - conversation.is_continued]

    def key(index: int) -> str:
        try:
            return message_key(messages[index])
        except UserError as error:
            raise bad_request(conversation.origins[index], str(error)) from None

    tools = [tools_key(conversation.tools)] if conversation.tools else []
    return (*tools, *once.each("key", messages, key))


class RecordedHistory:
    """The nodes of a trajectory by their keys.

    Attributes:
        trajectory: grows with every request.
        keys: of its nodes.
    """

    def __init__(self, trajectory: Trajectory, card: ModelCard):
        self.trajectory = trajectory
        self.keys: list[str] = []
        self._card = card
        self._children: dict[int, dict[str, list[int]]] = {}

    def add(self, node: Node, key: str) -> int:
        """Adds a node and returns its index."""
        index = self.trajectory.add(node)
        self.keys.append(key)
        self._children.setdefault(node.parent, {}).setdefault(key, []).append(index)
        return index

    def match(self, conversation: Conversation, keys: tuple[str, ...]) -> MatchedHistory:
        """Finds the longest part of a conversation that is recorded; of equal records the latest."""
        places, matched = [ROOT], 0
        for key in keys:
            if not (found := self._with_key(places, key)):
                break
            places, matched = found, matched + 1
        node = max(places)
        found = MatchedHistory(
            conversation=conversation,
            keys=keys,
            node=node,
            matched=matched,
            kind="branch",
            sampled=self._sampled(node),
        )
        opened = [child for place in places for child in self._places(place, _open_key(conversation))]
        if matched == len(keys) and opened:
            return dataclasses.replace(found, node=max(opened), kind="repeat")
        if not self.trajectory.nodes:
            return dataclasses.replace(found, kind="start")
        if node != ROOT and not self._children.get(node):
            return dataclasses.replace(found, kind="extend")
        return dataclasses.replace(found, drift=self._drift(conversation, node, matched))

    def _sampled(self, node: int) -> frozenset[int]:
        """Which messages on the path to a node the model sampled, counted as a client counts them."""
        nodes = self.trajectory.nodes
        path = [nodes[index] for index in self.trajectory.path(node)] if node != ROOT else []
        written = [place.turn != NO_TURN for place in path if place.turn != NO_TURN or place.message is not None]
        return frozenset(index for index, own in enumerate(written) if own)

    def resumed(self, match: MatchedHistory) -> ResumedHistory | None:
        """The conversation up to the last node that it repeats; None where it repeats none. Nothing is encoded."""
        if match.node == ROOT:
            return None
        nodes = self.trajectory.nodes
        path = [nodes[index] for index in self.trajectory.path(match.node)]
        roles = [
            "assistant" if node.turn != NO_TURN else node.message["role"]
            for node in path
            if node.turn != NO_TURN or node.message is not None
        ]
        assert self._card.chat is not None
        tokens, places = self.trajectory.path_tokens(match.node), None
        if self._card.media is not None:
            own = np.repeat([node.turn != NO_TURN for node in path], [len(node.tokens) for node in path])
            places = np.where(own, NO_PAD, tokens)
        options = {"tools": match.conversation.tools, "leaves_out": True}
        builder = ChatBuilder.resume(self._card.chat, tokens, roles, path[-1].turn != NO_TURN, **options)
        return ResumedHistory(builder, tokens, places)

    def commit(self, node: int, additions: Sequence[Addition]) -> int:
        """Adds nodes below a node, unless another request has added the same tokens meanwhile; returns the last one."""
        nodes = self.trajectory.nodes
        for key, tokens, message in additions:
            known = [place for place in self._places(node, key) if nodes[place].tokens.tolist() == tokens]
            node = known[-1] if known else self.add(Node.observed(node, tokens, message), key)
        return node

    def _places(self, parent: int, key: str) -> list[int]:
        return self._children.get(parent, {}).get(key, [])

    def _with_key(self, parents: list[int], key: str) -> list[int]:
        """Children with a key; those that the model sampled are below a generation prompt."""
        found: list[int] = []
        for parent in parents:
            children = self._children.get(parent, _NONE)
            found += children.get(key, ())
            for name in _OPEN_KEYS:
                if name in children:
                    found += (child for opened in children[name] for child in self._places(opened, key))
        return found

    def _drift(self, conversation: Conversation, node: int, matched: int) -> str:
        """What of the latest answer after a node the next message of a conversation changes."""
        opened = [place for name in _OPEN_KEYS for place in self._places(node, name)]
        answers = [
            child for place in opened for children in self._children.get(place, {}).values() for child in children
        ]
        at = matched - bool(conversation.tools)
        message = conversation.messages[at] if 0 <= at < len(conversation.messages) else {}
        if not answers or message.get("role") != "assistant":
            return "message"
        recorded, told = answer_parts(self.trajectory.nodes[max(answers)].message or {}), answer_parts(message)
        if recorded[1:] == told[1:]:
            return "thought"
        if recorded[1] != told[1]:
            return "text"
        return "call id" if [call[1:] for call in recorded[2]] == [call[1:] for call in told[2]] else "call"


class ResumedHistory(NamedTuple):
    """A conversation up to a recorded node.

    Attributes:
        builder: without the ids up to there.
        tokens: these ids, int32 ``[T]``.
        places: the same with ``NO_PAD`` for what the model sampled, int32 ``[T]``; None for a model of text alone.
    """

    builder: ChatBuilder
    tokens: np.ndarray
    places: np.ndarray | None


class EncodedHistory(NamedTuple):
    """A history that is ready to be sampled after.

    Attributes:
        prompt: all its token ids, up to the generation prompt, int32 ``[P]``.
        additions: the nodes that it adds; the last of them is the generation prompt.
        media: its images, as the card's ``MediaReader`` places them in the prompt.
    """

    prompt: np.ndarray
    additions: list[Addition]
    media: tuple[Any, ...]


def encode_history(match: MatchedHistory, resumed: ResumedHistory | None, card: ModelCard) -> EncodedHistory:
    """Encodes what a history adds to what is recorded.

    Args:
        match: where it leaves what is recorded.
        resumed: the conversation up to there, whose builder is changed; None for its beginning.
        card: the model.

    Raises:
        ApiError: a message is wrong, or the prompt is too long; the error names it.
        UserError: the images are not those for which the recorded tokens stand.
    """
    conversation, additions, reading = match.conversation, [], start_reading(card.media)
    new = match.matched
    recorded = np.zeros(0, np.int32) if resumed is None else resumed.tokens
    if resumed is not None:
        builder = resumed.builder
    else:
        builder = start_builder(conversation.tools, card)
        if conversation.tools:
            additions.append(Addition(match.keys[0], list(builder.tokens), None))
            new = 1
    first = new - bool(conversation.tools)
    messages = with_call_ids(conversation.messages, conversation.origins, match.sampled, [])
    for index, message in enumerate(messages[: len(messages) - conversation.is_continued]):
        if index < first and card.media is None:
            continue
        known = len(builder.tokens)
        try:
            shown = reading.read(message)  # also of what is recorded, whose images the model sees again
            if index < first:
                continue
            builder.add(shown)
        except UserError as error:
            raise bad_request(conversation.origins[index], str(error)) from None
        length = len(recorded) + len(builder.tokens)
        check_prompt_length(conversation.origins[index].partition("[")[0], length, card)
        key = match.keys[index + bool(conversation.tools)]
        additions.append(Addition(key, builder.tokens[known:], plain_message(message)))
    if match.kind != "repeat":
        known = len(builder.tokens)
        _open_answer(builder, conversation)
        additions.append(Addition(_open_key(conversation), builder.tokens[known:], None))
    added = np.array(builder.tokens, np.int32)
    prompt = np.concatenate([recorded, added])
    check_prompt_length("messages", len(prompt), card)
    if card.media is None:
        return EncodedHistory(prompt, additions, ())
    places = recorded if resumed is None else resumed.places
    return EncodedHistory(prompt, additions, reading.place(np.concatenate([places, added]).tolist()))


def _open_answer(builder: ChatBuilder, conversation: Conversation) -> None:
    """Adds the beginning of the answer: the generation prompt, or a message that the model is to continue."""
    try:
        if conversation.is_continued:
            builder.open_with(conversation.messages[-1])
        else:
            builder.open_assistant(conversation.options.thinking)
    except UserError as error:
        raise bad_request("messages", str(error)) from None


def _short(value: Any) -> Any:
    """A value that a client asked for, as short JSON."""
    plain = isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if plain and len(str(value)) <= 80 else abbreviate(value)


def _open_key(conversation: Conversation) -> str:
    """The key of the answer's beginning; one that the client has written is found under its text alone."""
    if conversation.is_continued:
        return f"open {message_key(conversation.messages[-1])}"
    return _OPEN_KEYS[conversation.options.thinking]


_NONE: Mapping[str, list[int]] = {}
_OPEN_KEYS = ("open", "open thinking")  # of generation prompts, without reasoning and with it
