set -euo pipefail
xpk storage attach k2jax-my-bucket \
  --cluster=my-cluster \
  --project=my-project \
  --zone=us-east5 \
  --type=gcsfuse \
  --bucket=my-bucket \
  --mount-point=/gcs/my-bucket \
  --readonly=false \
  --auto-mount=false \
  --size=1 \
  --mount-options=implicit-dirs,metadata-cache:ttl-secs:0,metadata-cache:negative-ttl-secs:0 \
  --no-prefetch-metadata
xpk workload create \
  --workload=k2 \
  --cluster=my-cluster \
  --project=my-project \
  --zone=us-east5 \
  --tpu-type=v5p-2x2x1 \
  --num-slices=1 \
  --docker-image=us-docker.pkg.dev/my-project/k2jax/train:1 \
  --storage=k2jax-my-bucket \
  --max-restarts=100 \
  --restart-on-exit-codes=1 \
  --termination-grace-period-seconds=600 \
  --env=JAX_PLATFORMS=tpu,cpu \
  --env=JAX_COMPILATION_CACHE_DIR=/gcs/my-bucket/runs/k2/compilation_cache \
  --env=K2JAX_CACHE=/gcs/my-bucket/runs/k2/cache \
  '--env=LIBTPU_INIT_ARGS=--xla_tpu_enable_async_all_to_all=true --xla_tpu_enable_async_ragged_all_to_all=true' \
  --env=PYTHONUNBUFFERED=1 \
  '--command=exec python -m k2jax.rl --workdir=/gcs/my-bucket/runs/k2 --config=experiments/rl/terminal_workers_nano.py --config.rl.engines.placement=separate --config.rl.rollout.data=8 --config.rl.engines.start=0 --config.rl.engines.listen=k2-slice-job-0-0.k2:4567'
xpk workload create \
  --workload=k2-engine-0 \
  --cluster=my-cluster \
  --project=my-project \
  --zone=us-east5 \
  --tpu-type=v5p-2x2x2 \
  --num-slices=1 \
  --docker-image=us-docker.pkg.dev/my-project/k2jax/train:1 \
  --storage=k2jax-my-bucket \
  --max-restarts=100 \
  --restart-on-exit-codes=1 \
  --termination-grace-period-seconds=600 \
  --env=JAX_PLATFORMS=tpu,cpu \
  --env=JAX_COMPILATION_CACHE_DIR=/gcs/my-bucket/runs/k2/compilation_cache \
  --env=K2JAX_CACHE=/gcs/my-bucket/runs/k2/cache \
  '--env=LIBTPU_INIT_ARGS=--xla_tpu_enable_async_all_to_all=true --xla_tpu_enable_async_ragged_all_to_all=true' \
  --env=PYTHONUNBUFFERED=1 \
  '--command=exec python -m k2jax.rollout engine --follow=/gcs/my-bucket/runs/k2'
