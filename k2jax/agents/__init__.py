"""Tasks with rewards: what is asked (task, dataset), where (environment), and what an answer is worth (verifier).

Everything is found by name in registries that Python entry points fill, so that a package adds a dataset, an
environment or a verifier without a change here. It imports no jax.
"""

from k2jax.agents.dataset import Dataset
from k2jax.agents.environment import Environment, Observation, Step
from k2jax.agents.task import Budget, Task
from k2jax.agents.verifier import Verifier

__all__ = ["Budget", "Dataset", "Environment", "Observation", "Step", "Task", "Verifier"]
