"""The parts of a launch: what starts on how many machines of which kind. Without engines and workers there is one.

A run of reinforcement learning may have engines on slices of their own and machines for its episodes beside its
trainer. Each engine is a part by itself, because hosts of one part would be taken for one training of many slices. The
workers are nodes of a Ray cluster, whose head is on the trainer's first host.
"""

from __future__ import annotations

import dataclasses

from k2jax.pods.launch_spec import LaunchSpec
from k2jax.pods.slices import Slice

MAIN = "main"
"""The part that the others depend on: the trainer, or whatever else is launched."""
WORKERS = "workers"
ENGINE_PORT = 4567
"""Where engines join the trainer."""
RAY_PORT = 6379
RAY_HEAD = """\
if [ "$HOSTNAME" = {first} ]; then
  ray start --head --port={port} --num-cpus=0 --include-dashboard=false --disable-usage-stats || exit 1
fi
exec "$@"
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Machines of one kind that run one command.

    Attributes:
        name: ``main``, ``engine-0`` and so on, or ``workers``.
        tpu: slice of each replica; None for machines without TPUs.
        replicas: slices.
        hosts: of a replica.
        command: as a list of words.
        variables: environment of the command.
        restarts_alone: whether its hosts start again without the others.
    """

    name: str
    tpu: Slice | None
    replicas: int
    hosts: int
    command: tuple[str, ...]
    variables: dict[str, str]
    restarts_alone: bool


def parts(spec: LaunchSpec, first: str) -> list[Part]:
    """All parts, ``main`` first; ``first`` is the name by which the others reach its first host.

    The trainer is told what only a launch knows: where engines join, and that the workers are nodes of Ray.
    """
    main = Part(
        name=MAIN,
        tpu=spec.tpu,
        replicas=spec.slices,
        hosts=spec.tpu.nodes if spec.tpu else 1,
        command=_main_command(spec, first),
        variables=spec.variables if spec.tpu else spec.cpu_variables,
        restarts_alone=False,
    )
    return [main, *(_engine(spec, number) for number in range(spec.engine_slices)), *_workers(spec, first)]


def _main_command(spec: LaunchSpec, first: str) -> tuple[str, ...]:
    command = spec.command
    if spec.engines:
        listen = f"--config.rl.engines.listen={first}:{ENGINE_PORT}"
        command = (*command, "--config.rl.engines.start=0", listen)
    if not spec.workers:
        return command
    ray = ("--config.rl.rollout.ray=auto",) * (spec.module == "k2jax.rl")
    script = RAY_HEAD.format(first=first.partition(".")[0], port=RAY_PORT)
    return ("bash", "-c", script, "bash", *command, *ray)


def _engine(spec: LaunchSpec, number: int) -> Part:
    return Part(
        name=f"engine-{number}",
        tpu=spec.engines,
        replicas=1,
        hosts=spec.engines.nodes,
        command=spec.engine_command,
        variables=spec.variables,
        restarts_alone=True,
    )


def _workers(spec: LaunchSpec, first: str) -> list[Part]:
    if not spec.workers:
        return []
    ray = ("ray", "start", f"--address={first}:{RAY_PORT}", "--block", "--disable-usage-stats")
    part = Part(
        name=WORKERS,
        tpu=None,
        replicas=1,
        hosts=spec.workers,
        command=ray,
        variables=spec.cpu_variables,
        restarts_alone=True,
    )
    return [part]
