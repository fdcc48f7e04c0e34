"""A run through xpk, Google's command that fills in JobSet manifests for the clusters it makes."""

from __future__ import annotations

import re
import shlex

from k2jax.cluster.jobset import MOUNT_OPTIONS
from k2jax.cluster.run import Run, check, check_cluster, escape_references
from k2jax.cluster.shell import command_line
from k2jax.errors import UserError

CAPACITY = {"on_demand": [], "spot": ["--spot"], "flex": ["--flex"]}


def xpk_script(run: Run) -> str:
    """The shell script that makes the bucket known to the cluster and creates the workload."""
    check(run)
    check_cluster(run)
    _check_xpk(run)
    return f"set -euo pipefail\n{command_line(_storage(run))}\n{command_line(_workload(run))}\n"


def _storage(run: Run) -> list[str]:
    words = ["xpk", "storage", "attach", _storage_name(run), *_place(run), "--type=gcsfuse", f"--bucket={run.bucket}"]
    words += [f"--mount-point={run.mount}", "--readonly=false", "--auto-mount=false", "--size=1"]
    return [*words, f"--mount-options={MOUNT_OPTIONS}", "--no-prefetch-metadata"]


def _workload(run: Run) -> list[str]:
    words = ["xpk", "workload", "create", f"--workload={run.name}", *_place(run)]
    words += [f"--tpu-type={run.tpu.generation.prefix}-{run.tpu.topology}", f"--num-slices={run.slices}"]
    words += [f"--docker-image={run.image}", f"--storage={_storage_name(run)}"]
    words += [f"--reservation={run.reservation}"] if run.reservation else CAPACITY[run.capacity]
    words += [f"--max-restarts={run.max_restarts}", "--restart-on-exit-codes=1"]  # to 42 and 127-255, its own
    words += [f"--termination-grace-period-seconds={run.grace_seconds}"]
    words += [f"--env={name}={escape_references(value)}" for name, value in run.variables.items()]
    # xpk signals the job "(command) &". With exec that is the trainer in every bash, and never a shell around it.
    return [*words, f"--command=exec {escape_references(shlex.join(run.command))}"]


def _place(run: Run) -> list[str]:
    return [f"--cluster={run.cluster}", f"--project={run.project}", f"--zone={run.zone}"]


def _storage_name(run: Run) -> str:
    return "k2jax-" + re.sub(r"[^a-z0-9]", "-", run.bucket)


def _check_xpk(run: Run) -> None:
    """Refuses what xpk would paste into its manifest as something else, or has no flag for."""
    if run.service_account:
        raise UserError("--service_account is xpk's to choose; leave it out, or use --backend=jobset")
    for text in run.command:
        if not text.isprintable():
            raise UserError(f"xpk cannot carry {text!r}, which has control characters; use --backend=jobset")
    for name, value in run.variables.items():
        if not value.isprintable() or any(mark in value for mark in '"\\'):
            raise UserError(
                f"xpk cannot carry --env {name}={value!r}, with quotes or backslashes; use --backend=jobset"
            )
