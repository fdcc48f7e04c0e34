"""Which tools an answer has to call, as the dialects write it."""

from __future__ import annotations

from typing import Any, NamedTuple

from k2jax.agents.api.api_error import bad_request, unsupported
from k2jax.errors import abbreviate

_SAME = {"any": "required", "tool": "function"}  # Anthropic's words


class ToolChoice(NamedTuple):
    """Which calls an answer may have, and has to have.

    Attributes:
        kind: ``auto``, ``none``, or ``required`` where an answer is calls alone.
        name: of the only tool that it may call; empty for all.
        many: whether it may have several calls.
    """

    kind: str = "auto"
    name: str = ""
    many: bool = True


AUTO = ToolChoice()


def read_choice(value: Any, names: tuple[str, ...]) -> ToolChoice:
    """Reads the field ``tool_choice`` of any dialect.

    Args:
        value: of the field.
        names: of the tools.

    Raises:
        ApiError: it is another choice, or names a tool that is not there.
    """
    form = value if isinstance(value, dict) else {"type": value}
    kind = form.get("type")
    kind = _SAME.get(kind, kind) if isinstance(kind, str) else None
    if kind not in ("auto", "none", "required", "function"):
        text = "tool_choice must be auto, none, required, or the name of a tool"
        raise unsupported("tool_choice", f"{text}, not {abbreviate(value)}")
    many = form.get("disable_parallel_tool_use") is not True
    if kind != "function":
        if kind == "required" and not names:
            raise bad_request("tool_choice", "tool_choice needs tools")
        return ToolChoice(kind, many=many)
    function = form.get("function", form)
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise bad_request("tool_choice", f"tool_choice names {abbreviate(name)}, which is none of the tools")
    return ToolChoice("required", name, many)
