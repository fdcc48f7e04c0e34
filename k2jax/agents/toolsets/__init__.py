"""Toolsets: what an agent can call, described by JSON schemas.

In reading order: ``types`` (the interface), ``functions`` (Python functions as tools, the shortest way to one's own),
``calling`` (calls as a model writes them), ``overlap`` (those of one answer at a time), ``image_results``,
``calculator`` and ``store`` (without a sandbox), ``shell``, ``shell_session``, ``edit`` and ``python`` (in a sandbox),
``search`` with ``bm25`` (a corpus), ``delegate`` with ``sub_agents``, ``mcp_tools`` with ``mcp_transport`` (a server
of the Model Context Protocol).
"""

from k2jax.agents.toolsets.types import ToolError, Toolset, Workplace

__all__ = ["ToolError", "Toolset", "Workplace"]
