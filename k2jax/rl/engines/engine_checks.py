"""What engines of their own cannot do, and their keys without them."""

from __future__ import annotations

import re

from k2jax import processes
from k2jax.config.schema import Config, EnginesConfig
from k2jax.errors import UserError


def check_engines(config: Config) -> None:
    """Rejects what engines of a placement cannot do.

    Raises:
        UserError: in one line that names the keys.
    """
    engines, rollout = config.rl.engines, config.rl.rollout
    if engines.placement == "colocated":
        unread = [name for name in ("start", "listen") if getattr(engines, name) != getattr(EnginesConfig(), name)]
        if unread:
            raise UserError(
                f"config.rl.engines.{unread[0]} is of engines in processes of their own; set "
                "config.rl.engines.placement to separate"
            )
        return
    if rollout.sampler != "workers":
        raise UserError(
            "config.rl.engines.placement separate generates while the trainer updates, which lockstep does not; set "
            "config.rl.rollout.sampler to workers"
        )
    for key, is_set, words in (
        ("rollout.offload_state", rollout.offload_state, "gives devices to an engine that is on others"),
        ("rollout.publish", rollout.publish, "is what config.rl.engines.placement separate always does"),
    ):
        if is_set:
            raise UserError(f"config.rl.{key} {words}; set it to False")
    if 0 < engines.start <= len(config.rl.roles):
        raise UserError(
            f"config.rl.engines.start {engines.start} must be 0, or more than the {len(config.rl.roles)} roles of "
            "config.rl.roles: the policy and each role need an engine"
        )
    if processes.count() > 1 and not engines.listen:
        raise UserError(
            f"{processes.count()} training processes give engines their parts of the weights over the network; set "
            "config.rl.engines.listen to HOST:PORT of the first one"
        )
    if engines.listen and not re.fullmatch(r"[^\s:]+:\d{1,5}", engines.listen):
        raise UserError(f"config.rl.engines.listen {engines.listen!r} is no HOST:PORT, e.g. 10.0.0.7:4567")
