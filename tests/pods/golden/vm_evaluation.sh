set -euo pipefail
startup=$(mktemp)
trap 'rm -f "$startup"' EXIT
cat > "$startup" << 'END'
#!/bin/bash
set -uo pipefail
export HOME=/root

finish() { # reports until this host is deleted
  while true; do
    echo "$1" | gcloud storage cp - gs://my-bucket/runs/k2/launch/exit-codes/"$(hostname)"
    sleep 300
  done
}
retry() {
  local attempt
  for attempt in 1 2 3 4 5; do
    "$@" && return
    sleep $((attempt * 10))
  done
  finish 1
}
install_gcsfuse() {
  command -v gcsfuse && return
  curl --fail --silent https://packages.cloud.google.com/apt/doc/apt-key.gpg \
    --output /usr/share/keyrings/cloud.google.asc || return
  echo "deb [signed-by=/usr/share/keyrings/cloud.google.asc] https://packages.cloud.google.com/apt gcsfuse-$(lsb_release -c -s) main" > /etc/apt/sources.list.d/gcsfuse.list
  apt-get update && apt-get install --yes gcsfuse
}
mount_bucket() {
  mountpoint --quiet /gcs/my-bucket && return
  gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 my-bucket /gcs/my-bucket
}

retry install_gcsfuse
mkdir -p /gcs/my-bucket
retry mount_bucket
retry gcloud auth configure-docker us-docker.pkg.dev --quiet
retry docker pull us-docker.pkg.dev/my-project/k2jax/train:1

restarts=0
while true; do
  docker rm --force k2 > /dev/null 2>&1
  docker run \
    --rm \
    --name=k2 \
    --stop-timeout=600 \
    --privileged \
    --network=host \
    --ipc=host \
    --volume=/gcs/my-bucket:/gcs/my-bucket \
    --env=JAX_PLATFORMS=tpu,cpu \
    --env=JAX_COMPILATION_CACHE_DIR=/gcs/my-bucket/runs/k2/compilation_cache \
    --env=K2JAX_CACHE=/gcs/my-bucket/runs/k2/cache \
    '--env=LIBTPU_INIT_ARGS=--xla_tpu_enable_async_all_to_all=true --xla_tpu_enable_async_ragged_all_to_all=true' \
    --env=PYTHONUNBUFFERED=1 \
    us-docker.pkg.dev/my-project/k2jax/train:1 python -m k2jax.evaluate.pictures \
    --checkpoint=/gcs/my-bucket/runs/vision
  code=$?
  case "$code" in
    0 | 2 | 3) finish "$code" ;;
  esac
  if ((restarts >= 100)); then
    finish "$code"
  fi
  restarts=$((restarts + 1))
  echo "k2 stopped with exit code $code; restart $restarts of 100"
  sleep 10
done
END

create() {
  gcloud storage rm --recursive gs://my-bucket/runs/k2/launch/exit-codes 2> /dev/null || true
  gcloud compute tpus queued-resources create k2 \
    --project=my-project \
    --zone=us-east5-a \
    --accelerator-type=v5p-8 \
    --runtime-version=v2-alpha-tpuv5 \
    --node-id=k2 \
    --metadata-from-file=startup-script="$startup"
}
delete() {
  gcloud compute tpus queued-resources delete k2 \
    --project=my-project \
    --zone=us-east5-a \
    --force \
    --quiet
}

echo "Watching k2. Ctrl-C stops watching and leaves it running; the same command resumes watching."
creations=0
while true; do
  if ! state=$(gcloud compute tpus queued-resources list --project=my-project --zone=us-east5-a '--filter=name~/k2$' '--format=value(state.state)'); then
    sleep 60
    continue
  fi
  if [[ $state == SUSPENDED || $state == FAILED ]]; then
    echo "k2 is $state: deleting and recreating it"
    delete || true
    state=
  fi
  if [[ -z $state ]]; then
    if ((creations > 100)); then
      echo "error: k2 was requested $creations times; raise --max_restarts to continue" >&2
      exit 1
    fi
    creations=$((creations + 1))
    if ! create; then
      echo "k2 could not be created; retrying"
      sleep 60
      continue
    fi
  fi
  codes=$(gcloud storage cat gs://my-bucket/runs/k2/launch/exit-codes'/**' 2> /dev/null) || codes=
  worst=$(sort --numeric-sort <<< "$codes" | tail -n 1)
  if [[ -n $worst ]] && ((worst > 0 || $(wc -l <<< "$codes") >= 1)); then
    sleep 60 # other hosts may still be saving
    delete || delete || delete || true
    echo "k2 ended with exit code $worst"
    exit "$worst"
  fi
  sleep 60
done
