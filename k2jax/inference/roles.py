"""Roles beside the policy: frozen checkpoints, each with an engine of its own on the devices of the policy's.

A role has the run's vocabulary and chat format, since trajectories are stored with the run's tokenizer. Its weights are
not trained, and stay on the devices while the policy is. A role may have later checkpoints, such as larger sub-agents,
which come at the beginning of an iteration that the configuration names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.sharding import Mesh

from k2jax.agents.roles import RoleClient
from k2jax.client import Sampling
from k2jax.config.schema import Config, RoleConfig
from k2jax.convert.loading import Opened, open_pretrained, tokenizer_of
from k2jax.errors import UserError
from k2jax.inference.checksum import digest
from k2jax.inference.engine import Engine
from k2jax.inference.loading import load_engine
from k2jax.inference.lockstep import LockstepClient
from k2jax.inference.weights import checksums_of
from k2jax.text.chat import ChatFormat
from k2jax.text.tokenizer import Tokenizer


class FrozenModel(NamedTuple):
    """A checkpoint that answers as a role.

    Attributes:
        engine: with its weights; None where it has a process of its own.
        sampling: how its messages are sampled.
        digest: of its weights, see ``checksum.digest``.
    """

    engine: Engine | None
    sampling: Sampling
    digest: str


def open_roles(
    config: Config, tokenizer: Tokenizer, mesh: Mesh | None, dtype: Any = None, iteration: int = 1
) -> dict[str, FrozenModel]:
    """Loads the checkpoints of ``config.rl.roles`` that answer in an iteration.

    Args:
        config: the experiment.
        tokenizer: of the run.
        mesh: of the policy's engine; None is the default device.
        dtype: of weights and computation; None keeps what is stored.
        iteration: from 1.

    Returns:
        Of each role, in the order of the names.

    Raises:
        UserError: a checkpoint cannot be read, has another vocabulary than the run, or does not divide over the mesh.
    """
    opened = {}
    for name, sampling in _sampled(config, tokenizer).items():
        engine = load_role(config, name, number_in(config.rl.roles[name], iteration), mesh, dtype)
        opened[name] = FrozenModel(engine, sampling, engine.weights.digest())
    return opened


def read_roles(config: Config, tokenizer: Tokenizer, dtype: Any = None) -> dict[str, FrozenModel]:
    """Reads the first checkpoints of roles whose engines are elsewhere; see ``open_roles``."""
    sampled = _sampled(config, tokenizer)
    return {
        name: FrozenModel(None, sampling, read_role(config, name, 0, None, dtype)) for name, sampling in sampled.items()
    }


def _sampled(config: Config, tokenizer: Tokenizer) -> dict[str, Sampling]:
    """How messages of each role are sampled, in the order of the names, once its vocabularies are found to be right."""
    sampled = {}
    for name in sorted(config.rl.roles):
        role = config.rl.roles[name]
        for key, checkpoint in (("checkpoint", role.checkpoint), *(("later", later) for later in role.later)):
            if tokenizer_of(checkpoint).fingerprint != tokenizer.fingerprint:
                raise UserError(
                    f"config.rl.roles.{name}.{key} {checkpoint} has another vocabulary than the run, whose "
                    "trajectories hold what it says; choose a checkpoint with the run's tokenizer"
                )
        tail = {"temperature": role.temperature, "top_p": role.top_p, "top_k": role.top_k}
        sampled[name] = Sampling(max_tokens=role.max_tokens, **tail)
    return sampled


def number_in(role: RoleConfig, iteration: int) -> int:
    """Which checkpoint answers as a role in an iteration from 1: 0 is ``checkpoint``, 1 the first of ``later``."""
    return sum(start <= iteration for start in role.later_from)


def load_role(config: Config, name: str, number: int, mesh: Mesh | None, dtype: Any = None) -> Engine:
    """An engine with a checkpoint of a role, whose number is the version that its tokens record.

    Args:
        config: the experiment.
        name: of the role.
        number: see ``number_in``.
        mesh: see ``open_roles``.
        dtype: see ``open_roles``.
    """
    role = config.rl.roles[name]
    sizes = {"slots": role.slots, "max_length": config.rl.rollout.max_length, "version": number}
    return load_engine((role.checkpoint, *role.later)[number], dtype, mesh, **sizes)


def read_role(config: Config, name: str, number: int, mesh: Mesh | None, dtype: Any = None) -> str:
    """Reads a checkpoint that is loaded later or elsewhere, one weight at a time; returns the digest that it has then.

    Raises:
        UserError: it cannot be read, or does not divide over the mesh.
    """
    opened, engine = empty_role(config, name, number, mesh, dtype)
    return digest(checksums_of(opened.host_leaves(), engine.weights))


def empty_role(config: Config, name: str, number: int, mesh: Mesh | None, dtype: Any = None) -> tuple[Opened, Engine]:
    """A checkpoint of a role, and an engine that waits for its weights.

    Args:
        config: the experiment.
        name: of the role.
        number: see ``number_in``.
        mesh: see ``open_roles``.
        dtype: see ``open_roles``.

    Raises:
        UserError: it cannot be read, or does not divide over the mesh.
    """
    role = config.rl.roles[name]
    opened = open_pretrained((role.checkpoint, *role.later)[number])
    sizes = {"slots": role.slots, "max_length": config.rl.rollout.max_length, "version": -1}
    return opened, Engine(opened.model, opened.abstract(dtype), mesh=mesh, **sizes)


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
