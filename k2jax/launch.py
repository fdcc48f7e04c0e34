"""Starts a training run on TPU slices of many hosts: prints the exact commands, and runs them.

Example:
    python -m k2jax.launch --config=experiments/pretrain/k2_1t.py --workdir=gs://bucket/run \\
        --tpu=v5p-2048 --project=my-project --zone=us-east5-a \\
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run
    python -m k2jax.launch --backend=jobset --cluster=my-cluster --tpu=v5p:8x8x16 --slices=2 ...

What is printed is a shell script, and is what runs. Hosts run k2jax.train with the --config flags as they are typed
here; it resumes from its workdir, so a run that is preempted goes on by itself. docs/launch.md has the rest.

Exit codes: 0 started (vm: finished); 2 a mistake in the flags; else that of the command, or with vm of the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
import shutil
import subprocess
import sys

from absl import flags

from k2jax import cli
from k2jax.cluster.jobset import jobset_script
from k2jax.cluster.run import CAPACITIES, Run, environment_of, name_of
from k2jax.cluster.slices import parse_slice
from k2jax.cluster.vm import vm_script
from k2jax.cluster.xpk import xpk_script
from k2jax.config.schema import Config
from k2jax.errors import UserError

SCRIPTS = {"vm": vm_script, "jobset": jobset_script, "xpk": xpk_script}
TOOLS = {"vm": ("gcloud",), "jobset": ("gcloud", "kubectl"), "xpk": ("xpk",)}


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    cli.define_config(values)
    to = {"flag_values": values}
    flags.DEFINE_string("workdir", None, "Folder of the run, gs://BUCKET/FOLDER; mounted on every host.", **to)
    flags.DEFINE_string("tpu", None, "A slice: v5litepod-8, v5p-2048, or by topology v5p:8x8x16.", **to)
    flags.DEFINE_integer("slices", 1, "How many of them.", **to)
    flags.DEFINE_enum("backend", "vm", list(SCRIPTS), "Cloud TPU VMs, a JobSet on GKE, or xpk.", **to)
    flags.DEFINE_string("image", None, "Container image with this repository, installed, as working directory.", **to)
    flags.DEFINE_string("project", None, "Google Cloud project.", **to)
    flags.DEFINE_string("zone", None, "Zone of the TPUs; for GKE the zone or region of the cluster.", **to)
    flags.DEFINE_string("cluster", "", "GKE cluster (jobset, xpk).", **to)
    flags.DEFINE_string("name", None, "Of the job; default: the last part of the workdir.", **to)
    flags.DEFINE_enum("capacity", "on_demand", CAPACITIES, "How the TPUs are paid for.", **to)
    flags.DEFINE_string("reservation", "", "Name of the reservation (jobset, xpk).", **to)
    flags.DEFINE_string("service_account", "", "Whose rights the hosts have: an account (vm), or Kubernetes'.", **to)
    flags.DEFINE_multi_string("env", [], "NAME=VALUE for every host; repeat for more.", **to)
    flags.DEFINE_integer("max_restarts", 100, "How often a run that stopped is started again.", **to)
    flags.DEFINE_integer("grace_seconds", 600, "Time to save between SIGTERM and SIGKILL.", **to)
    flags.DEFINE_bool("dry_run", False, "Print the commands only.", **to)


def main(values: flags.FlagValues) -> int:
    """Runs the command."""
    cli.require(values, "config", "workdir", "tpu", "image", "project", "zone")
    config, run = cli.config_of(values), run_of(values, trainer_arguments(sys.argv[1:], values))
    script = SCRIPTS[values.backend](run)
    check_mesh(config, run)
    print(script, end="", flush=True)
    if values.dry_run:
        return 0
    for tool in TOOLS[values.backend]:
        if shutil.which(tool) is None:
            raise UserError(
                f"{tool} is not installed; --backend={values.backend} needs {', '.join(TOOLS[values.backend])}"
            )
    return subprocess.run(["bash", "-c", script]).returncode


def run_of(values: flags.FlagValues, arguments: tuple[str, ...]) -> Run:
    """The run that the flags describe; ``arguments`` are the trainer's."""
    path = PurePosixPath(values["config"].config_filename.partition(":")[0])
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"--config {path} must be relative to the repository, as it is in the image")
    same = "slices image workdir project zone cluster capacity reservation service_account max_restarts grace_seconds"
    return Run(
        name=values.name or name_of(values.workdir),
        tpu=parse_slice(values.tpu),
        arguments=arguments,
        environment=environment_of(values.env),
        **{name: values[name].value for name in same.split()},
    )


def check_mesh(config: Config, run: Run) -> None:
    """Refuses what every host would refuse once it has its slice.

    Raises:
        UserError: the config's mesh does not fit the slices, or batch and model do not fit the mesh.
    """
    from jax.sharding import AbstractMesh  # here: other mistakes need not wait for it

    from k2jax.analysis.chips import CHIPS
    from k2jax.parallel.layout import make_layout
    from k2jax.parallel.mesh import axis_sizes, rows_per_micro_batch
    from k2jax.parallel.torus import sizes_of_slice

    devices = run.slices * run.tpu.chips * CHIPS[run.tpu.generation.name].devices
    sizes = axis_sizes(config, devices)
    sizes_of_slice(sizes, run.slices)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    rows_per_micro_batch(config, mesh)
    make_layout(config, mesh)


def trainer_arguments(argv: Sequence[str], values: flags.FlagValues) -> tuple[str, ...]:
    """What of a command line (without the program's name) is not this command's own, word by word as typed."""
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


if __name__ == "__main__":
    cli.run(main, define, __doc__)
