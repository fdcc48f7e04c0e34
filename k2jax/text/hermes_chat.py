"""Qwen2.5's chat format, ChatML with the tools of Hermes: declared in the system message, called within tags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from k2jax.text.chatml import CHATML_TOKENS, ChatML
from k2jax.text.common_chat import BEGINNING, MessageContext, Tools, occurrences
from k2jax.text.constrained.rules import CallRules, literal, token
from k2jax.text.hermes_calls import HERMES_CALL, HERMES_CALL_END, HermesParser
from k2jax.text.messages import Message, content_text, function_of, to_json, tool_calls
from k2jax.text.tokenizer import Tokenizer

HERMES_TOKENS = (*CHATML_TOKENS, HERMES_CALL, HERMES_CALL_END)
RESULT_TOKENS = ("<tool_response>", "</tool_response>")
"""Special tokens where a vocabulary has them, as Qwen3's, else text, as with Qwen2.5's."""

_HEADER = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_FOOTER = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
_CALL_HEAD, _CALL_TAIL = '\n{{"name": {}, "arguments": ', "}\n"
_EXAMPLE = '\n{"name": <function-name>, "arguments": <args-json-object>}\n'


class HermesChat(ChatML):
    """ChatML with ``<tools>`` in the system message, ``<tool_call>`` and ``<tool_response>``.

    Results are messages of the user, and those of neighbouring messages are one: it is left open until another message
    follows. Qwen2.5's own default system message is not added: a conversation without one has none.

    Source: the templates of Qwen2.5 and Qwen3, as the package ``renderers`` has the latter (``qwen3``).
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)
        self._call, self._call_end = tokenizer.special_id(HERMES_CALL), tokenizer.special_id(HERMES_CALL_END)
        marks = [tokenizer.special_id(name) if tokenizer.has_special(name) else name for name in RESULT_TOKENS]
        self._result, self._result_end = marks

    def declare_tools(self, tools: Tools) -> list[int]:
        """Returns no ids: the first message declares them; raises UserError where they are no JSON."""
        self.tools_text(tools)
        return []

    def tools_text(self, tools: Tools) -> str:
        """Returns a line of JSON for each tool."""
        return "".join(f"\n{to_json(tool)}" for tool in tools)

    def preface(self, tools: Tools) -> list[int]:
        """Returns a system message with the tools alone, if there are some."""
        if not tools:
            return []
        return [self._start, *self._encoded("system\n", *self._declaration(tools)), self.end, *self.after_end]

    def render(self, message: Message, context: MessageContext = BEGINNING) -> list[int]:
        """Returns the start token, the role on a line, the content, and an assistant's calls, which have no ids."""
        role, text = message["role"], content_text(message)
        if role == "assistant":
            return [*self.generation_prompt, *self._answer(text, message)]
        if role == "tool":
            head = [] if _ends_with_result(context.roles) else [self._start, "user"]
            return self._encoded(*head, "\n", self._result, f"\n{text}\n", self._result_end)
        declared = ["\n\n", *self._declaration(context.tools)] if not context.roles and context.tools else []
        return [self._start, *self._encoded(f"{role}\n{text}", *(declared if role == "system" else []))]

    def closing(self, role: str) -> list[int]:
        """Returns no ids for a result, which another one may follow."""
        return [] if role == "tool" else [self.end]

    def joint(self, roles: Sequence[str], role: str) -> list[int]:
        """Returns the end of the message that holds results, before another one."""
        is_open = _ends_with_result(roles) and role != "tool"
        return [self.end, *self.after_end] if is_open else []

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns the number of tokens that begin a call after the first message, in which the tools are."""
        if isinstance(ids, np.ndarray):
            return occurrences(ids[np.argmax(ids == self.end) :], self._call) if self.end in ids else 0
        ids = list(ids)
        return ids[ids.index(self.end) :].count(self._call) if self.end in ids else 0

    def parser(self, thinking: bool = True, shows_all: bool = False, calls_before: int = 0) -> HermesParser | None:
        """Returns a parser of calls and of reasoning, which no prompt opens; None for other than byte-level ids."""
        if not self._tokenizer.is_byte_level:
            return None
        return HermesParser(self._tokenizer, shows_all, calls_before)

    def call_rules(self, tools: Sequence[tuple[str, str]], many: bool) -> CallRules:
        """Returns calls between their tags, on lines of their own; behind the last one an answer ends."""
        begin, end, line = token(self._call), token(self._call_end), literal("\n")
        heads = " | ".join(f"{literal(_CALL_HEAD.format(to_json(name)))} {rule}" for name, rule in tools)
        more = f"({line} {begin} call)*" if many else ""
        text = f"calls: {begin} rest\nrest: call {more}\ncall: ({heads}) {literal(_CALL_TAIL)} {end}\n"
        return CallRules(text, self._call, (self._call_end,))

    def _answer(self, text: str, message: Message, before: str = "") -> list[int]:
        """An answer's text, after others that are encoded with it, and its calls, each on lines of its own."""
        calls = tool_calls(message)
        parts: list[str | int] = [before + text + ("\n" if text and calls else "")]
        for number, call in enumerate(calls):
            name, arguments = function_of(call)
            written = _CALL_HEAD.format(to_json(name)) + arguments + _CALL_TAIL
            parts += [*(["\n"] if number else []), self._call, written, self._call_end]
        return self._encoded(*parts)

    def _declaration(self, tools: Tools) -> list[str | int]:
        example = [self._call, _EXAMPLE, self._call_end]
        header = _HEADER + self.tools_text(tools) + _FOOTER
        return [header, self._call, self._call_end, " XML tags:\n", *example]

    def _encoded(self, *parts: str | int) -> list[int]:
        """Ids of texts and special tokens in turn; neighbouring texts are encoded as one."""
        ids, text = [], ""
        for part in parts:
            if isinstance(part, str):
                text += part
            else:
                ids += [*self._text(text), part]
                text = ""
        return [*ids, *self._text(text)]


def _ends_with_result(roles: Sequence[str]) -> bool:
    return bool(roles) and roles[-1] == "tool"
