"""Options of what a registry names, ``name=value``, read by the keyword parameters of its maker and their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import inspect
import math
import shlex
from typing import Any, Literal, get_args, get_origin

from k2jax.errors import UserError, abbreviate, nearest

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def split_options(text: str, noun: str) -> tuple[str, list[str]]:
    """The name and the options in a text such as ``search corpus='my docs.jsonl' results=3``.

    Raises:
        UserError: it names nothing, or a quotation has no end.
    """
    try:
        name, *options = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{abbreviate(text)} names no {noun} with options: {str(error).lower()}") from None
    return name, options


def parse_options(
    maker: Callable[..., Any], options: Sequence[str], owner: str, given: Sequence[str] = ("split",)
) -> dict[str, Any]:
    """Keyword arguments for a maker.

    Args:
        maker: its parameters are annotated as ``str``, ``int``, ``float``, ``bool``, ``Literal`` or
            ``tuple[str, ...]``, which is written ``a+b``.
        options: each ``name=value``.
        owner: for messages, such as ``dataset 'characters'``.
        given: parameters that the caller gives, and that are no options.

    Raises:
        UserError: an option that is unknown, given twice, or whose value is of another type.
    """
    parameters = {name: parameter for name, parameter in parameters_of(maker).items() if name not in given}
    values: dict[str, Any] = {}
    for option in options:
        name, separator, text = option.partition("=")
        if not separator:
            raise UserError(f"the option {abbreviate(option)} of {owner} is not of the form name=value")
        if name not in parameters:
            raise UserError(f"{owner} has no option {abbreviate(name)}{nearest(name, list(parameters))}")
        if name in values:
            raise UserError(f"the option {name!r} of {owner} is given twice")
        values[name] = _value(parameters[name].annotation, text, f"the option {name} of {owner}")
    required = [name for name, p in parameters.items() if p.default is p.empty and name not in values]
    if required:
        raise UserError(f"{owner} needs the option {required[0]}=...")
    return values


@functools.lru_cache(maxsize=512)
def parameters_of(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Parameters with evaluated annotations; every episode makes its scaffold and its tools."""
    return inspect.signature(maker, eval_str=True).parameters


def _value(kind: Any, text: str, name: str) -> Any:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise UserError(f"{name} is {abbreviate(text)}{nearest(text, list(get_args(kind)))}")
        return text
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise UserError(f"{name} is {abbreviate(text)}; write true or false")
        return _BOOLEANS[text.lower()]
    if kind == tuple[str, ...]:
        return tuple(part for part in text.split("+") if part)
    if kind not in (int, float, str):
        raise TypeError(f"{name} is annotated as {kind}, which cannot be written as an option")
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if value != value:  # not even nan is a number: limits of time that are nan come in no order with others
        raise UserError(f"{name} is {abbreviate(text)}; it must be {_NOUNS[kind]}")
    return value


_NOUNS = {int: "an integer", float: "a number"}
