"""Launches a run through xpk, Google's command that writes JobSet manifests for the clusters it creates.

A workload of xpk has slices of one type alone, so each separate engine is a workload of its own, beside the trainer's.
"""

from __future__ import annotations

import re
import shlex

from k2jax.errors import UserError
from k2jax.pods.jobset import MOUNT_OPTIONS
from k2jax.pods.launch_spec import LONGEST_NAME, LaunchSpec, check_cluster, check_spec, escape_references
from k2jax.pods.parts import MAIN, Part, parts
from k2jax.pods.shell import command_line

CAPACITY = {"on_demand": [], "spot": ["--spot"], "flex": ["--flex"]}


def xpk_script(spec: LaunchSpec) -> str:
    """Returns the shell script that attaches the bucket to the cluster and creates the workloads."""
    check_spec(spec)
    check_cluster(spec)
    _check_xpk(spec)
    first = f"{spec.name}-slice-job-0-0.{spec.name}"  # as xpk names its replicated job
    commands = [_storage(spec), *(_workload(spec, part) for part in parts(spec, first))]
    return "set -euo pipefail\n" + "".join(f"{command_line(words)}\n" for words in commands)


def _storage(spec: LaunchSpec) -> list[str]:
    words = ["xpk", "storage", "attach", _storage_name(spec), *_location(spec)]
    words += ["--type=gcsfuse", f"--bucket={spec.bucket}"]
    words += [f"--mount-point={spec.mount}", "--readonly=false", "--auto-mount=false", "--size=1"]
    return [*words, f"--mount-options={MOUNT_OPTIONS}", "--no-prefetch-metadata"]


def _workload(spec: LaunchSpec, part: Part) -> list[str]:
    words = ["xpk", "workload", "create", f"--workload={_workload_name(spec, part.name)}", *_location(spec)]
    words += [f"--tpu-type={part.tpu.generation.prefix}-{part.tpu.topology}", f"--num-slices={part.replicas}"]
    words += [f"--docker-image={spec.image}", f"--storage={_storage_name(spec)}"]
    words += [f"--reservation={spec.reservation}"] if spec.reservation else CAPACITY[spec.capacity]
    # xpk itself adds 42 and 127-255 to the exit codes.
    words += [f"--max-restarts={spec.max_restarts}", "--restart-on-exit-codes=1"]
    words += [f"--termination-grace-period-seconds={spec.grace_seconds}"]
    words += [f"--env={name}={escape_references(value)}" for name, value in part.variables.items()]
    # xpk signals the background job "(command) &". With exec this is the trainer itself, and not a shell around it.
    return [*words, f"--command=exec {escape_references(shlex.join(part.command))}"]


def _location(spec: LaunchSpec) -> list[str]:
    return [f"--cluster={spec.cluster}", f"--project={spec.project}", f"--zone={spec.zone}"]


def _workload_name(spec: LaunchSpec, part: str) -> str:
    return spec.name if part == MAIN else f"{spec.name}-{part}"


def _storage_name(spec: LaunchSpec) -> str:
    return "k2jax-" + re.sub(r"[^a-z0-9]", "-", spec.bucket)


def _check_xpk(spec: LaunchSpec) -> None:
    """Rejects what xpk has no flag for, or would not copy unchanged into its manifest."""
    if spec.machine:
        raise UserError("xpk creates workloads of TPUs alone here; --workers and --machine need --backend=jobset")
    if spec.secret:
        raise UserError("xpk hands no secret to a workload; --secret needs --backend=jobset")
    longest = _workload_name(spec, f"engine-{spec.engine_slices - 1}") if spec.engines else spec.name
    if len(longest) > LONGEST_NAME:
        raise UserError(
            f"the workload {longest!r} has more than xpk's {LONGEST_NAME} characters; give a shorter --name"
        )
    if spec.service_account:
        raise UserError("xpk chooses the service account itself; omit --service_account, or use --backend=jobset")
    for text in (*spec.command, *spec.engine_command):
        if not text.isprintable():
            raise UserError(f"xpk cannot pass on {text!r}, which has control characters; use --backend=jobset")
    for name, value in spec.variables.items():
        if not value.isprintable() or any(mark in value for mark in '"\\'):
            raise UserError(
                f"xpk cannot pass on --env {name}={value!r}, which has quotes or backslashes; use --backend=jobset"
            )
