"""One run as every backend sees it: what is started, where its workdir lies, under which environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
import re

from k2jax.cluster.slices import Slice
from k2jax.errors import UserError

CAPACITIES = ("on_demand", "spot", "reserved", "flex")
NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
LONGEST_NAME = 40
"""xpk's limit; with it the names of a JobSet's pods stay below Kubernetes' 63."""
NOT_RETRIED = (2, 3)
"""Exit codes of the trainer that a restart cannot mend: a user's mistake, and a loss that is not finite."""
XLA_OPTIONS = ("--xla_tpu_enable_async_all_to_all=true", "--xla_tpu_enable_async_ragged_all_to_all=true")
"""Let the exchange of expert parallelism overlap with matrix products; see ``pallas_kernels.expert_exchange``."""
MOUNTS = "/gcs"


@dataclass(frozen=True)
class Run:
    """A training run on TPU slices.

    Attributes:
        name: of the job; lower-case letters, digits and dashes.
        tpu: one slice.
        slices: how many of them, joined by the data-center network.
        image: container image that holds this repository, installed, as its working directory.
        arguments: of ``k2jax.train``, as typed: ``--config`` and its overrides.
        workdir: ``gs://BUCKET/FOLDER``.
        project: Google Cloud project.
        zone: where the TPUs are; for a cluster its zone or region.
        cluster: GKE cluster; empty where there is none.
        capacity: one of CAPACITIES.
        reservation: its name where the backend needs one, else empty.
        service_account: whose rights the hosts have; empty for the default.
        environment: variables that replace or extend the defaults.
        max_restarts: how often a run that stopped is started again.
        grace_seconds: from SIGTERM to SIGKILL, in which the trainer saves.
    """

    name: str
    tpu: Slice
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

    @property
    def bucket(self) -> str:
        """Name of the bucket that holds the workdir."""
        return split_workdir(self.workdir)[0]

    @property
    def mount(self) -> str:
        """Where the bucket is mounted on every host."""
        return f"{MOUNTS}/{self.bucket}"

    @property
    def mounted_workdir(self) -> str:
        """The workdir as a path on every host."""
        return f"{self.mount}/{split_workdir(self.workdir)[1]}"

    @property
    def command(self) -> tuple[str, ...]:
        """What every host runs, word by word."""
        return ("python", "-m", "k2jax.train", f"--workdir={self.mounted_workdir}", *self.arguments)

    @property
    def variables(self) -> dict[str, str]:
        """The environment it runs under. Nothing in it says who is who: JAX asks Cloud TPU or GKE."""
        return {
            "JAX_PLATFORMS": "tpu,cpu",  # a host whose TPU does not start stops, instead of training on its CPU
            "JAX_COMPILATION_CACHE_DIR": f"{self.mounted_workdir}/compilation_cache",
            "K2JAX_CACHE": f"{self.mounted_workdir}/cache",  # process 0 builds in it what every host reads
            "LIBTPU_INIT_ARGS": " ".join(XLA_OPTIONS),
            "PYTHONUNBUFFERED": "1",
            **dict(self.environment),
        }


def split_workdir(workdir: str) -> tuple[str, str]:
    """Bucket and folder of ``gs://BUCKET/FOLDER``.

    Raises:
        UserError: it is not such a name.
    """
    match = re.fullmatch(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])/(.+?)/?", workdir)
    if match is None:
        if "://" not in workdir:
            raise UserError(
                f"--workdir {workdir} is local, and hosts come and go with what is on them; name gs://BUCKET/FOLDER"
            )
        raise UserError(f"--workdir {workdir!r} is not a folder in a bucket, gs://BUCKET/FOLDER")
    if any(part in ("", ".", "..") for part in match[2].split("/")) or re.search(r"[*?\[\]]", match[2]):
        raise UserError(f"--workdir {workdir!r} has a wildcard or a part that is empty, '.' or '..'; name one folder")
    return match[1], match[2]


def name_of(workdir: str) -> str:
    """A job's name from the last part of its workdir; may be unusable, which ``check`` finds."""
    last = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(workdir).name.lower()).strip("-")
    return (last if last[:1].isalpha() else f"run-{last}")[:LONGEST_NAME].strip("-")


def check(run: Run) -> None:
    """Refuses what no backend could run.

    Raises:
        UserError: says which flag is wrong, in one line.
    """
    if re.fullmatch(NAME, run.name) is None or len(run.name) > LONGEST_NAME:
        raise UserError(
            f"--name {run.name!r} is not a name for a job; use up to {LONGEST_NAME} lower-case letters, digits and "
            "dashes, a letter first"
        )
    for flag in ("project", "zone", "image"):
        if not getattr(run, flag):
            raise UserError(f"--{flag} is empty")
    if run.slices < 1 or run.max_restarts < 0 or run.grace_seconds < 1:
        raise UserError("--slices and --grace_seconds are at least 1, --max_restarts at least 0")
    if bool(run.reservation) and run.capacity != "reserved":
        raise UserError(f"--reservation {run.reservation} needs --capacity=reserved, not {run.capacity}")
    for text in (run.workdir, run.image, *run.arguments, *(part for pair in run.environment for part in pair)):
        if text.encode("utf-8", "replace").decode() != text:  # words of the command line may be any bytes
            raise UserError(f"{text!r} is not text in UTF-8, which a manifest cannot carry")
    split_workdir(run.workdir)


def check_cluster(run: Run) -> None:
    """Refuses what GKE cannot run.

    Raises:
        UserError: a flag is missing, or the slices cannot be joined.
    """
    if not run.cluster:
        raise UserError("--cluster is required to run on GKE; name the cluster that has the TPU node pools")
    if run.slices > 1 and run.tpu.nodes == 1:
        raise UserError(f"GKE joins slices of several hosts only, and {run.tpu} is one host; use a larger --tpu")
    if run.capacity == "reserved" and not run.reservation:
        raise UserError("--capacity=reserved needs --reservation=NAME on GKE")


def environment_of(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    """``NAME=VALUE`` words as pairs.

    Raises:
        UserError: one is not of that form.
    """
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            raise UserError(f"--env {pair!r} is not of the form NAME=VALUE")
        found.append((name, value))
    return tuple(found)


def escape_references(text: str) -> str:
    """``text`` for a container's command or environment, where Kubernetes would replace ``$(NAME)``.

    ``$$`` stands for one ``$`` there (kubernetes.io/docs/tasks/inject-data-application/define-interdependent-
    environment-variables).
    """
    return text.replace("$", "$$")
