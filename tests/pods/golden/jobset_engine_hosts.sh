set -euo pipefail
gcloud container clusters get-credentials my-cluster --location=us-east5 --project=my-project
kubectl create --filename=- << 'END'
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: k2
spec:
  failurePolicy:
    maxRestarts: 100
    restartStrategy: BlockingRecreate
    rules:
      - name: notRetried
        action: FailJobSet
        onJobFailureReasons:
          - PodFailurePolicy
  successPolicy:
    operator: All
    targetReplicatedJobs:
      - main
  replicatedJobs:
    - name: main
      replicas: 1
      template:
        spec:
          parallelism: 1
          completions: 1
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  containerName: train
                  operator: In
                  values:
                    - 2
                    - 3
          template:
            metadata:
              annotations:
                gke-gcsfuse/volumes: "true"
                gke-gcsfuse/cpu-limit: "0"
                gke-gcsfuse/memory-limit: "0"
                gke-gcsfuse/ephemeral-storage-limit: "0"
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 600
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: tpu-v5p-slice
                cloud.google.com/gke-tpu-topology: "2x2x1"
              tolerations:
                - key: google.com/tpu
                  operator: Exists
              containers:
                - name: train
                  image: "us-docker.pkg.dev/my-project/k2jax/train:1"
                  command:
                    - python
                    - "-m"
                    - k2jax.rl
                    - "--workdir=/gcs/my-bucket/runs/k2"
                    - "--config=experiments/rl/terminal_workers_nano.py"
                    - "--config.rl.engines.placement=separate"
                    - "--config.rl.rollout.data=8"
                    - "--config.rl.engines.start=0"
                    - "--config.rl.engines.listen=k2-main-0-0.k2:4567"
                  env:
                    - name: JAX_PLATFORMS
                      value: "tpu,cpu"
                    - name: JAX_COMPILATION_CACHE_DIR
                      value: "/gcs/my-bucket/runs/k2/compilation_cache"
                    - name: K2JAX_CACHE
                      value: "/gcs/my-bucket/runs/k2/cache"
                    - name: LIBTPU_INIT_ARGS
                      value: "--xla_tpu_enable_async_all_to_all=true --xla_tpu_enable_async_ragged_all_to_all=true"
                    - name: PYTHONUNBUFFERED
                      value: "1"
                  securityContext:
                    privileged: true
                  ports:
                    - containerPort: 8471
                    - containerPort: 8080
                  resources:
                    limits:
                      google.com/tpu: 4
                  volumeMounts:
                    - name: shared-memory
                      mountPath: "/dev/shm"
                    - name: bucket
                      mountPath: "/gcs/my-bucket"
              volumes:
                - name: shared-memory
                  emptyDir:
                    medium: Memory
                - name: bucket
                  csi:
                    driver: gcsfuse.csi.storage.gke.io
                    volumeAttributes:
                      bucketName: my-bucket
                      mountOptions: "implicit-dirs,metadata-cache:ttl-secs:0,metadata-cache:negative-ttl-secs:0"
    - name: engine-0
      replicas: 1
      template:
        metadata:
          annotations:
            alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
        spec:
          parallelism: 2
          completions: 2
          completionMode: Indexed
          backoffLimitPerIndex: 100
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  containerName: train
                  operator: In
                  values:
                    - 2
                    - 3
          template:
            metadata:
              annotations:
                gke-gcsfuse/volumes: "true"
                gke-gcsfuse/cpu-limit: "0"
                gke-gcsfuse/memory-limit: "0"
                gke-gcsfuse/ephemeral-storage-limit: "0"
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 600
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: tpu-v5p-slice
                cloud.google.com/gke-tpu-topology: "2x2x2"
              tolerations:
                - key: google.com/tpu
                  operator: Exists
              containers:
                - name: train
                  image: "us-docker.pkg.dev/my-project/k2jax/train:1"
                  command:
                    - python
                    - "-m"
                    - k2jax.rollout
                    - engine
                    - "--follow=/gcs/my-bucket/runs/k2"
                  env:
                    - name: JAX_PLATFORMS
                      value: "tpu,cpu"
                    - name: JAX_COMPILATION_CACHE_DIR
                      value: "/gcs/my-bucket/runs/k2/compilation_cache"
                    - name: K2JAX_CACHE
                      value: "/gcs/my-bucket/runs/k2/cache"
                    - name: LIBTPU_INIT_ARGS
                      value: "--xla_tpu_enable_async_all_to_all=true --xla_tpu_enable_async_ragged_all_to_all=true"
                    - name: PYTHONUNBUFFERED
                      value: "1"
                  securityContext:
                    privileged: true
                  ports:
                    - containerPort: 8471
                    - containerPort: 8080
                  resources:
                    limits:
                      google.com/tpu: 4
                  volumeMounts:
                    - name: shared-memory
                      mountPath: "/dev/shm"
                    - name: bucket
                      mountPath: "/gcs/my-bucket"
              volumes:
                - name: shared-memory
                  emptyDir:
                    medium: Memory
                - name: bucket
                  csi:
                    driver: gcsfuse.csi.storage.gke.io
                    volumeAttributes:
                      bucketName: my-bucket
                      mountOptions: "implicit-dirs,metadata-cache:ttl-secs:0,metadata-cache:negative-ttl-secs:0"
      dependsOn:
        - name: main
          status: Ready
END
