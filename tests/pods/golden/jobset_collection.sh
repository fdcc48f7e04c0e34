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
                node.kubernetes.io/instance-type: n2-standard-32
              affinity:
                podAntiAffinity:
                  requiredDuringSchedulingIgnoredDuringExecution:
                    - labelSelector:
                        matchLabels:
                          jobset.sigs.k8s.io/jobset-name: k2
                          jobset.sigs.k8s.io/replicatedjob-name: main
                      topologyKey: kubernetes.io/hostname
              containers:
                - name: train
                  image: "us-docker.pkg.dev/my-project/k2jax/train:1"
                  command:
                    - python
                    - "-m"
                    - k2jax.rollout
                    - "--workdir=/gcs/my-bucket/runs/k2"
                    - "--config=experiments/rl/terminal_workers_nano.py"
                    - "--url=http://engine:8000"
                    - "--model=it is"
                    - "--tokenizer=/gcs/my-bucket/sft"
                    - "--tasks=20"
                  env:
                    - name: JAX_PLATFORMS
                      value: cpu
                    - name: JAX_COMPILATION_CACHE_DIR
                      value: "/gcs/my-bucket/runs/k2/compilation_cache"
                    - name: K2JAX_CACHE
                      value: "/gcs/my-bucket/runs/k2/cache"
                    - name: PYTHONUNBUFFERED
                      value: "1"
                  securityContext:
                    privileged: true
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
              serviceAccountName: collector
END
