"""The model of tools_nano.py may give parts of its tasks to frozen sub-agents, which are the fine-tuned start.

Reproduces: the structure of Kimi K2.5's frozen sub-agents (K2.5, section 3), not its scale: the agent alone learns, and
what a sub-agent answers enters as the result of a call. The sub-agents have an engine of their own beside the policy's.
Expected: never run to its end. The demonstrations of tools_nano.py delegate nothing, so that sub-agents start only as
often as the model tries the tool by itself; init_from a model that has learned to.

    python -m k2jax.train --config=experiments/sft/tools_nano.py --workdir=runs/sft-tools-nano
    python -m k2jax.rl --config=experiments/rl/delegate_nano.py --workdir=runs/rl-delegate-nano
"""

from k2jax.config import config_beside, role


def get_config():
    """The experiment."""
    config = config_beside(__file__, "tools_nano.py")
    config.rl.roles.helper = role(checkpoint=config.init_from, max_tokens=32, temperature=0.6, slots=32)
    config.rl.tasks.tools.tools = ("calculator", "store", "delegate role=helper steps=3 most=2")
    return config
