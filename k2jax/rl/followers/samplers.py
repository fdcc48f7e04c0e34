"""The two samplers of a run of several processes: the controller's, which runs one, and a follower's, which replays it.

Beyond the calls of engines the log has the scored groups of each iteration, the results of evaluations, and the
beginning of every phase.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
import contextlib
from typing import Any

from k2jax.agents.mixture import TaskMixture
from k2jax.inference import LockstepClient
from k2jax.inference.engine import Engine
from k2jax.rl.episodes import Episodes
from k2jax.rl.followers.commands import Commands
from k2jax.rl.followers.group_form import group_values, groups_of
from k2jax.rl.groups import PromptGroup
from k2jax.rl.sampler import Sampler
from k2jax.rl.sync.offload import offloaded
from k2jax.train.run import Run


class LeadingSampler:
    """The controller's sampler; see ``Sampler``.

    Args:
        sampler: runs the episodes.
        commands: the log.
    """

    def __init__(self, sampler: Sampler, commands: Commands):
        self._sampler, self._commands, self.episodes = sampler, commands, sampler.episodes
        self.begin, self.store, self.record = sampler.begin, sampler.store, sampler.record
        self.saved, self.extra, self.restore = sampler.saved, sampler.extra, sampler.restore

    def groups(self, step: int) -> Iterator[PromptGroup]:
        """See ``Sampler``."""
        return iter(self.collect(step))

    def collect(self, step: int) -> list[PromptGroup]:
        """See ``Sampler``; the groups go to all processes."""
        groups = self._sampler.collect(step)
        self._commands.share(group_values(groups))
        return groups

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """See ``Sampler``; the result goes to all processes."""
        return self._commands.share(self._sampler.run(coroutine))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """See ``Sampler``; all processes begin it together."""
        self._commands.check(f"phase {name}")
        with self._sampler.phase(name):
            yield


class FollowingSampler:
    """A follower's sampler; see ``Sampler``.

    Args:
        run: the run.
        engine: of the policy, on the trainer's devices; None where engines have processes of their own.
        clients: of the roles beside it; nobody asks them.
        episodes: nobody runs them; methods ask it who answers.
        mixture: prompts.
        commands: the log.
    """

    def __init__(
        self,
        run: Run,
        engine: Engine | None,
        clients: Sequence[LockstepClient],
        episodes: Episodes,
        mixture: TaskMixture,
        commands: Commands,
    ):
        self._run, self._engine, self._clients = run, engine, clients
        self.episodes, self._mixture, self._commands = episodes, mixture, commands

    def begin(self, step: int) -> None:
        """See ``Sampler``."""

    def groups(self, step: int) -> Iterator[PromptGroup]:
        """See ``Sampler``."""
        return iter(self.collect(step))

    def collect(self, step: int) -> list[PromptGroup]:
        """See ``Sampler``: the controller's groups."""
        self._replay()
        if self._run.config.rl.rollout.offload_state:
            self._engine.release()
            for engine in self._frozen():
                engine.release(weights=False)
        return groups_of(self._commands.share(None), self._mixture)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """See ``Sampler``: the controller's result; the coroutine does not run here."""
        coroutine.close()
        self._replay()
        return self._commands.share(None)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """See ``Sampler``."""
        self._commands.check(f"phase {name}")
        yield

    def store(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """See ``Sampler``; the controller alone writes."""

    def record(self) -> dict[str, Any]:
        """See ``Sampler``; the controller alone measures."""
        return {}

    def saved(self, step: int) -> None:
        """See ``Sampler``."""

    def extra(self) -> dict[str, Any]:
        """See ``Sampler``; process 0 alone writes it."""
        return {}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """See ``Sampler``."""

    def _replay(self) -> None:
        with offloaded(self._run, self._frozen()):
            self._commands.issue_while(lambda: None)

    def _frozen(self) -> list[Engine]:
        return [client.engine for client in self._clients if client.engine is not None]
