r"""Launches a run on TPU slices of many hosts, or another command: prints the shell commands, then runs them.

Example:
    python -m k2jax.launch --config=experiments/pretrain/k2_1t.py --workdir=gs://bucket/run \
        --tpu=v5p-2048 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run
    python -m k2jax.launch --backend=jobset --cluster=my-cluster --tpu=v5p:8x8x16 --slices=2 ...
    python -m k2jax.launch --backend=jobset --tpu=v5p:8x8x16 --engines=v5p-128 --engine_slices=4 --workers=32 \
        --machine=n2-standard-32 ...
    python -m k2jax.launch --module=k2jax.rollout --arguments='--checkpoint=/gcs/bucket/sft --tasks=1000' ...

The command runs exactly the shell script that it prints. Each host runs k2jax.train, or k2jax.rl for an experiment of
that stage, with the --config flags of this command line. The trainer resumes from its workdir, so a preempted run
continues by itself. See docs/launch.md.

--engines starts separate engines of reinforcement learning on slices of their own, of one host or more, and --workers
machines that run its episodes. --module launches another command with its --arguments: collecting, evaluating, writing
data.

Exit codes: 0 if the run was started (vm: has finished), 2 for a mistake in the flags, otherwise the exit code of the
backend's command (vm: of the trainer).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
import shlex
import shutil
import subprocess
import sys

from absl import flags

from k2jax import cli
from k2jax.chips import CHIPS
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.pods.jobset import jobset_script
from k2jax.pods.launch_spec import CAPACITIES, LaunchSpec, job_name, parse_environment
from k2jax.pods.modules import MODULES, TRAINERS, TRAINING, check_hosts, check_module, parse_arguments, takes
from k2jax.pods.slices import parse_slice
from k2jax.pods.vm import vm_script
from k2jax.pods.xpk import xpk_script

SCRIPTS = {"vm": vm_script, "jobset": jobset_script, "xpk": xpk_script}
TOOLS = {"vm": ("gcloud",), "jobset": ("gcloud", "kubectl"), "xpk": ("xpk",)}


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    cli.define_config(values)
    to = {"flag_values": values}
    flags.DEFINE_string("workdir", None, "Folder of the run, gs://BUCKET/FOLDER; every host mounts it.", **to)
    flags.DEFINE_string("tpu", None, "Slice, as a type (v5litepod-8, v5p-2048) or a topology (v5p:8x8x16).", **to)
    flags.DEFINE_integer("slices", 1, "Number of slices.", **to)
    flags.DEFINE_enum("backend", "vm", list(SCRIPTS), "Cloud TPU VMs, a JobSet on GKE, or xpk.", **to)
    flags.DEFINE_string("engines", None, "Slice of each separate engine, as --tpu (jobset, xpk).", **to)
    flags.DEFINE_integer("engine_slices", 0, "Number of separate engines.", **to)
    flags.DEFINE_integer("workers", 0, "Machines that run episodes, in a Ray cluster (jobset).", **to)
    flags.DEFINE_string("machine", "", "Type of the machines without TPUs, such as n2-standard-32 (jobset).", **to)
    flags.DEFINE_string("module", None, f"Command to launch: {', '.join(MODULES)}; default: the stage's trainer.", **to)
    flags.DEFINE_string("arguments", "", "Arguments of another --module than a trainer, quoted as for a shell.", **to)
    flags.DEFINE_string("image", None, "Container image whose working directory is this repository, installed.", **to)
    flags.DEFINE_string("project", None, "Google Cloud project.", **to)
    flags.DEFINE_string("zone", None, "Zone of the TPUs; for GKE the zone or region of the cluster.", **to)
    flags.DEFINE_string("cluster", "", "GKE cluster (jobset, xpk).", **to)
    flags.DEFINE_string("name", None, "Name of the job; default: the last part of the workdir.", **to)
    flags.DEFINE_enum("capacity", "on_demand", CAPACITIES, "Provisioning model of the TPUs.", **to)
    flags.DEFINE_string("reservation", "", "Name of the reservation (jobset, xpk).", **to)
    flags.DEFINE_string("service_account", "", "Account of the hosts: an email (vm), or a Kubernetes account.", **to)
    flags.DEFINE_string("secret", "", "Kubernetes secret whose keys are variables of every host (jobset).", **to)
    flags.DEFINE_multi_string("env", [], "NAME=VALUE for every host; can be repeated.", **to)
    flags.DEFINE_integer("max_restarts", 100, "Most restarts of a run that has stopped.", **to)
    flags.DEFINE_integer("grace_seconds", 600, "Time from SIGTERM to SIGKILL [s].", **to)
    flags.DEFINE_bool("dry_run", False, "Only print the commands.", **to)


def main(values: flags.FlagValues) -> int:
    """Runs the command."""
    cli.require(values, "workdir", "image", "project", "zone")
    spec = spec_of_flags(values, sys.argv[1:])
    script = SCRIPTS[values.backend](spec)
    if spec.module in TRAINING:
        config = cli.config_of(values)
        check_engines(config, spec)
        check_mesh(config, spec)
    print(script, end="", flush=True)
    if values.dry_run:
        return 0
    for tool in TOOLS[values.backend]:
        if shutil.which(tool) is None:
            raise UserError(
                f"{tool} is not installed; --backend={values.backend} needs {', '.join(TOOLS[values.backend])}"
            )
    return subprocess.run(["bash", "-c", script]).returncode


def spec_of_flags(values: flags.FlagValues, argv: Sequence[str]) -> LaunchSpec:
    """Returns the launch that the flags describe; ``argv`` are the words that they were parsed from.

    Raises:
        UserError: a flag is missing or wrong.
    """
    module = _module(values)
    if values.tpu is None and (module in TRAINING or not values.machine):
        raise UserError("--tpu is required; --help shows an example")
    plain = "slices image workdir project zone cluster capacity reservation service_account max_restarts grace_seconds"
    plain += " engine_slices workers machine secret"
    spec = LaunchSpec(
        name=values.name or job_name(values.workdir),
        tpu=parse_slice(values.tpu) if values.tpu else None,
        arguments=_arguments(values, module, config_arguments(argv, values)),
        module=module,
        takes_workdir=takes(module, "workdir"),
        environment=parse_environment(values.env),
        engines=parse_slice(values.engines, "--engines") if values.engines else None,
        **{name: values[name].value for name in plain.split()},
    )
    check_hosts(module, spec.slices * (spec.tpu.nodes if spec.tpu else 1), "--tpu")
    return spec


def _module(values: flags.FlagValues) -> str:
    """The command that is launched: --module, or the trainer of the config's stage."""
    if values.module is not None:
        check_module(values.module)
    if values.module is None or values.module in TRAINING:
        cli.require(values, "config")
    if values.config is not None:
        path = PurePosixPath(values["config"].config_filename.partition(":")[0])
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"--config {path} must be relative to the repository, because the image contains it")
    if values.module not in (None, *TRAINING):
        return values.module
    stage = cli.config_of(values).stage
    trainer = TRAINERS.get(stage, "k2jax.train")
    if values.module not in (None, trainer):
        raise UserError(f"--module={values.module} does not train the stage {stage}; omit it")
    return trainer


def _arguments(values: flags.FlagValues, module: str, config: tuple[str, ...]) -> tuple[str, ...]:
    """The words of the module, checked as it would check them itself."""
    if module in TRAINING:
        if values.arguments:
            raise UserError(f"{module} takes --config and --workdir alone; omit --arguments")
        check_beside(cli.config_of(values), values.engines, values.workers)
        return config
    if values.engines:
        raise UserError(f"--engines are of reinforcement learning, and {module} has its own; omit it")
    try:
        words = shlex.split(values.arguments)
    except ValueError as error:
        raise UserError(f"--arguments {values.arguments!r} cannot be read as a shell would: {error}") from None
    parsed = parse_arguments(module, config, words)
    if values.workers and not ("ray" in parsed and parsed.ray == "auto"):
        raise UserError("--workers are nodes of a Ray cluster; only k2jax.rollout with --ray=auto uses them")
    return (*config, *words)


def check_engines(config: Config, spec: LaunchSpec) -> None:
    """Checks that an engine fits its slice, of which it uses every host.

    Raises:
        UserError: it does not.
    """
    if spec.engines is None:
        return
    rollout, devices = config.rl.rollout, spec.engines.chips * CHIPS[spec.engines.generation.name].devices
    used = rollout.data * rollout.expert
    if used > devices or (spec.engines.nodes > 1 and used < devices):
        raise UserError(
            f"--engines={spec.engines} has {devices} devices, and an engine of "
            f"config.rl.rollout.data {rollout.data} x expert {rollout.expert} has {used}; choose another slice or "
            f"factors of {devices}"
        )


def check_mesh(config: Config, spec: LaunchSpec) -> None:
    """Checks what every host would check at its start.

    Raises:
        UserError: the config's mesh does not fit the slices, or batch or model do not fit the mesh.
    """
    from jax.sharding import AbstractMesh  # imported late, so that other mistakes are reported without its delay

    from k2jax.parallel.layout import make_layout
    from k2jax.parallel.mesh import axis_sizes, rows_per_micro_batch
    from k2jax.parallel.torus import sizes_of_slice

    devices = spec.slices * spec.tpu.chips * CHIPS[spec.tpu.generation.name].devices
    sizes = axis_sizes(config, devices)
    sizes_of_slice(sizes, spec.slices)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    rows_per_micro_batch(config, mesh)
    make_layout(config, mesh)


def check_beside(config: Config, engines: str | None, workers: int) -> None:
    """Checks that a config's run has use for the engines and workers that are launched beside it.

    Raises:
        UserError: it has none.
    """
    if engines and (config.stage != "rl" or config.rl.engines.placement != "separate"):
        raise UserError(
            "--engines are of stage rl with config.rl.engines.placement=separate; set it, or omit --engines"
        )
    if engines and config.rl.engines.listen:
        raise UserError("--engines says itself where they join; leave config.rl.engines.listen empty")
    rollout = config.rl.rollout
    if workers and (config.stage != "rl" or rollout.sampler != "workers" or rollout.workers < workers):
        raise UserError(
            f"--workers={workers} needs stage rl with config.rl.rollout.sampler=workers and, for a process on each, "
            f"config.rl.rollout.workers={workers} or more"
        )


def config_arguments(argv: Sequence[str], values: flags.FlagValues) -> tuple[str, ...]:
    """Returns the words of a command line (without the program's name) that are not flags of this command."""
    own = {name for name in values if name.partition(".")[0] != "config"}
    own |= {f"no{name}" for name in own if values[name].boolean}
    kept, words = [], iter(argv)
    for word in words:
        name = word.lstrip("-").partition("=")[0]
        takes_next = "=" not in word and name in values and not values[name].boolean
        phrase = [word, *([next(words)] if takes_next else [])]
        if name not in own:
            kept += phrase
    return tuple(kept)


def command() -> None:
    """Runs the command line."""
    cli.run(main, define, __doc__, remote=("workdir",))
