"""Kimi K2's chat format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from k2jax.text.common_chat import BEGINNING, ChatFormat, MessageContext, Tools, occurrences
from k2jax.text.constrained.rules import CallRules, literal, token
from k2jax.text.media import content_ids
from k2jax.text.messages import Message, content_text, function_of, text_field, to_json, tool_calls
from k2jax.text.tokenizer import Tokenizer
from k2jax.text.tool_calls import CALL_BEGIN, ToolCallParser

_SECTION_BEGIN = "<|tool_calls_section_begin|>"
KIMI_TOKENS = ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>")


class KimiChat(ChatFormat):
    """Kimi K2: ``<|im_user|>user<|im_middle|>…<|im_end|>``, with declared tools first and calls in a section."""

    default_system = "You are Kimi, an AI assistant created by Moonshot AI."

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer, tokenizer.special_id("<|im_end|>"))
        self.generation_prompt = self.direct_prompt = self._head("<|im_assistant|>", "assistant")

    def declare_tools(self, tools: Tools) -> list[int]:
        """Returns a system message named ``tool_declare`` with the text of the tools."""
        return [*self._head("<|im_system|>", "tool_declare"), *self._text(self.tools_text(tools)), self.end]

    def tools_text(self, tools: Tools) -> str:
        """Returns the list as compact JSON with sorted keys."""
        return to_json(list(tools), separators=(",", ":"), sort_keys=True)

    def render(self, message: Message, context: MessageContext = BEGINNING) -> list[int]:
        """Returns the role's special token and name, the content, and an assistant's tool calls."""
        role = message["role"]
        if role == "assistant":
            text, calls = self._text(content_text(message)), tool_calls(message)
            return [*self.generation_prompt, *text, *(self._section(calls, context.calls) if calls else [])]
        if role != "tool":
            return [*self._head("<|im_user|>" if role == "user" else "<|im_system|>", role), *self._content(message)]
        # Heading and result are encoded as one text, as in the release: a token can span the end of a line.
        heading = f"## Return of {text_field(message, 'tool_call_id', '')}\n"
        return [*self._head("<|im_system|>", text_field(message, "name", "tool")), *self._content(message, heading)]

    def count_calls(self, ids: Iterable[int]) -> int:
        """Returns the number of tokens that begin a call."""
        return occurrences(ids, self._tokenizer.special_id(CALL_BEGIN))

    def parser(self, thinking: bool = True, shows_all: bool = False, calls_before: int = 0) -> ToolCallParser | None:
        """Returns a parser of calls, and of reasoning; None for a vocabulary without their tokens."""
        if not self._tokenizer.is_byte_level or not (self.thinks or self._tokenizer.has_special(CALL_BEGIN)):
            return None
        return ToolCallParser(self._tokenizer, thinking=self.thinks and thinking, shows_all=shows_all)

    def call_rules(self, tools: Sequence[tuple[str, str]], many: bool) -> CallRules:
        """Returns a section of calls, each with its id and its arguments; behind it an answer ends."""
        names = ("tool_calls_section_end", "tool_call_begin", "tool_call_argument_begin", "tool_call_end")
        inner = [self._tokenizer.special_id(f"<|{name}|>") for name in names]
        section, (end, begin, arguments, call_end) = self._tokenizer.special_id(_SECTION_BEGIN), map(token, inner)
        heads = " | ".join(f"{literal(f'functions.{name}:')} INDEX {arguments} {rule}" for name, rule in tools)
        text = f"calls: {token(section)} rest\nrest: call{'+' * many} {end}\ncall: {begin} ({heads}) {call_end}\n"
        return CallRules(text + "INDEX: /[0-9]{1,4}/\n", section, tuple(inner))

    def _section(self, calls: Sequence[Mapping[str, Any]], calls_before: int) -> list[int]:
        """Tool calls; one without an id gets the id that the model would write, counted over the conversation."""
        special = self._tokenizer.special_id
        ids = [special(_SECTION_BEGIN)]
        for number, call in enumerate(calls, calls_before):
            name, arguments = function_of(call)
            ids += [special("<|tool_call_begin|>"), *self._text(text_field(call, "id", f"functions.{name}:{number}"))]
            ids += [special("<|tool_call_argument_begin|>"), *self._text(arguments), special("<|tool_call_end|>")]
        return [*ids, special("<|tool_calls_section_end|>")]

    def _head(self, token: str, name: str) -> list[int]:
        special = self._tokenizer.special_id
        return [special(token), *self._text(name), special("<|im_middle|>")]

    def _content(self, message: Message, before: str = "") -> list[int]:
        return content_ids(self._tokenizer, message, before)
