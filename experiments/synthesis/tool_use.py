"""Tool use (Kimi K2, section 3.1.1) with programs in the place of models: 200 tools, 100 agents, 500 tasks.

Expected: about 400 of 500 dialogues are kept; the agent makes a mistake in a fifth of them, and the judge knows the
worlds' states. For real models name servers, e.g. ``config.models.agent = AskedModelConfig(url=..., name=...)``.

    python -m k2jax.synthesize --config=experiments/synthesis/tool_use.py --workdir=runs/tool-use
"""

from k2jax.synthesize.settings import synthesis


def get_config():
    """The synthesis."""
    return synthesis(pipeline="tool_use")
