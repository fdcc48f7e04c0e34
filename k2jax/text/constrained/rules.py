"""Rules of grammars in llguidance's dialect of Lark, from what clients send, which is bounded and never trusted.

A rule is one line, ``name: expression``. Special tokens stand in it by id, ``<[506]>``, so that no text is one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
import re
from typing import Any, NamedTuple

from k2jax.errors import UserError, abbreviate

MOST_CHARACTERS = 1 << 18
"""Characters of a schema, a regular expression or a list of texts."""
MOST_VALUES = 10_000
"""JSON values in a schema. A compiler follows references by recursion, at most through each of them."""
DEEPEST = 64
"""Levels of a schema within each other."""
MOST_PROPERTIES = 1000
"""Properties of one object: each that may be left out is a branch at every step."""
MOST_CHOICES = 5000
LARGEST_MULTIPLE = 1000
"""Of which a number may have to be a multiple: the compiler takes as many states."""
ANY_TEXT = "/(?s:.*)/"
_COMPILER_OPTIONS = "x-guidance"
"""Key of a schema under which the compiler reads options of its own, which are not the client's to set."""
_WHITE_SPACE = r"[ \t\n\r]{0,20}"
"""Between the tokens of JSON: a model that may write as much as it likes can write nothing else."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class CallRules(NamedTuple):
    """The calls of a chat format as rules: ``calls``, and ``rest`` for what follows the token that opens them.

    Attributes:
        text: the rules, one a line.
        opening: id of that token; None for a format that writes calls as plain text, without ``rest``.
        banned: special tokens of calls that stand nowhere before ``opening``.
    """

    text: str
    opening: int | None = None
    banned: tuple[int, ...] = ()


def schema_rule(name: str, schema: Any, field: str) -> str:
    """A rule whose text is JSON that a schema describes.

    Args:
        name: of the rule.
        schema: a JSON schema.
        field: where it came from, for errors.

    Raises:
        UserError: it is no schema, or larger than is compiled.
    """
    if not isinstance(schema, Mapping):
        raise UserError(f"{field} must be a JSON schema, an object, not {abbreviate(schema)}")
    _check_size(schema, field)
    text = json.dumps({**schema, _COMPILER_OPTIONS: {"whitespace_pattern": _WHITE_SPACE}})
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"{field} has {len(text):,} characters; at most {MOST_CHARACTERS:,} are compiled")
    return f"{name}: %json {text}\n"


def object_schema(schema: Any, field: str) -> Mapping[str, Any]:
    """The schema of a call's arguments, which are an object whatever else the schema says.

    Args:
        schema: of the tool's parameters; None where it has none.
        field: where it came from, for errors.

    Raises:
        UserError: it is no schema, or one of no objects.
    """
    schema = {} if schema is None else schema
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise UserError(f"{field} must be a JSON schema of the type object, not {abbreviate(schema)}")
    return {**schema, "type": "object"}


def regex_rule(name: str, pattern: Any, field: str) -> str:
    """A rule whose text a regular expression matches as a whole.

    Args:
        name: of the rule.
        pattern: without look-around and references back.
        field: where it came from, for errors.

    Raises:
        UserError: it is no text, too long, or the extra is missing.
    """
    if not isinstance(pattern, str) or not pattern:
        raise UserError(f"{field} must be a regular expression, not {abbreviate(pattern)}")
    if len(pattern) > MOST_CHARACTERS:
        raise UserError(f"{field} has {len(pattern):,} characters; at most {MOST_CHARACTERS:,} are compiled")
    return f"{name}: {name.upper()}\n{name.upper()}: /{_escaped(pattern)}/\n"


def choice_rule(name: str, choices: Any, field: str) -> str:
    """A rule whose text is one of several.

    Args:
        name: of the rule.
        choices: the texts.
        field: where they came from, for errors.

    Raises:
        UserError: they are no texts, or too many or too long.
    """
    is_list = isinstance(choices, Sequence) and not isinstance(choices, str)
    if not (is_list and choices and all(isinstance(choice, str) and choice for choice in choices)):
        raise UserError(f"{field} must be a list of texts, not {abbreviate(choices)}")
    if len(choices) > MOST_CHOICES or sum(map(len, choices)) > MOST_CHARACTERS:
        raise UserError(f"{field} has more than {MOST_CHOICES:,} texts or {MOST_CHARACTERS:,} characters")
    return f"{name}: {' | '.join(map(literal, choices))}\n"


def literal(text: str) -> str:
    """A text as it stands in a rule."""
    return json.dumps(text)


def token(number: int) -> str:
    """A special token as it stands in a rule."""
    return f"<[{number}]>"


def checked_name(name: str) -> str:
    """The name of a tool that a grammar spells.

    Raises:
        UserError: it has characters that formats of calls use for themselves, or too many.
    """
    if not _NAME.fullmatch(name):
        text = "letters, digits, underscores, dots and dashes, at most 128"
        raise UserError(f"the name of a tool whose calls are constrained must consist of {text}: {abbreviate(name)}")
    return name


def _check_size(schema: Any, field: str) -> None:
    level, count, depth = [schema], 0, 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > MOST_VALUES or depth > DEEPEST:
            raise UserError(
                f"{field} is too large: schemas of at most {MOST_VALUES:,} values, {DEEPEST} levels deep, are compiled"
            )
        following = []
        for value in level:
            if isinstance(value, Mapping):
                properties = value.get("properties")
                if isinstance(properties, Mapping) and len(properties) > MOST_PROPERTIES:
                    raise UserError(f"{field} has an object of more than {MOST_PROPERTIES:,} properties")
                multiple = value.get("multipleOf")
                if isinstance(multiple, int | float) and multiple > LARGEST_MULTIPLE:
                    raise UserError(f"{field} has a multipleOf above {LARGEST_MULTIPLE:,}, which is not compiled")
                following += value.values()
            elif isinstance(value, list | tuple):
                following += value
        level = following


def _escaped(pattern: str) -> str:
    """A regular expression as it stands between slashes on one line."""
    escaped, is_escape = [], False
    for character in pattern:
        if is_escape or character not in "/\n\r":
            escaped.append("n" if is_escape and character == "\n" else character)
        else:
            escaped.append({"/": "\\/", "\n": "\\n", "\r": "\\r"}[character])
        is_escape = character == "\\" and not is_escape
    return "".join(escaped)
