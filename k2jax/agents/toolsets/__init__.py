"""Toolsets: what an agent can call, described by JSON schemas."""

from k2jax.agents.toolsets.types import ToolError, Toolset, Workplace

__all__ = ["ToolError", "Toolset", "Workplace"]
