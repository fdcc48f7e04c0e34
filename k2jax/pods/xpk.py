"""Launches a run through xpk, Google's command that writes JobSet manifests for the clusters it creates."""

from __future__ import annotations

import re
import shlex

from k2jax.errors import UserError
from k2jax.pods.jobset import MOUNT_OPTIONS
from k2jax.pods.launch_spec import LaunchSpec, check_cluster, check_spec, escape_references
from k2jax.pods.shell import command_line

CAPACITY = {"on_demand": [], "spot": ["--spot"], "flex": ["--flex"]}


def xpk_script(spec: LaunchSpec) -> str:
    """Returns the shell script that attaches the bucket to the cluster and creates the workload."""
    check_spec(spec)
    check_cluster(spec)
    _check_xpk(spec)
    return f"set -euo pipefail\n{command_line(_storage(spec))}\n{command_line(_workload(spec))}\n"


def _storage(spec: LaunchSpec) -> list[str]:
    words = ["xpk", "storage", "attach", _storage_name(spec), *_location(spec)]
    words += ["--type=gcsfuse", f"--bucket={spec.bucket}"]
    words += [f"--mount-point={spec.mount}", "--readonly=false", "--auto-mount=false", "--size=1"]
    return [*words, f"--mount-options={MOUNT_OPTIONS}", "--no-prefetch-metadata"]


def _workload(spec: LaunchSpec) -> list[str]:
    words = ["xpk", "workload", "create", f"--workload={spec.name}", *_location(spec)]
    words += [f"--tpu-type={spec.tpu.generation.prefix}-{spec.tpu.topology}", f"--num-slices={spec.slices}"]
    words += [f"--docker-image={spec.image}", f"--storage={_storage_name(spec)}"]
    words += [f"--reservation={spec.reservation}"] if spec.reservation else CAPACITY[spec.capacity]
    # xpk itself adds 42 and 127-255 to the exit codes.
    words += [f"--max-restarts={spec.max_restarts}", "--restart-on-exit-codes=1"]
    words += [f"--termination-grace-period-seconds={spec.grace_seconds}"]
    words += [f"--env={name}={escape_references(value)}" for name, value in spec.variables.items()]
    # xpk signals the background job "(command) &". With exec this is the trainer itself, and not a shell around it.
    return [*words, f"--command=exec {escape_references(shlex.join(spec.command))}"]


def _location(spec: LaunchSpec) -> list[str]:
    return [f"--cluster={spec.cluster}", f"--project={spec.project}", f"--zone={spec.zone}"]


def _storage_name(spec: LaunchSpec) -> str:
    return "k2jax-" + re.sub(r"[^a-z0-9]", "-", spec.bucket)


def _check_xpk(spec: LaunchSpec) -> None:
    """Rejects what xpk has no flag for, or would not copy unchanged into its manifest."""
    if spec.service_account:
        raise UserError("xpk chooses the service account itself; omit --service_account, or use --backend=jobset")
    for text in spec.command:
        if not text.isprintable():
            raise UserError(f"xpk cannot pass on {text!r}, which has control characters; use --backend=jobset")
    for name, value in spec.variables.items():
        if not value.isprintable() or any(mark in value for mark in '"\\'):
            raise UserError(
                f"xpk cannot pass on --env {name}={value!r}, which has quotes or backslashes; use --backend=jobset"
            )
