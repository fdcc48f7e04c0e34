"""Roles beside the policy: frozen checkpoints, each with an engine of its own on the devices of the policy's.

A role has the run's vocabulary and chat format, since trajectories are stored with the run's tokenizer. Its weights are
loaded once and never change, and stay on the devices while the policy trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.sharding import Mesh

from k2jax.agents.roles import RoleClient
from k2jax.client import Sampling
from k2jax.config.schema import Config
from k2jax.convert.loading import tokenizer_of
from k2jax.errors import UserError
from k2jax.inference.checksum import digest
from k2jax.inference.engine import Engine
from k2jax.inference.loading import load_engine
from k2jax.inference.lockstep import LockstepClient
from k2jax.text.chat import ChatFormat
from k2jax.text.tokenizer import Tokenizer


class FrozenModel(NamedTuple):
    """A checkpoint that answers as a role.

    Attributes:
        engine: with its weights.
        sampling: how its messages are sampled.
    """

    engine: Engine
    sampling: Sampling

    def checksum(self) -> str:
        """Of its weights."""
        return digest({name: next(iter(sums)) for name, sums in self.engine.weights.checksums().items()})


def open_roles(config: Config, tokenizer: Tokenizer, mesh: Mesh | None, dtype: Any = None) -> dict[str, FrozenModel]:
    """Loads the checkpoints of ``config.rl.roles``.

    Args:
        config: the experiment.
        tokenizer: of the run.
        mesh: of the policy's engine; None is the default device.
        dtype: of weights and computation; None keeps what is stored.

    Returns:
        Of each role, in the order of the names.

    Raises:
        UserError: a checkpoint cannot be read, has another vocabulary than the run, or does not divide over the mesh.
    """
    opened = {}
    for name in sorted(config.rl.roles):
        role = config.rl.roles[name]
        if tokenizer_of(role.checkpoint).fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"config.rl.roles.{name}.checkpoint {role.checkpoint} has another vocabulary than the run, whose "
                "trajectories hold what it says; choose a checkpoint with the run's tokenizer"
            )
        engine = load_engine(role.checkpoint, dtype, mesh, slots=role.slots, max_length=config.rl.rollout.max_length)
        tail = {"temperature": role.temperature, "top_p": role.top_p, "top_k": role.top_k}
        opened[name] = FrozenModel(engine, Sampling(max_tokens=role.max_tokens, **tail))
    return opened


def roles_in_lockstep(
    client: LockstepClient, chat: ChatFormat, tokenizer: Tokenizer, models: Mapping[str, FrozenModel]
) -> dict[str, RoleClient]:
    """Clients of roles that share the participants of the policy's.

    Args:
        client: of the policy.
        chat: the run's conversations.
        tokenizer: of the run.
        models: of ``open_roles``.
    """
    return {
        name: RoleClient(LockstepClient(model.engine, beside=client), chat, tokenizer, model.sampling)
        for name, model in models.items()
    }
