"""Llama 3's chat format, as of Llama 3.1 and 3.2: headers of roles, and calls of tools as plain JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import json

import numpy as np

from k2jax.errors import UserError, abbreviate
from k2jax.text.common_chat import BEGINNING, ChatFormat, MessageContext, Tools
from k2jax.text.constrained.rules import CallRules, literal
from k2jax.text.llama_calls import LlamaParser
from k2jax.text.messages import NOT_JSON, Message, content_text, function_of, to_json, tool_calls
from k2jax.text.tokenizer import Tokenizer

LLAMA_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

_MOST_CHARACTERS = 16 << 20
"""Characters of all declarations."""
_CALL_HEAD = '{{"name": {}, "parameters": '
_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"  # the template's, where it has no clock
_ENVIRONMENT = "Environment: ipython\n"
_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    "answers the given prompt.\n\n"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    "Do not use variables.\n\n"
)


class LlamaChat(ChatFormat):
    """``<|start_header_id|>user<|end_header_id|>``, two line breaks, the trimmed content, ``<|eot_id|>``.

    A conversation always begins with a system message, which has the dates of the template. The first message of the
    user declares the tools. A call is an answer of its own; results have the role ``ipython`` and are JSON.

    Source: the release's template, as the package ``renderers`` has it (``llama_3``).
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer, tokenizer.special_id("<|eot_id|>"))
        self._bos = tokenizer.special_id("<|begin_of_text|>")
        self._header = tokenizer.special_id("<|start_header_id|>")
        self._header_end = tokenizer.special_id("<|end_header_id|>")
        self.generation_prompt = self.direct_prompt = [*self._head("assistant"), *self._text("\n\n")]

    def declare_tools(self, tools: Tools) -> list[int]:
        """Returns no ids: the user's first message declares them; raises UserError where they are no JSON."""
        self.tools_text(tools)
        return []

    def tools_text(self, tools: Tools) -> str:
        """Returns the tools as JSON with indentation; raises UserError where that is mostly indentation, or no JSON."""
        pieces, size = [], 0
        encoder = json.JSONEncoder(ensure_ascii=False, indent=4)
        try:
            for tool in tools:
                for piece in encoder.iterencode(tool):
                    pieces.append(piece)
                    size += len(piece)
                    if size > _MOST_CHARACTERS:
                        raise UserError(f"the declarations of the tools have more than {_MOST_CHARACTERS:,} characters")
                pieces.append("\n\n")
        except (TypeError, ValueError, RecursionError):
            raise UserError(NOT_JSON.format(abbreviate(tools))) from None
        return "".join(pieces)

    def preface(self, tools: Tools) -> list[int]:
        """Returns the system message that no conversation is without."""
        return [*self.render({"role": "system", "content": ""}, MessageContext(tools=tools)), self.end]

    def render(self, message: Message, context: MessageContext = BEGINNING) -> list[int]:
        """Returns the role's header and the trimmed content, or a call.

        Raises:
            UserError: an answer has several calls, or a text beside its call, for which the format has no place.
        """
        role, text = message["role"], content_text(message)
        if role == "assistant":
            return [*self.generation_prompt, *self._text(self._answer(message))]
        if role == "tool":
            return [*self._head("ipython"), *self._text("\n\n" + to_json(text))]
        before, text = "\n\n", text.strip()
        if role == "system" and not context.roles:
            before += (_ENVIRONMENT if context.tools else "") + _DATES
            return [self._bos, *self._head("system"), *self._text(before + text)]
        if role == "user" and context.tools and "user" not in context.roles:
            before += _TOOLS + self.tools_text(context.tools)
        return [*self._head(role), *self._text(before + text)]

    def check_order(self, roles: Sequence[str], tools: Tools) -> None:
        """Raises UserError where tools are to be declared and another than the user comes first."""
        if tools and next((role for role in roles if role != "system"), "user") != "user":
            raise UserError("in Llama 3's chat format the user's first message declares the tools: it must come first")

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns the number of headers of results: each answers a call."""
        ids, head = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids)), self._head("ipython")
        return sum(ids[at : at + len(head)].tolist() == head for at in np.flatnonzero(ids == self._header))

    def parser(self, thinking: bool = True, shows_all: bool = False, calls_before: int = 0) -> LlamaParser | None:
        """Returns a parser of calls; None for other than byte-level ids."""
        return LlamaParser(self._tokenizer, shows_all, calls_before) if self._tokenizer.is_byte_level else None

    def call_rules(self, tools: Sequence[tuple[str, str]], many: bool) -> CallRules:
        """Returns the one call that an answer can be, which is plain text."""
        calls = (f"{literal(_CALL_HEAD.format(to_json(name)))} {rule}" for name, rule in tools)
        return CallRules(f"calls: ({' | '.join(calls)}) {literal('}')}\n")

    def _answer(self, message: Message) -> str:
        text, calls = content_text(message).strip(), tool_calls(message)
        if not calls:
            return text
        if len(calls) > 1 or text:
            raise UserError(
                "in Llama 3's chat format an answer is a text or one call, and this one has "
                f"{'a text beside calls' if text else f'{len(calls)} calls'}; divide it into messages"
            )
        name, arguments = function_of(calls[0])
        return _CALL_HEAD.format(to_json(name)) + arguments + "}"

    def _head(self, role: str) -> list[int]:
        return [self._header, *self._text(role), self._header_end]
