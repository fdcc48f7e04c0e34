"""Records of conversations: their messages and tools in one form, and what of them cannot be trained on.

Every field is used, or refused by name, because a field that is passed over changes what is trained: marks of training,
reasoning, calls. Fields of the record itself that say nothing about training, such as its source, are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.text.call_ids import with_call_ids
from k2jax.text.chat import ChatFormat
from k2jax.text.message_fields import read_message
from k2jax.text.messages import THINK_BEGIN, Message, content_text, split_reasoning, stated_reasoning, tool_calls

_READ = frozenset(("messages", "tools", "prompt", "completion", "parallel_tool_calls"))
_REMEDIES: Mapping[str, str] = {
    name: remedy
    for names, remedy in (
        ("system system_prompt", "write it as a message of the role system"),
        ("functions function_call tool_choice", "list the functions in tools"),
        ("weight loss mask masked loss_mask train trainable", "mark its messages"),
        (
            "train_on_inputs train_on_input train_on_prompt train_on_eos mask_history loss_weight labels",
            "mark messages",
        ),
        ("chosen rejected conversations label", "write messages that end with the right answer"),
        ("images videos audios", "write images as parts of content, in a source of kind image_chat"),
    )
    for name in names.split()
}
"""Fields of a record that would change what is trained, and what to write instead."""


def messages_and_tools(record: Any) -> tuple[list[Any], list[Any] | None]:
    """The messages of a record, as ``message_fields.read_message`` gives them and with ids of calls, and its tools.

    Raises:
        UserError: it has no messages, or a field that is not read.
    """
    if not isinstance(record, Mapping):
        raise UserError(f"a JSON {type(record).__name__}, not an object")
    for name, remedy in _REMEDIES.items():
        if record.get(name) is not None:
            raise UserError(f"the record has the field {name}, which is not read: {remedy}")
    messages, tools = record.get("messages"), record.get("tools") or None
    pair = [record.get(name) for name in ("prompt", "completion")]
    if messages is not None and pair != [None, None]:
        raise UserError("the record has messages and a prompt or completion; keep one of the two")
    if messages is None and all(isinstance(text, str) for text in pair):
        messages = [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    if not isinstance(messages, list) or not messages:
        raise UserError(f"messages is {abbreviate(messages)}, not a list of messages")
    if tools is not None and not isinstance(tools, list):
        raise UserError(f"tools is {abbreviate(tools)}, not a list")
    places = [f"messages[{index}]" for index in range(len(messages))]
    return with_call_ids([read_message(*pair) for pair in zip(messages, places, strict=True)], places), tools


def unread_fields(record: Any) -> list[str]:
    """Names of the fields of a record that nobody reads and that say nothing about training."""
    return [name for name, value in record.items() if value is not None and name not in _READ]


def check_answers(messages: Sequence[Message], chat: ChatFormat) -> None:
    """Refuses what would be trained or lost though nobody wants it.

    Raises:
        UserError: an answer is empty or was cut off in its reasoning, the format has no place for a name, or a message
            is to be continued.
    """
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.get("name") and message["role"] not in chat.named_roles:
            raise UserError(f"{where} has a name, which the chat format does not write; leave it out")
        if message["role"] != "assistant":
            continue
        if message.get("partial"):
            raise UserError(f"{where} is partial: only a server continues a message")
        if message.get("weight", 1) != 0 and not tool_calls(message):
            _check_text(message, chat, where)


def _check_text(message: Message, chat: ChatFormat, where: str) -> None:
    """Refuses a trained answer without calls that has no text."""
    content = message.get("content")
    if isinstance(content, list | tuple) and any(isinstance(part, tuple) for part in content):
        return  # media, which are refused where they are rendered
    reasoning, text = split_reasoning(message) if chat.thinks else (stated_reasoning(message), content_text(message))
    if not text.strip():
        raise UserError(f"{where} of the assistant {'ends with its reasoning' if reasoning else 'is empty'}")
    if chat.thinks and stated_reasoning(message) is None and text.lstrip().startswith(THINK_BEGIN):
        raise UserError(f"{where} begins with {THINK_BEGIN} and never closes it; write reasoning as reasoning_content")
