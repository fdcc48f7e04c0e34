"""The answer of one choice as a sequence of blocks: reasoning, text and tool calls, in the order of arrival.

OpenAI's responses and Anthropic's messages have answers of blocks that are opened, extended and closed one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
from typing import Literal, NamedTuple

from k2jax.agents.api.detokenize import Delta, ToolCallDelta

BlockKind = Literal["reasoning", "text", "call"]


@dataclasses.dataclass
class AnswerBlock:
    """A part of an answer.

    Attributes:
        index: position in the answer.
        kind: ``reasoning``, ``text`` or ``call``.
        text: what it holds so far; of a call, its arguments.
        id: of a call.
        name: of the function that a call names.
    """

    index: int
    kind: BlockKind
    text: str = ""
    id: str = ""
    name: str = ""


class BlockChange(NamedTuple):
    """A step of an answer: a block is opened, extended by ``text``, or closed."""

    action: Literal["open", "extend", "close"]
    block: AnswerBlock
    text: str = ""


class AnswerBlocks:
    """Divides the deltas of one choice into blocks.

    Attributes:
        blocks: those so far; the last one may be open.
        tokens: number of tokens that were sampled.
        reasoning_tokens: number of those up to the last text of the reasoning.
        finish: why the choice ended, once it has.
        stop: the stop string that ended it, if one did.
    """

    def __init__(self):
        self.blocks: list[AnswerBlock] = []
        self.tokens = 0
        self.reasoning_tokens = 0
        self.finish: str | None = None
        self.stop: str | None = None
        self._open: AnswerBlock | None = None

    def feed(self, delta: Delta) -> list[BlockChange]:
        """Adds a delta; after the last one, no block is open."""
        self.tokens += sum(token.sampled for token in delta.tokens)
        if delta.reasoning:
            self.reasoning_tokens = self.tokens
        self.finish, self.stop = delta.finish, delta.stop
        changes = [*self._extend("reasoning", delta.reasoning), *self._extend("text", delta.text)]
        for call in delta.calls:
            changes += self._extend("call", call.arguments, call if call.id is not None else None)
        if delta.finish is not None:
            changes += self._close()
        return changes

    def _extend(self, kind: BlockKind, text: str, begun: ToolCallDelta | None = None) -> Iterator[BlockChange]:
        if begun is not None or (text and (self._open is None or self._open.kind != kind)):
            yield from self._close()
            self._open = AnswerBlock(len(self.blocks), kind)
            if begun is not None:
                self._open.id, self._open.name = begun.id or "", begun.name or ""
            self.blocks.append(self._open)
            yield BlockChange("open", self._open)
        if text:
            self._open.text += text
            yield BlockChange("extend", self._open, text)

    def _close(self) -> Iterator[BlockChange]:
        if self._open is not None:
            block, self._open = self._open, None
            yield BlockChange("close", block)
