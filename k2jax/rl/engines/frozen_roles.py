"""The models of the roles beside the policy's, whose engines are where ``rl.engines.placement`` says."""

from __future__ import annotations

from collections.abc import Mapping

from k2jax.agents.roles import RoleClient
from k2jax.inference import ContinuousClient
from k2jax.inference.roles import FrozenModel, open_roles, read_roles
from k2jax.rl.engines.engine_pool import EnginePool
from k2jax.rl.methods.base import Parts
from k2jax.rl.sync.weight_sync import rollout_dtype, rollout_mesh


def open_frozen(parts: Parts) -> dict[str, FrozenModel]:
    """Their checkpoints, which must not change between starts; with engines on the trainer's devices, or without."""
    config, dtype = parts.config, rollout_dtype(parts.program)
    if config.rl.engines.placement == "colocated":
        frozen = open_roles(config, parts.tokenizer, rollout_mesh(parts.program, config.rl.rollout), dtype)
    else:
        frozen = read_roles(config, parts.tokenizer, dtype)
    parts.identity.update({f"checkpoint of the role {name}": model.digest for name, model in frozen.items()})
    return frozen


def clients_of(parts: Parts, frozen: Mapping[str, FrozenModel], pool: EnginePool | None) -> dict[str, RoleClient]:
    """Who answers as each role, for episodes that do not run in lockstep.

    Args:
        parts: of the run.
        frozen: of ``open_frozen``.
        pool: of the policy where engines have processes of their own, else None.
    """
    roles = {}
    for name, model in frozen.items():
        if pool is None:
            client = ContinuousClient(model.engine)
        else:
            client = pool.beside[name]
            client.publish(0, model.digest)
            parts.event_loop.run(client.need(0))
        roles[name] = RoleClient(client, parts.chat, parts.tokenizer, model.sampling)
    return roles
