"""A repository of 20,000 tools (Kimi K2, section 3.1.1), evolved in three rounds by a program in the place of a writer.

Expected: 490 domains of 48 tools, of which 20,000 are distinct, in two processor minutes. For a real writer name a
server, ``config.models.writer = AskedModelConfig(url=..., name=...)``; tools of servers of MCP come from
``config.repository.mcp``.

    python -m k2jax.synthesize --config=experiments/synthesis/tools.py --workdir=runs/tools
"""

from k2jax.synthesize.settings import synthesis


def get_config():
    """The synthesis."""
    config = synthesis(pipeline="tools")
    config.repository.tools = 23_500
    return config
