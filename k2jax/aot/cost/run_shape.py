"""Of a config on a topology what decides the cost of a lost host: its hosts, bytes, and the time of a step."""

from __future__ import annotations

from typing import NamedTuple

from k2jax.aot.cost.estimate import estimate
from k2jax.aot.cost.expert_rows import BFLOAT16
from k2jax.aot.cost.host_loss import RunShape
from k2jax.aot.topology import chip_of, devices
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.model import model_specs
from k2jax.params import named_specs
from k2jax.pods.slices import parse_slice


class EngineSlices(NamedTuple):
    """Engines on chips of their own: how many, and the topology of each."""

    count: int = 0
    topology: str = "v5p:4x4x4"


def run_shape(
    config: Config, topology: str, engines: EngineSlices, workers: int, rollout_seconds: float = 0.0
) -> RunShape:
    """The shape of a run, by the estimate of its training step.

    An iteration of reinforcement learning is ``rl.updates`` steps on full rows, and ``rollout_seconds``, which no
    formula gives. Checkpoints hold the state as it lies at rest, empty slots of pipeline stages included.

    Args:
        config: the experiment, as ``compiling.for_tpu`` returns it.
        topology: on which it trains.
        engines: beside it.
        workers: machines that run episodes.
        rollout_seconds: of an iteration, in which nothing is trained.

    Raises:
        UserError: no such topology, sizes that do not divide, or engines, workers or rollouts that the config
            has not.
    """
    reinforced = config.stage == "rl"
    if not reinforced and (engines.count or workers or rollout_seconds):
        raise UserError(f"--engines, --workers and --rollout_seconds are for stage rl, not for stage {config.stage}")
    if engines.count and config.rl.engines.placement != "separate":
        raise UserError("--engines are those of config.rl.engines.placement separate; set it, or omit --engines")
    if rollout_seconds < 0:
        raise UserError(f"--rollout_seconds {rollout_seconds:g} is negative")
    chip, trainer = chip_of(topology), parse_slice(topology)
    estimated = estimate(config, chip, devices(topology))
    at_rest = estimated.hbm.parts["parameters"] + estimated.hbm.parts["optimizer state"]
    updates = config.rl.updates if reinforced else 1
    engine = parse_slice(engines.topology)
    return RunShape(
        trainer_hosts=trainer.nodes,
        state_bytes=at_rest * chip.devices * trainer.chips_per_node,
        host_bandwidth=chip.host_bandwidth * trainer.chips_per_node,
        training_seconds=updates * estimated.roofline.seconds,
        rollout_seconds=rollout_seconds,
        groups_kept=reinforced and config.rl.rollout.sampler == "workers",
        interval=config.checkpoint.every,
        engines=engines.count,
        engine_hosts=engine.nodes,
        weight_bytes=BFLOAT16 * sum(spec.size for _, spec in named_specs(model_specs(config.model))),
        workers=workers,
    )
