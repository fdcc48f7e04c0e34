"""Tool use in small worlds for models of characters: 1,000 worlds of three tools with invented names, 6,000 dialogues.

The agent makes a mistake in half of the dialogues, and a tenth of the judge's verdicts is wrong, so that the files are
worth a comparison: experiments/reproduce/synthetic_tools.py fine-tunes on them.
Expected: 3,444 of 5,882 dialogues are kept, of which 94 % are right.

    python -m k2jax.synthesize --config=experiments/synthesis/small_worlds.py --workdir=runs/small-worlds
"""

from k2jax.synthesize.settings import ToolUseConfig, synthesis


def get_config():
    """The synthesis."""
    sizes = {"tools": 3000, "agents": 1000, "tasks": 6000}
    rates = {"mistakes": 0.5, "failures": 0.0, "judge_mistakes": 0.1}
    return synthesis(seed=7, tool_use=ToolUseConfig(size="small", **sizes, **rates))
