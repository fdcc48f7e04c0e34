"""A conversation as every chat dialect parses to it: messages and tools in OpenAI's chat format, and options.

A server renders it to token ids anew for every request. A gateway finds out how it continues from what it has recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NamedTuple

from k2jax.agents.api.api_error import bad_request, unsupported
from k2jax.agents.api.encoding import dump_json
from k2jax.agents.api.fields import Fields, invalid_value
from k2jax.agents.api.lengths import check_text, check_texts
from k2jax.agents.api.model_card import ModelCard
from k2jax.agents.api.once import Once
from k2jax.agents.api.requests import GenerationRequest, api_errors, check_prompt_length, check_room, read_options
from k2jax.agents.api.tool_choice import ToolChoice, read_choice
from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.text.call_ids import with_call_ids
from k2jax.text.chat import ChatBuilder
from k2jax.text.media_reading import start_reading

SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens", "max_output_tokens",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "reasoning_effort",
)  # fmt: skip
MALFORMED = "malformed_arguments"
"""Key under which arguments that are not a JSON object are given to clients that read nothing else."""

MAX_DEPTH = 64
"""Arguments of calls that are nested deeper count as malformed."""
MAX_ARGUMENT_VALUES = 50_000
"""Arguments of a call with more values count as malformed."""


@dataclasses.dataclass(frozen=True)
class Conversation:
    """What a client of a chat dialect sends.

    Attributes:
        messages: in OpenAI's chat format; ``reasoning_content`` holds the reasoning of the assistant.
        origins: for each message the field that it came from, for errors, such as ``messages[3]``.
        tools: functions to declare, in OpenAI's chat format; none if the client wants no calls.
        options: how to answer: a request without prompts.
        asked: sampling parameters that a lenient reader took out of the body unread.
        left_out: what a lenient reader passed over: kinds of tools that are no functions, and names of fields.
        limit_field: the field that ``options.max_tokens`` came from, for errors.
    """

    messages: tuple[Mapping[str, Any], ...]
    origins: tuple[str, ...]
    tools: tuple[Mapping[str, Any], ...]
    options: GenerationRequest
    _: dataclasses.KW_ONLY
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    limit_field: str = "max_tokens"

    @property
    def is_continued(self) -> bool:
        """Whether the model is to continue the last message, the assistant's, rather than to answer it."""
        return bool(self.messages and self.messages[-1].get("partial"))

    def check_length(self, card: ModelCard, once: Once | None = None) -> None:
        """Raises ApiError if there is more text than the model's longest sequence holds, before it is encoded.

        Args:
            card: the model.
            once: what is known about the messages.
        """
        check_texts(self.messages, self.origins, self.tools, card, once)


ReadConversation = Callable[..., Conversation]
"""``read(body, card, lenient=False, once=None)``. A lenient reader serves agents whose sampling is decided elsewhere:
it takes out sampling parameters unread, passes over fields that it does not know, and takes any model name and tool
choice. With ``once`` nothing is found out again about messages that are the same objects as in an earlier body."""


def read_shared(
    fields: Fields, card: ModelCard, stop_field: str = "stop", top_logprobs: int = 0
) -> tuple[GenerationRequest, dict[str, Any]]:
    """Reads what the chat dialects share.

    Args:
        fields: of the body.
        card: the served model.
        stop_field: name of the field with the stop strings.
        top_logprobs: alternatives per token.

    Returns:
        Options without prompts, and the sampling parameters that a lenient reader took out.

    Raises:
        ApiError: a field is wrong, or the model has no chat format.
        UserError: a sampling parameter is out of range.
    """
    name = fields.text("model")
    if not fields.lenient:
        card.check_name(name)
    if card.chat is None:
        raise unsupported("model", f"{card.name} has no chat format; use /v1/completions")
    asked = {name: fields.take(name) for name in SAMPLING_FIELDS} if fields.lenient else {}
    stop_tokens = tuple(dict.fromkeys((card.chat.end, card.tokenizer.eos)))
    options = read_options(fields, card, stop_tokens=stop_tokens, top_logprobs=top_logprobs, stop_field=stop_field)
    options = dataclasses.replace(options, chat=card.chat, thinking=card.chat.thinks)
    return options, {k: v for k, v in asked.items() if v is not None}


class DeclaredTools(NamedTuple):
    """The fields ``tools`` and ``tool_choice``.

    Attributes:
        tools: to declare to the model, none if the client wants no calls.
        choice: which of them it calls.
        left_out: what a lenient reader passed over: kinds of tools that servers or clients define, and a choice that
            cannot be kept.
    """

    tools: tuple[Mapping[str, Any], ...]
    choice: ToolChoice
    left_out: tuple[str, ...]


def read_tools(
    fields: Fields, kind: str, declare: Callable[[dict[str, Any]], Mapping[str, Any] | None]
) -> DeclaredTools:
    """Reads the fields ``tools`` and ``tool_choice``.

    Args:
        fields: of the body.
        kind: type of the tools that are functions, which is also that of a tool without a type.
        declare: returns a tool in OpenAI's chat format; None for one that has no name.

    Raises:
        ApiError: a tool or the choice is wrong, or not supported by a strict reader.
    """
    listed, choice = fields.take("tools", []), fields.take("tool_choice", "auto")
    if not isinstance(listed, list):
        raise invalid_value("tools", "a list", listed)
    tools, left_out = [], []
    for tool in listed:
        other = (isinstance(tool, dict) and tool.get("type")) or kind
        if other != kind and not fields.lenient:
            raise unsupported("tools", f"tools of the type {abbreviate(other, 60)} are not supported by this server")
        if other != kind:
            left_out.append(other[:40] if isinstance(other, str) else abbreviate(other, 40))
        elif not isinstance(tool, dict) or (declared := declare(tool)) is None:
            raise invalid_value("tools", "functions with a name", tool)
        else:
            tools.append(declared)
    if fields.lenient:
        choice = choice.get("type") if isinstance(choice, dict) else choice  # as Anthropic has it
        left_out += ["tool_choice"] * (choice not in ("auto", "none"))
        asked = ToolChoice("none" if choice == "none" else "auto")
    else:
        asked = read_choice(choice, tuple(tool["function"]["name"] for tool in tools))
        asked = asked._replace(many=asked.many and fields.flag("parallel_tool_calls", True))
    return DeclaredTools(tuple(tools) if asked.kind != "none" else (), asked, tuple(left_out))


def flat_function(tool: dict[str, Any], schema: str) -> Mapping[str, Any] | None:
    """Returns a tool that is the function itself in OpenAI's chat format; None for one without a name.

    Args:
        tool: of a body.
        schema: the field with the schema of its arguments.
    """
    if not has_name(tool):
        return None
    parameters = tool.get(schema) or {"type": "object", "properties": {}}
    function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": parameters}
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def has_name(function: Any) -> bool:
    """Whether a value is a function with a name."""
    return isinstance(function, dict) and isinstance(function.get("name"), str) and bool(function["name"])


def render(conversation: Conversation, card: ModelCard) -> GenerationRequest:
    """Returns the request of a conversation whose every message is encoded anew.

    Raises:
        ApiError: a message or tool is wrong, or the conversation is too long, alone or with the longest answer that
            it asks for; the error names it.
    """
    with api_errors():
        conversation.check_length(card)
        prompt, media = _render(conversation, card)
        rendered = dataclasses.replace(conversation.options, prompts=(prompt,), media=media)
        return check_room(conversation.limit_field, rendered, card)


def start_builder(tools: tuple[Mapping[str, Any], ...], card: ModelCard) -> ChatBuilder:
    """Returns a conversation's beginning, with its tools declared.

    Raises:
        ApiError: the model has no tools, or these cannot be declared or are too long.
    """
    assert card.chat is not None
    if tools and not card.tokenizer.is_byte_level:
        raise unsupported("tools", f"{card.name} does not support tools")
    try:
        if tools:
            check_text("tools", card.chat.tools_text(tools), card)
        return ChatBuilder(card.chat, tools)
    except UserError as error:
        raise unsupported("tools", str(error)) from None


def text_of_parts(parts: Any, kinds: tuple[str, ...], where: str, separator: str = "") -> str:
    """Returns the text of content that is text or a list of text parts.

    Args:
        parts: the content.
        kinds: types of parts that hold text.
        where: the field, for errors.
        separator: between the texts of parts.

    Raises:
        ApiError: it is neither, or a part is of another kind.
    """
    if parts is None or isinstance(parts, str):
        return parts or ""
    if not isinstance(parts, list):
        raise bad_request(where, f"{where} must be text or a list of text parts")
    for part in parts:
        if not (isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, dict) else part
            raise bad_request(where, f"{where} has a part that is no text: {abbreviate(kind, 60)}")
    return separator.join(part["text"] for part in parts)


def arguments_object(text: str) -> dict[str, Any]:
    """Returns a call's arguments as a JSON object; blank ones as an empty one, others as text under ``MALFORMED``."""
    if not text.strip():
        return {}
    try:
        value = parse_bounded_json(text, MAX_ARGUMENT_VALUES)
        if _is_deep(value):  # wherever the interpreter's own limit is
            return {MALFORMED: text}
        dump_json(value)  # refuses what no strict reader takes back: infinities and unpaired surrogates
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {MALFORMED: text}


def _is_deep(value: Any) -> bool:
    """Whether a JSON value is nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for parent in level
            if isinstance(parent, dict | list)
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
    return bool(level)


def _render(conversation: Conversation, card: ModelCard) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Token ids of a conversation, up to the beginning of the assistant's next message, and its images."""
    assert card.chat is not None
    builder, reading = start_builder(conversation.tools, card), start_reading(card.media)
    try:
        messages = with_call_ids(conversation.messages, conversation.origins)
        messages = card.chat.as_history(messages, conversation.options.thinking)
    except UserError as error:
        raise bad_request(conversation.origins[0].partition("[")[0], str(error)) from None
    for message, origin in zip(messages, conversation.origins, strict=True):
        try:
            shown = reading.read(message)
            builder.open_with(shown) if message.get("partial") else builder.add(shown)
        except UserError as error:
            raise bad_request(origin, str(error)) from None
        # Checked here so that the rest of a conversation that is too long is not encoded.
        check_prompt_length(origin.partition("[")[0], len(builder.tokens), card)
    if not conversation.is_continued:
        builder.open_assistant(conversation.options.thinking)
    check_prompt_length(conversation.origins[-1].partition("[")[0], len(builder.tokens), card)
    return tuple(builder.tokens), reading.place(builder.tokens)
