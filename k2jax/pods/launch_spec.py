"""The description of a launch that all backends share: command, workdir, environment, TPU slices, other machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
import re

from k2jax.errors import UserError
from k2jax.pods.slices import Slice

CAPACITIES = ("on_demand", "spot", "reserved", "flex")
JOB_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
LONGEST_NAME = 40
"""Limit of xpk [characters]. It also keeps the pod names of a JobSet below Kubernetes' limit of 63."""
MACHINE = r"[a-z][a-z0-9]*(-[a-z0-9]+)+"
NOT_RETRIED = (2, 3)
"""Exit codes of the trainer after which a restart cannot help: a user's mistake, or a loss that is not finite."""
XLA_OPTIONS = ("--xla_tpu_enable_async_all_to_all=true", "--xla_tpu_enable_async_ragged_all_to_all=true")
"""They let the token exchange of expert parallelism overlap with matrix products."""
MOUNT_ROOT = "/gcs"
ENGINE = ("k2jax.rollout", "engine")
"""Module and first word of the command that is a separate engine."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """A command to launch, mostly a training on TPU slices, with the engines and workers beside it.

    Attributes:
        name: name of the job; lower-case letters, digits and dashes.
        tpu: type of each slice; None for a command on one ``machine``.
        slices: number of slices, connected by the data-center network.
        image: container image in which this repository is installed and is the working directory.
        arguments: arguments of the command as the user typed them: ``--config`` and its overrides, then its own.
        workdir: folder of the run, ``gs://BUCKET/FOLDER``.
        project: Google Cloud project.
        zone: zone of the TPUs; with a cluster, the cluster's zone or region.
        cluster: GKE cluster; empty for Cloud TPU VMs.
        capacity: one of CAPACITIES.
        reservation: name of the reservation if the backend needs one, otherwise empty.
        service_account: account whose permissions the hosts have; empty for the default.
        environment: variables that replace or extend the defaults.
        max_restarts: most restarts of a run that has stopped.
        grace_seconds: time from SIGTERM to SIGKILL, in which the trainer saves a checkpoint [s].
        module: the command that every host runs.
        takes_workdir: whether it has a flag ``--workdir``.
        engines: type of the slice of each separate engine; None without.
        engine_slices: number of separate engines.
        workers: machines that run episodes.
        machine: type of machines without TPUs.
        secret: Kubernetes secret whose keys are variables of every host; empty without.
    """

    name: str
    tpu: Slice | None
    slices: int
    image: str
    arguments: tuple[str, ...]
    workdir: str
    project: str
    zone: str
    cluster: str = ""
    capacity: str = "on_demand"
    reservation: str = ""
    service_account: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    max_restarts: int = 100
    grace_seconds: int = 600
    module: str = "k2jax.train"
    takes_workdir: bool = True
    engines: Slice | None = None
    engine_slices: int = 0
    workers: int = 0
    machine: str = ""
    secret: str = ""

    @property
    def bucket(self) -> str:
        """Bucket of the workdir."""
        return split_workdir(self.workdir)[0]

    @property
    def mount(self) -> str:
        """Path at which every host mounts the bucket."""
        return f"{MOUNT_ROOT}/{self.bucket}"

    @property
    def mounted_workdir(self) -> str:
        """Path of the workdir on every host."""
        return f"{self.mount}/{split_workdir(self.workdir)[1]}"

    @property
    def command(self) -> tuple[str, ...]:
        """Command that every host runs, as a list of words."""
        workdir = [f"--workdir={self.mounted_workdir}"] * self.takes_workdir
        return ("python", "-m", self.module, *workdir, *self.arguments)

    @property
    def engine_command(self) -> tuple[str, ...]:
        """Command that every host of a separate engine runs."""
        return ("python", "-m", *ENGINE, f"--follow={self.mounted_workdir}")

    @property
    def variables(self) -> dict[str, str]:
        """Environment on TPU hosts. It does not identify the hosts: JAX asks Cloud TPU or GKE for that."""
        return {
            "JAX_PLATFORMS": "tpu,cpu",  # a host whose TPU does not start fails, instead of training on its CPU
            **self._folders,
            "LIBTPU_INIT_ARGS": " ".join(XLA_OPTIONS),
            "PYTHONUNBUFFERED": "1",
            **dict(self.environment),
        }

    @property
    def cpu_variables(self) -> dict[str, str]:
        """Environment on machines without TPUs."""
        return {"JAX_PLATFORMS": "cpu", **self._folders, "PYTHONUNBUFFERED": "1", **dict(self.environment)}

    @property
    def _folders(self) -> dict[str, str]:
        return {
            "JAX_COMPILATION_CACHE_DIR": f"{self.mounted_workdir}/compilation_cache",
            "K2JAX_CACHE": f"{self.mounted_workdir}/cache",  # process 0 builds the data here for all hosts
        }


def split_workdir(workdir: str) -> tuple[str, str]:
    """Returns bucket and folder of ``gs://BUCKET/FOLDER``.

    Raises:
        UserError: the name has another form.
    """
    match = re.fullmatch(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])/(.+?)/?", workdir)
    if match is None:
        if "://" not in workdir:
            raise UserError(
                f"--workdir {workdir} is local, and a host's disk is deleted with the host; use gs://BUCKET/FOLDER"
            )
        raise UserError(f"--workdir {workdir!r} is not a folder in a bucket, gs://BUCKET/FOLDER")
    if any(part in ("", ".", "..") for part in match[2].split("/")) or re.search(r"[*?\[\]]", match[2]):
        raise UserError(f"--workdir {workdir!r} has a wildcard or a part that is empty, '.' or '..'; name one folder")
    return match[1], match[2]


def job_name(workdir: str) -> str:
    """Returns a job name made from the last part of the workdir; ``check_spec`` rejects it if it is invalid."""
    last = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(workdir).name.lower()).strip("-")
    return (last if last[:1].isalpha() else f"run-{last}")[:LONGEST_NAME].strip("-")


def check_spec(spec: LaunchSpec) -> None:
    """Checks what every backend requires.

    Raises:
        UserError: a flag is wrong; the message names it.
    """
    if re.fullmatch(JOB_NAME, spec.name) is None or len(spec.name) > LONGEST_NAME:
        raise UserError(
            f"--name {spec.name!r} is not a valid job name; use up to {LONGEST_NAME} lower-case letters, digits and "
            "dashes, beginning with a letter"
        )
    for flag in ("project", "zone", "image"):
        if not getattr(spec, flag):
            raise UserError(f"--{flag} is empty")
    if spec.slices < 1 or spec.max_restarts < 0 or spec.grace_seconds < 1:
        raise UserError("--slices and --grace_seconds must be at least 1, --max_restarts at least 0")
    check_parts(spec)
    if bool(spec.reservation) and spec.capacity != "reserved":
        raise UserError(f"--reservation {spec.reservation} needs --capacity=reserved, not {spec.capacity}")
    for text in (spec.workdir, spec.image, *spec.arguments, *(part for pair in spec.environment for part in pair)):
        if text.encode("utf-8", "replace").decode() != text:  # a command line can contain any bytes
            raise UserError(f"{text!r} is not valid UTF-8, so a manifest cannot contain it")
    split_workdir(spec.workdir)


def check_parts(spec: LaunchSpec) -> None:
    """Checks the machines beside the TPU slices that train.

    Raises:
        UserError: a flag lacks another one that it needs, or that needs it.
    """
    if bool(spec.engines) != (spec.engine_slices > 0):
        raise UserError("--engines=TPU and --engine_slices=NUMBER, at least 1, belong together: give both or neither")
    if spec.workers < 0:
        raise UserError(f"--workers {spec.workers} is negative")
    if bool(spec.machine) != (spec.tpu is None or spec.workers > 0):
        raise UserError("--machine is the type of machines without TPUs, of --workers or of a command without --tpu")
    if spec.secret and re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", spec.secret) is None:
        raise UserError(f"--secret {spec.secret!r} is not the name of a Kubernetes secret")
    if spec.machine and re.fullmatch(MACHINE, spec.machine) is None:
        raise UserError(f"--machine {spec.machine!r} is not a machine type such as n2-standard-32")


def check_cluster(spec: LaunchSpec) -> None:
    """Checks what GKE requires.

    Raises:
        UserError: a flag is missing, or GKE cannot connect the slices.
    """
    if not spec.cluster:
        raise UserError("--cluster is required to run on GKE; name the cluster that has the TPU node pools")
    if spec.tpu and spec.slices > 1 and spec.tpu.nodes == 1:
        raise UserError(f"GKE connects only slices of several hosts, and {spec.tpu} is one host; use a larger --tpu")
    if spec.capacity == "reserved" and not spec.reservation:
        raise UserError("--capacity=reserved needs --reservation=NAME on GKE")


def parse_environment(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    """Returns ``NAME=VALUE`` words as pairs.

    Raises:
        UserError: a word has another form.
    """
    variables = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            raise UserError(f"--env {pair!r} does not have the form NAME=VALUE")
        variables.append((name, value))
    return tuple(variables)


def escape_references(text: str) -> str:
    """Escapes ``text`` for a container's command or environment, in which Kubernetes replaces ``$(NAME)``.

    There ``$$`` stands for one ``$`` (kubernetes.io/docs/tasks/inject-data-application/define-interdependent-
    environment-variables).
    """
    return text.replace("$", "$$")
