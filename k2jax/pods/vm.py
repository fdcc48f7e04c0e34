"""Launches a run on Cloud TPU VMs: a queued resource whose hosts train when they boot, watched until it ends."""

from __future__ import annotations

import shlex

from k2jax.errors import UserError
from k2jax.pods.launch_spec import NOT_RETRIED, LaunchSpec, check_spec
from k2jax.pods.shell import command_line, here_document

FINAL_CODES = " | ".join(map(str, (0, *NOT_RETRIED)))
"""Exit codes after which a host does not restart the trainer, as a pattern of bash's ``case``."""
QUEUED_RESOURCES = ("gcloud", "compute", "tpus", "queued-resources")


def vm_script(spec: LaunchSpec) -> str:
    """Returns the shell script that creates the queued resource, recreates it after preemption, and deletes it."""
    check_spec(spec)
    _check_vm(spec)
    codes = _exit_codes(spec)
    hosts = spec.slices * spec.tpu.vms
    return f"""\
set -euo pipefail
startup=$(mktemp)
trap 'rm -f "$startup"' EXIT
{here_document('cat > "$startup"', startup_script(spec))}
create() {{
  gcloud storage rm --recursive {codes} 2> /dev/null || true
{command_line(_create(spec), "  ")} \\
    --metadata-from-file=startup-script="$startup"
}}
delete() {{
{command_line((*QUEUED_RESOURCES, "delete", spec.name, *_location(spec), "--force", "--quiet"), "  ")}
}}

echo "Watching {spec.name}. Ctrl-C stops watching and leaves it running; the same command resumes watching."
creations=0
while true; do
  if ! state=$({_state_command(spec)}); then
    sleep 60
    continue
  fi
  if [[ $state == SUSPENDED || $state == FAILED ]]; then
    echo "{spec.name} is $state: deleting and recreating it"
    delete || true
    state=
  fi
  if [[ -z $state ]]; then
    if ((creations > {spec.max_restarts})); then
      echo "error: {spec.name} was requested $creations times; raise --max_restarts to continue" >&2
      exit 1
    fi
    creations=$((creations + 1))
    if ! create; then
      echo "{spec.name} could not be created; retrying"
      sleep 60
      continue
    fi
  fi
  codes=$(gcloud storage cat {codes}'/**' 2> /dev/null) || codes=
  worst=$(sort --numeric-sort <<< "$codes" | tail -n 1)
  if [[ -n $worst ]] && ((worst > 0 || $(wc -l <<< "$codes") >= {hosts})); then
    sleep 60 # other hosts may still be saving
    delete || delete || delete || true
    echo "{spec.name} ended with exit code $worst"
    exit "$worst"
  fi
  sleep 60
done
"""


def startup_script(spec: LaunchSpec) -> str:
    """Returns the script that every host runs as root whenever it boots.

    It mounts the bucket, then runs the trainer until it ends with a final exit code.
    """
    bucket, mount = shlex.quote(spec.bucket), shlex.quote(spec.mount)
    return f"""\
#!/bin/bash
set -uo pipefail
export HOME=/root

finish() {{ # reports until this host is deleted
  while true; do
    echo "$1" | gcloud storage cp - {_exit_codes(spec)}/"$(hostname)"
    sleep 300
  done
}}
retry() {{
  local attempt
  for attempt in 1 2 3 4 5; do
    "$@" && return
    sleep $((attempt * 10))
  done
  finish 1
}}
install_gcsfuse() {{
  command -v gcsfuse && return
  curl --fail --silent https://packages.cloud.google.com/apt/doc/apt-key.gpg \\
    --output /usr/share/keyrings/cloud.google.asc || return
  echo "deb [signed-by=/usr/share/keyrings/cloud.google.asc] https://packages.cloud.google.com/apt\
 gcsfuse-$(lsb_release -c -s) main" > /etc/apt/sources.list.d/gcsfuse.list
  apt-get update && apt-get install --yes gcsfuse
}}
mount_bucket() {{
  mountpoint --quiet {mount} && return
  gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 {bucket} {mount}
}}

retry install_gcsfuse
mkdir -p {mount}
retry mount_bucket
{_registry(spec)}retry docker pull {shlex.quote(spec.image)}

restarts=0
while true; do
  docker rm --force {spec.name} > /dev/null 2>&1
{command_line(_docker(spec), "  ")}
  code=$?
  case "$code" in
    {FINAL_CODES}) finish "$code" ;;
  esac
  if ((restarts >= {spec.max_restarts})); then
    finish "$code"
  fi
  restarts=$((restarts + 1))
  echo "{spec.name} stopped with exit code $code; restart $restarts of {spec.max_restarts}"
  sleep 10
done
"""


def _check_vm(spec: LaunchSpec) -> None:
    if spec.engines or spec.machine:
        raise UserError(
            "a queued resource has TPUs of one kind alone: --engines needs --backend=jobset or xpk, --workers and "
            "--machine need --backend=jobset"
        )
    if spec.secret:
        raise UserError("--secret is a Kubernetes secret and needs --backend=jobset")
    generation = spec.tpu.generation
    if generation.runtime is None:
        raise UserError(f"{generation.name} is available only through GKE; use --backend=jobset or --backend=xpk")
    if not spec.tpu.has_usual_shape:
        raise UserError(
            f"a queued resource of {spec.tpu.chips} {generation.name} chips does not have the shape {spec.tpu}; use "
            f"--tpu={spec.tpu.accelerator_type}, or --backend=jobset"
        )
    if spec.capacity == "flex" or spec.reservation:
        raise UserError("VMs support --capacity=on_demand, spot or reserved, and no --reservation; GKE supports more")


def _create(spec: LaunchSpec) -> list[str]:
    nodes = [f"--node-id={spec.name}"]
    if spec.slices > 1:
        nodes = [f"--node-count={spec.slices}", f"--node-prefix={spec.name}"]
    words = [*QUEUED_RESOURCES, "create", spec.name, *_location(spec)]
    words += [f"--accelerator-type={spec.tpu.accelerator_type}"]
    words += [f"--runtime-version={spec.tpu.generation.runtime}", *nodes]
    words += {"spot": ["--spot"], "reserved": ["--reserved"]}.get(spec.capacity, [])
    return words + ([f"--service-account={spec.service_account}"] if spec.service_account else [])


def _state_command(spec: LaunchSpec) -> str:
    """A command that prints the state of the queued resource, or nothing if there is none; it can fail."""
    words = [*QUEUED_RESOURCES, "list", *_location(spec)]
    words += [f"--filter=name~/{spec.name}$", "--format=value(state.state)"]
    return shlex.join(words)


def _location(spec: LaunchSpec) -> list[str]:
    return [f"--project={spec.project}", f"--zone={spec.zone}"]


def _exit_codes(spec: LaunchSpec) -> str:
    """Folder in which each host writes its final exit code, quoted for the shell."""
    return shlex.quote(f"{spec.workdir.rstrip('/')}/launch/exit-codes")


def _registry(spec: LaunchSpec) -> str:
    host = spec.image.partition("/")[0]
    google = host.endswith(".pkg.dev") or host == "gcr.io" or host.endswith(".gcr.io")
    return f"retry gcloud auth configure-docker {shlex.quote(host)} --quiet\n" if google else ""


def _docker(spec: LaunchSpec) -> list[str]:
    return [
        *("docker", "run", "--rm", f"--name={spec.name}", f"--stop-timeout={spec.grace_seconds}"),
        *("--privileged", "--network=host", "--ipc=host", f"--volume={spec.mount}:{spec.mount}"),
        *(f"--env={name}={value}" for name, value in spec.variables.items()),
        spec.image,
        *spec.command,
    ]
