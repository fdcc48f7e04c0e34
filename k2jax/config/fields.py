"""What a field of a configuration accepts, read from its annotation: a type, one of several words, a range.

``Literal["a", "b"]`` names the words, ``Annotated[int, AtLeast(1)]`` the range, ``T | None`` an optional value and
``tuple[T, ...]`` a list of them. Reading and checking of values, ``--help`` and the documentation are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
import functools
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple

from k2jax.config.ranges import Range
from k2jax.errors import UserError, nearest


class FieldType(NamedTuple):
    """What one field accepts.

    Attributes:
        base: type of a value; of each element where ``is_tuple``.
        choices: the words that a value is one of; empty where it is any value of the type.
        limits: the range of a number; None where it is any.
        optional: whether None is accepted.
        is_tuple: whether a value is a tuple of such elements.
    """

    base: type
    choices: tuple[str, ...] = ()
    limits: Range | None = None
    optional: bool = False
    is_tuple: bool = False

    def __str__(self) -> str:
        """The type in words, as the documentation has it."""
        text = f"one of {', '.join(self.choices)}" if self.choices else self.base.__name__
        if self.limits is not None:
            text += f" {self.limits}"
        if self.is_tuple:
            text = f"tuple of {text}"
        return f"{text}, or None" if self.optional else text


def field_type(hint: Any) -> FieldType:
    """The FieldType of an annotation of ``schema``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return field_type(inner)._replace(optional=True)
    if origin is tuple:
        return field_type(arguments[0])._replace(is_tuple=True)
    if origin is Annotated:
        return field_type(arguments[0])._replace(limits=arguments[1])
    if origin is Literal:
        return FieldType(str, choices=arguments)
    return FieldType(hint)


def group_of(hint: Any) -> type | None:
    """The dataclass that an annotation names; None where it is a plain field or a mapping."""
    return hint if dataclasses.is_dataclass(hint) else None


def mapping_of(hint: Any) -> type | None:
    """The dataclass of the values of a mapping by name; None where the annotation is none."""
    return typing.get_args(hint)[1] if typing.get_origin(hint) is Mapping else None


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """The annotations of a dataclass by field, with ranges."""
    return typing.get_type_hints(cls, include_extras=True)


def check_fields(config: Any, path: str = "") -> None:
    """Rejects values that are not among the choices, or not in the range, of their field.

    Args:
        config: an instance of a dataclass of ``schema``.
        path: its dotted key, for messages.

    Raises:
        UserError: in one line that names the key, and the nearest choice or the range.
    """
    for key, hint, value in _plain_fields(config, f"{path}." if path else ""):
        declared = field_type(hint)
        if value is None and declared.optional:
            continue
        for element in value if declared.is_tuple else (value,):
            if declared.choices and element not in declared.choices:
                raise UserError(f"config.{key} is {element!r}{nearest(str(element), declared.choices)}")
            if declared.limits is not None and element not in declared.limits:
                raise UserError(f"config.{key} must be {_range_text(declared)}, not {element}")


def _plain_fields(config: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, annotation, value) of every field below a configuration that is no group."""
    for name, hint in hints_of(type(config)).items():
        value, key = getattr(config, name), prefix + name
        if group_of(hint):
            yield from _plain_fields(value, f"{key}.")
        elif mapping_of(hint):
            for item, inner in value.items():
                yield from _plain_fields(inner, f"{key}.{item}.")
        else:
            yield key, hint, value


def _range_text(declared: FieldType) -> str:
    finite = "finite and " if declared.base is float and not hasattr(declared.limits, "high") else ""
    return f"{finite}{declared.limits}" + (", or None" if declared.optional else "")
