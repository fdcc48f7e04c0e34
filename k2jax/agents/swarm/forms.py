"""The tools of a swarm as a model sees them: those of K2.5's appendix E.8, and two other forms of the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from k2jax.agents.toolsets.types import declared, parameters_of

Form = Literal["full", "compact", "array"]
"""``full``: as appendix E.8 prints them. ``compact``: short names for small models, whose sub-agents have no system
prompt: ``!n NAME`` and ``!a NAME PROMPT``. ``array``: one call with all prompts, as WideSeek-R1 of RLinf trains."""


def _text(description: str, **limits: Any) -> dict[str, Any]:
    return {"type": "string", **limits, "description": description}


_NAME = "Unique name for this agent configuration"
_CREATE = {
    "type": "object",
    "properties": {
        "name": _text(_NAME),
        "system_prompt": _text("System prompt defining the agent's role, capabilities, and boundaries"),
    },
    "required": ["name", "system_prompt"],
}
_ASSIGN = {
    "type": "object",
    "properties": {
        "agent": _text("Specify which created agent to use."),
        "prompt": _text("The task for the agent to perform"),
    },
    "required": ["agent", "prompt"],
}
_WORD = _text(_NAME, pattern=r"^\S+$")
_PROMPT = parameters_of({"prompt": _text("The task for the sub-agent to perform")}, ["prompt"])
_PROMPTS = {"type": "array", "minItems": 1, "items": _PROMPT, "description": "The sub-agents, which work at a time."}

TOOLS: dict[Form, tuple[Mapping[str, Any], ...]] = {
    "full": (
        declared(
            "create_subagent", "Create a custom subagent with specific system prompt and name for reuse.", _CREATE
        ),
        declared(
            "assign_task",
            "Launch a new agent.\nUsage notes:\n"
            "1. You can launch multiple agents concurrently whenever possible, to maximize performance;\n"
            "2. When the agent is done, it will return a single message back to you.",
            _ASSIGN,
        ),
    ),
    "compact": (
        declared("n", "Creates a sub-agent.", parameters_of({"name": _WORD}, ["name"])),
        declared(
            "a", "Assigns a task.", parameters_of({"agent": _WORD, "prompt": _text("The task")}, ["agent", "prompt"])
        ),
    ),
    "array": (
        declared(
            "create_sub_agents",
            "Creates sub-agents, each with a task, and returns a message of each.",
            parameters_of({"sub_agents": _PROMPTS}, ["sub_agents"]),
        ),
    ),
}
"""Declarations of each form; ``full`` is appendix E.8 to the letter."""
