"""How an episode ends before its scaffold says so, and what fails around it.

Failures of machines derive from ``InfrastructureError``: they are tried again, and a sample for which they last is
masked. The ends of a budget are no failures: a truncated episode is scored and trained on, a paused one goes on later.
"""

from __future__ import annotations

from k2jax.errors import InfrastructureError


class EnvironmentFailedError(InfrastructureError):
    """An environment broke down; what the agent did is not to blame."""


class ReplayError(EnvironmentFailedError):
    """An environment that was rebuilt by replaying an episode's actions does not show what the episode records."""


class SubEpisodeError(InfrastructureError):
    """A sub-episode has no trajectory: the infrastructure failed it again and again."""


class VerifierError(InfrastructureError):
    """A verifier gave no verdict: it ran out of time, died, raised, or returned what is no reward."""


class EpisodeTruncatedError(Exception):
    """The episode has used up its budget of tokens or steps."""


class EpisodePausedError(Exception):
    """The episode has grown by as many tokens as it may in one iteration; it goes on in a later one."""
