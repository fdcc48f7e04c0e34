"""Ids of tool calls over a whole conversation, in the form that chat formats train and render: functions.NAME:INDEX.

The ids of other tools (``call_1``, ``toolu_…``) would be trained in place of the function's name, which Kimi's format
writes nowhere else. What an id becomes depends on the messages up to its own alone, so a conversation that grows keeps
the ids that it had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import re
from typing import Any, NamedTuple

from k2jax.errors import UserError, abbreviate
from k2jax.text.message_fields import Passed
from k2jax.text.messages import Message, function_of, text_field, tool_calls

_FORM = re.compile(r"functions\.(?P<name>.+):[0-9]+", re.DOTALL)


class _OpenCall(NamedTuple):
    """A call that has no result yet: its id as the client has it, its id here, and its function's name."""

    given: str
    id: str
    name: str


def with_call_ids(
    messages: Sequence[Message],
    places: Sequence[str],
    sampled: Collection[int] = (),
    passed: Passed = None,
) -> list[dict[str, Any]]:
    """A conversation whose calls have ids ``functions.NAME:INDEX``, and whose results have those of their calls.

    An id that is in this form, with the call's own name, stays as it is; the others take the number of calls before
    them, or the next one that no id has. A result without an id answers the oldest call without a result, of its name
    if it has one.

    Args:
        messages: as ``message_fields.read_message`` gives them.
        places: of the messages, for errors.
        sampled: indices of messages that stand as ids that the model sampled: their calls keep their ids.
        passed: receives the results that answer no call; None refuses them.

    Raises:
        UserError: a result answers no call, or cannot be told from the result of another.
    """
    ids = _CallIds()
    return [
        ids.of_answer(message, places[index], index in sampled, passed)
        if message["role"] == "assistant"
        else ids.of_result(message, places[index], passed)
        if message["role"] == "tool"
        else dict(message)
        for index, message in enumerate(messages)
    ]


class _CallIds:
    """The calls of a conversation so far."""

    def __init__(self):
        self._used: set[str] = set()
        self._count = 0
        self._open: list[_OpenCall] = []

    def of_answer(self, message: Message, place: str, is_sampled: bool, passed: Passed) -> dict[str, Any]:
        """An assistant's message with the ids that its calls take."""
        calls: list[Mapping[str, Any]] = []
        for call in tool_calls(message):
            name, given = function_of(call)[0], text_field(call, "id", "")
            if given and passed is None and any(given == other.given for other in self._open):
                raise UserError(f"{place} has the call id {abbreviate(given)} of another call without a result")
            call_id = given if is_sampled else self._free(given, name)
            self._used.add(call_id)
            self._count += 1
            self._open.append(_OpenCall(given, call_id, name))
            calls.append({**call, "id": call_id})
        return {**message, "tool_calls": calls} if calls else dict(message)

    def of_result(self, message: Message, place: str, passed: Passed) -> dict[str, Any]:
        """A tool's message with the id of the call that it answers."""
        given, name = text_field(message, "tool_call_id", ""), text_field(message, "name", "")
        answered = [call for call in self._open if (call.given == given if given else name in ("", call.name))]
        if not answered:
            what = f"the call {abbreviate(given)}" if given else f"a call{f' of {abbreviate(name)}' if name else ''}"
            problem = f"{place} answers {what}, and no such call before it waits for a result"
            if passed is None:
                raise UserError(problem)
            passed.append(problem)
            return dict(message)
        call = answered[0]
        if name and name != call.name:
            problem = f"{place} has the name {abbreviate(name)} and answers a call of {abbreviate(call.name)}"
            if passed is None:
                raise UserError(problem)
            passed.append(problem)
        self._open.remove(call)
        return {**message, "tool_call_id": call.id}

    def _free(self, given: str, name: str) -> str:
        form = _FORM.fullmatch(given)
        if form and form["name"] == name:
            return given
        index = self._count
        while f"functions.{name}:{index}" in self._used:
            index += 1
        return f"functions.{name}:{index}"
