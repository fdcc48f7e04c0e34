"""Roles that change in a run: another checkpoint answers from an iteration on, such as a larger sub-agent.

Which one answers in an iteration is a function of its number. A run that is resumed behind a change therefore goes on
with the later checkpoint. Episodes that are under way at a change, which the sampler ``workers`` has, keep what was
said; a message that was cut by the end of the iteration is finished by the later checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.inference.roles import load_role, number_in, read_role
from k2jax.rl.groups import PromptGroup
from k2jax.rl.methods.base import Method, Methods, Parts
from k2jax.rl.sampler import Sampler
from k2jax.rl.sync.weight_sync import rollout_dtype, rollout_mesh
from k2jax.train.run import Run


class RoleSchedule(Method):
    """Exchanges the engines of roles between iterations, behind the evaluation of the weights of the one before.

    Args:
        parts: of the run.
    """

    def __init__(self, parts: Parts):
        self._config, self._commands, program = parts.config, parts.commands, parts.program
        self._parts, self._separate = parts, parts.config.rl.engines.placement == "separate"
        mesh = None if self._separate else rollout_mesh(program, parts.config.rl.rollout)
        self._place = mesh, rollout_dtype(program)
        self._digests: dict[tuple[str, int], str] = {}
        self._numbers = {name: 0 for name, role in parts.config.rl.roles.items() if role.later}

    @staticmethod
    def used(config: Config) -> bool:
        """Whether a role has later checkpoints."""
        return any(role.later for role in config.rl.roles.values())

    @staticmethod
    def check(config: Config) -> None:
        """See ``Method``."""
        for name, role in config.rl.roles.items():
            if role.later_from and role.later_from[-1] > config.train.steps:
                raise UserError(
                    f"config.rl.roles.{name}.later_from {role.later_from} names an iteration that does not come: "
                    f"config.train.steps is {config.train.steps}; raise it, or leave the checkpoint out"
                )

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> RoleSchedule:
        """See ``Method``; later checkpoints are read now, so that none is found unfit in the middle of a run."""
        schedule = cls(parts)
        for name in schedule._numbers:
            for number in range(1, 1 + len(parts.config.rl.roles[name].later)):
                read = schedule._digests[name, number] = read_role(parts.config, name, number, *schedule._place)
                parts.identity[f"checkpoint {number} after the first of the role {name}"] = read
        return schedule

    def begin(self, run: Run, sampler: Sampler) -> None:
        """Loads what answers in the first iteration of this process."""
        self._run, self._sampler = run, sampler
        self._exchange(run.start + 1)

    def record(self, step: int, groups: Sequence[PromptGroup]) -> Mapping[str, Any]:
        """Loads what answers in the next iteration; ``role_checkpoint/NAME`` is the number of the one of this step."""
        record = {f"role_checkpoint/{name}": number for name, number in self._numbers.items()}
        self._exchange(step + 1)
        return record

    def _exchange(self, iteration: int) -> None:
        for name, before in self._numbers.items():
            number = number_in(self._config.rl.roles[name], iteration)
            if number != before:
                client = self._sampler.episodes.roles.client_of(name).client
                if not self._separate:
                    client.engine.release()  # before the next one is read
                    engine = load_role(self._config, name, number, *self._place)
                    client.exchange(self._commands.engine(engine))
                elif not self._commands.follows:  # the pool of the role's engines, which load it
                    client.publish(number, self._digests[name, number])
                    self._parts.event_loop.run(client.need(number))
                self._numbers[name] = number
                self._run.note(f"iteration {iteration:,}: checkpoint {number} after the first answers as {name}")
