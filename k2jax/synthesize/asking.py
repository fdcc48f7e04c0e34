"""The questions of one record: each answer is kept under the content of its question, and answers can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import json
import re
import types
from typing import Any, NamedTuple

from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.synthesize.questions import AskedModel, Message, ModelQuestion, Reply
from k2jax.synthesize.stages import DroppedError, content_key, seed_of

MALFORMED = "malformed answer"
_OBJECT = re.compile(r"```(?:json)?\s*(\{.*\})\s*```", re.DOTALL)


class Call(NamedTuple):
    """An answer as it is kept.

    Attributes:
        key: content of the question, the model and the seed.
        role: who was asked.
        reply: the answer.
    """

    key: str
    role: str
    reply: Reply


class Asker:
    """Asks models for one record.

    Args:
        models: by role.
        record_key: content of the record and its stage, from which seeds are drawn.
        replayed: answers by their keys; None asks the models.

    Attributes:
        calls: all answers so far, in order.
    """

    def __init__(
        self, models: Mapping[str, AskedModel], record_key: str, replayed: Callable[[str], Reply | None] | None = None
    ):
        self._models, self._record_key, self._replayed = models, record_key, replayed
        self.calls: list[Call] = []

    @property
    def seed(self) -> int:
        """A seed of the record, for what a stage draws."""
        return seed_of("record", self._record_key)

    async def ask(
        self,
        role: str,
        purpose: str,
        messages: Sequence[Message],
        *,
        inputs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        schema: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> Reply:
        """The answer of a role's model; see ``ModelQuestion``.

        Raises:
            InfrastructureError: see ``AskedModel``.
            UserError: there is no such role, or an answer that is to be replayed was not kept.
        """
        if role not in self._models:
            raise UserError(f"no model plays the role {role!r}; name one as config.models.{role}")
        model, seed = self._models[role], seed_of(self._record_key, len(self.calls))
        key = content_key(model.name, role, purpose, list(messages), list(tools), seed)
        if self._replayed is None:
            reply = await model.reply(ModelQuestion(role, purpose, messages, inputs or {}, tools, schema), seed)
        elif (kept := self._replayed(key)) is None:
            raise UserError(
                f"no answer of the role {role} to {purpose} is kept under {key}; replay with equal settings"
            )
        else:
            reply = kept
        self.calls.append(Call(key, role, reply))
        return reply

    async def ask_object(
        self,
        role: str,
        purpose: str,
        messages: Sequence[Message],
        schema: Mapping[str, Any],
        *,
        inputs: Mapping[str, Any] | None = None,
        check: Callable[[dict[str, Any]], object] = lambda value: None,
    ) -> dict[str, Any]:
        """A structured answer: a JSON object under a schema. Where it is none, the model is told why and asked again.

        Args:
            role: see ``ask``.
            purpose: see ``ask``.
            messages: see ``ask``.
            schema: of the object.
            inputs: see ``ask``.
            check: raises UserError for an object that cannot be used, which is told to the model, too.

        Raises:
            DroppedError: neither answer is one.
            InfrastructureError, UserError: see ``ask``.
        """
        asked = list(messages)
        for _ in range(2):
            reply = await self.ask(role, purpose, asked, inputs=inputs, schema=schema)
            try:
                value = read_object(reply.text, schema)
                check(value)
                return value
            except (ValueError, UserError) as error:
                repair = f"That is not what was asked for: {error}. Answer again with the JSON object alone."
                asked = [*asked, {"role": "assistant", "content": reply.text}, {"role": "user", "content": repair}]
        raise DroppedError(MALFORMED)


def read_object(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of an answer, which may stand in a code block.

    Raises:
        ValueError: there is none, or it does not have the schema; the message says why in one line.
    """
    block = _OBJECT.search(text)
    try:
        value = parse_bounded_json(block[1] if block else text.strip())
    except ValueError as error:
        raise ValueError(f"it is no JSON ({abbreviate(str(error))})") from None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    from jsonschema.exceptions import best_match

    error = best_match(_validator(json.dumps(schema, sort_keys=True)).iter_errors(value))
    if error is not None:
        place = "".join(f"[{part!r}]" for part in error.absolute_path)
        raise ValueError(f"{place or 'the object'}: {abbreviate(error.message, 200)}")
    return value


@functools.lru_cache(maxsize=128)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))
