set -euo pipefail
xpk storage attach k2jax-my-bucket \
  --cluster=my-cluster \
  --project=my-project \
  --zone=us-east5-b \
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
  --zone=us-east5-b \
  --tpu-type=v6e-16x16 \
  --num-slices=4 \
  --docker-image=us-docker.pkg.dev/my-project/k2jax/train:1 \
  --storage=k2jax-my-bucket \
  --flex \
  --max-restarts=100 \
  --restart-on-exit-codes=1 \
  --termination-grace-period-seconds=300 \
  --env=JAX_PLATFORMS=tpu,cpu \
  --env=JAX_COMPILATION_CACHE_DIR=/gcs/my-bucket/runs/k2/compilation_cache \
  --env=K2JAX_CACHE=/gcs/my-bucket/runs/k2/cache \
  --env=LIBTPU_INIT_ARGS= \
  --env=PYTHONUNBUFFERED=1 \
  '--command=exec python -m k2jax.train --workdir=/gcs/my-bucket/runs/k2 --config=experiments/pretrain/moonlight_16b.py --config.train.micro_batches=2 '"'"'--config.data.cache_dir=it'"'"'"'"'"'"'"'"'s $$HOME'"'"''
