"""The LLM gateway: black-box agents become scaffolds, and every token that they sample is recorded as it was sampled.

An agent gets a base URL and a key of its own and speaks OpenAI's chat completions or responses or Anthropic's messages.
Behind them stands a client of the model. What the model sampled keeps its ids, log-probabilities and versions in the
token tree of the rollout's trajectory; what the agent makes of its history decides where the tree branches.

In reading order: ``gateway`` and ``spec`` (rollouts and their keys), ``session`` (one rollout), ``exchange`` (one
request), ``bodies`` (what a body repeats of an earlier one), ``history`` with ``canonical`` (which recorded node a
message is), ``log`` (survives a restart), ``app`` and ``socket`` (HTTP), ``listener`` (one address for all rollouts of
a process) and ``routes`` (which an agent takes); ``black_box`` with ``episode_client`` (the scaffold), ``agents`` and
``agent_entries``, ``agent_start`` and ``agent_programs`` (on images).
"""

from k2jax.agents.gateway.gateway import Gateway, RolloutAccess
from k2jax.agents.gateway.spec import GatewayRollout

__all__ = ["Gateway", "GatewayRollout", "RolloutAccess"]
