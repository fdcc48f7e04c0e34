"""The tool ``calc``: one operation on two integers."""

from __future__ import annotations

import operator
import re

from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.types import ToolError

_OPERATION = re.compile(r"(-?\d{1,18})([+*-])(-?\d{1,18})")
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def calc(operation: str) -> int:
    """Computes one operation on two integers.

    Args:
        operation: such as 12+34, 12-34 or 12*34.
    """
    match = _OPERATION.fullmatch(operation)
    if match is None:
        raise ToolError("write A+B, A-B or A*B")
    return _OPERATORS[match[2]](int(match[1]), int(match[3]))


def calculator() -> FunctionTools:
    """The toolset of ``calc`` alone."""
    return FunctionTools([calc])
