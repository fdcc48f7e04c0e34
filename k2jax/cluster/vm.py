"""A run on Cloud TPU VMs: a queued resource whose hosts start the trainer when they boot, watched until it ends."""

from __future__ import annotations

import shlex

from k2jax.cluster.run import NOT_RETRIED, Run, check
from k2jax.cluster.shell import command_line, here_document
from k2jax.errors import UserError

FINAL = " | ".join(map(str, (0, *NOT_RETRIED)))
"""Exit codes after which a host does not start the trainer again, as a pattern of ``case``."""
QUEUED = ("gcloud", "compute", "tpus", "queued-resources")


def vm_script(run: Run) -> str:
    """The shell script that creates the queued resource, creates it anew when it is preempted, and deletes it."""
    check(run)
    _check_vm(run)
    codes = _exit_codes(run)
    hosts = run.slices * run.tpu.vms
    return f"""\
set -euo pipefail
startup=$(mktemp)
trap 'rm -f "$startup"' EXIT
{here_document('cat > "$startup"', startup_script(run))}
create() {{
  gcloud storage rm --recursive {codes} 2> /dev/null || true
{command_line(_create(run), "  ")} \\
    --metadata-from-file=startup-script="$startup"
}}
delete() {{
{command_line((*QUEUED, "delete", run.name, *_place(run), "--force", "--quiet"), "  ")}
}}

echo "Watching {run.name}. Ctrl-C leaves it running; the same command watches again."
creations=0
while true; do
  if ! state=$({_state(run)}); then
    sleep 60
    continue
  fi
  if [[ $state == SUSPENDED || $state == FAILED ]]; then
    echo "{run.name} is $state: deleted, to be created anew"
    delete || true
    state=
  fi
  if [[ -z $state ]]; then
    if ((creations > {run.max_restarts})); then
      echo "error: {run.name} was asked for $creations times; raise --max_restarts to go on" >&2
      exit 1
    fi
    creations=$((creations + 1))
    if ! create; then
      echo "{run.name} could not be created; trying again"
      sleep 60
      continue
    fi
  fi
  codes=$(gcloud storage cat {codes}'/**' 2> /dev/null) || codes=
  worst=$(sort --numeric-sort <<< "$codes" | tail -n 1)
  if [[ -n $worst ]] && ((worst > 0 || $(wc -l <<< "$codes") >= {hosts})); then
    sleep 60 # other hosts may be saving still
    delete || delete || delete || true
    echo "{run.name} ended with exit code $worst"
    exit "$worst"
  fi
  sleep 60
done
"""


def startup_script(run: Run) -> str:
    """What every host runs as root whenever it boots: mounts the bucket, then trains until there is a final code."""
    bucket, mount = shlex.quote(run.bucket), shlex.quote(run.mount)
    return f"""\
#!/bin/bash
set -uo pipefail
export HOME=/root

finish() {{ # until this host is deleted
  while true; do
    echo "$1" | gcloud storage cp - {_exit_codes(run)}/"$(hostname)"
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
{_registry(run)}retry docker pull {shlex.quote(run.image)}

restarts=0
while true; do
  docker rm --force {run.name} > /dev/null 2>&1
{command_line(_docker(run), "  ")}
  code=$?
  case "$code" in
    {FINAL}) finish "$code" ;;
  esac
  if ((restarts >= {run.max_restarts})); then
    finish "$code"
  fi
  restarts=$((restarts + 1))
  echo "{run.name} stopped with exit code $code; restart $restarts of {run.max_restarts}"
  sleep 10
done
"""


def _check_vm(run: Run) -> None:
    generation = run.tpu.generation
    if generation.runtime is None:
        raise UserError(f"{generation.name} is offered through GKE alone; use --backend=jobset or --backend=xpk")
    if not run.tpu.has_usual_shape:
        raise UserError(
            f"a queued resource of {run.tpu.chips} {generation.name} chips has another shape than {run.tpu}; use "
            f"--tpu={run.tpu.accelerator_type}, or --backend=jobset"
        )
    if run.capacity == "flex" or run.reservation:
        raise UserError("VMs take --capacity=on_demand, spot or reserved, and no --reservation; GKE takes more")


def _create(run: Run) -> list[str]:
    nodes = [f"--node-id={run.name}"]
    if run.slices > 1:
        nodes = [f"--node-count={run.slices}", f"--node-prefix={run.name}"]
    words = [*QUEUED, "create", run.name, *_place(run), f"--accelerator-type={run.tpu.accelerator_type}"]
    words += [f"--runtime-version={run.tpu.generation.runtime}", *nodes]
    words += {"spot": ["--spot"], "reserved": ["--reserved"]}.get(run.capacity, [])
    return words + ([f"--service-account={run.service_account}"] if run.service_account else [])


def _state(run: Run) -> str:
    """A command that prints what state the queued resource is in, nothing where there is none, or fails."""
    words = [*QUEUED, "list", *_place(run), f"--filter=name~/{run.name}$", "--format=value(state.state)"]
    return shlex.join(words)


def _place(run: Run) -> list[str]:
    return [f"--project={run.project}", f"--zone={run.zone}"]


def _exit_codes(run: Run) -> str:
    """The folder, quoted, in which each host leaves its final exit code."""
    return shlex.quote(f"{run.workdir.rstrip('/')}/launch/exit-codes")


def _registry(run: Run) -> str:
    host = run.image.partition("/")[0]
    known = host.endswith(".pkg.dev") or host == "gcr.io" or host.endswith(".gcr.io")
    return f"retry gcloud auth configure-docker {shlex.quote(host)} --quiet\n" if known else ""


def _docker(run: Run) -> list[str]:
    return [
        *("docker", "run", "--rm", f"--name={run.name}", f"--stop-timeout={run.grace_seconds}"),
        *("--privileged", "--network=host", "--ipc=host", f"--volume={run.mount}:{run.mount}"),
        *(f"--env={name}={value}" for name, value in run.variables.items()),
        run.image,
        *run.command,
    ]
