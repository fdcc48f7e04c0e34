"""A run as a JobSet on GKE: one Job for each slice, one pod for each host, started over together."""

from __future__ import annotations

import shlex
from typing import Any

from k2jax.cluster.run import NOT_RETRIED, Run, check, check_cluster, escape_references
from k2jax.cluster.shell import here_document
from k2jax.cluster.yaml_text import dump

CONTAINER = "train"
PORTS = (8471, 8080)
"""What libtpu's hosts and slices talk over (the same as in xpk's manifests)."""
MOUNT_OPTIONS = "implicit-dirs,metadata-cache:ttl-secs:0,metadata-cache:negative-ttl-secs:0"
"""Hosts share the folder: none may believe what it saw there a minute ago."""


def jobset_script(run: Run) -> str:
    """The shell script that starts ``run`` through kubectl."""
    check(run)
    check_cluster(run)
    credentials = ["gcloud", "container", "clusters", "get-credentials", run.cluster]
    credentials += [f"--location={run.zone}", f"--project={run.project}"]
    manifest = here_document("kubectl create --filename=-", dump(jobset(run)))
    return f"set -euo pipefail\n{shlex.join(credentials)}\n{manifest}"


def jobset(run: Run) -> dict[str, Any]:
    """The manifest, of ``jobset.x-k8s.io/v1alpha2``.

    Exit codes that a restart cannot mend fail the Job with reason PodFailurePolicy, and this the JobSet. Every other
    failure, the loss of a node included, fails the Job too (backoffLimit 0: a slice cannot go on with a hole in it)
    and starts all slices over, once the pods of the last attempt are gone: two attempts must not write one workdir.
    """
    metadata: dict[str, Any] = {"name": run.name}
    if run.tpu.nodes > 1:
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    rule = {"name": "notRetried", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    slices = {"name": "slice", "replicas": run.slices, "template": {"spec": _job(run)}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": {
                "maxRestarts": run.max_restarts,
                "restartStrategy": "BlockingRecreate",
                "rules": [rule],
            },
            "replicatedJobs": [slices],
        },
    }


def _job(run: Run) -> dict[str, Any]:
    codes = {"containerName": CONTAINER, "operator": "In", "values": list(NOT_RETRIED)}
    return {
        "parallelism": run.tpu.nodes,
        "completions": run.tpu.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}]},
        "template": {"metadata": {"annotations": _sidecar()}, "spec": _pod(run)},
    }


def _sidecar() -> dict[str, str]:
    """Annotations that add the container which mounts the bucket, and do not limit it: checkpoints pass through it."""
    limits = ("cpu", "memory", "ephemeral-storage")
    return {"gke-gcsfuse/volumes": "true"} | {f"gke-gcsfuse/{limit}-limit": "0" for limit in limits}


def _pod(run: Run) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": run.grace_seconds,
        "nodeSelector": _nodes(run),
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
        "containers": [_container(run)],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            {
                "name": "bucket",
                "csi": {
                    "driver": "gcsfuse.csi.storage.gke.io",
                    "volumeAttributes": {"bucketName": run.bucket, "mountOptions": MOUNT_OPTIONS},
                },
            },
        ],
    }
    if run.capacity == "spot":
        pod["tolerations"].append({"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"})
    if run.service_account:
        pod["serviceAccountName"] = run.service_account
    return pod


def _nodes(run: Run) -> dict[str, str]:
    capacity = {
        "on_demand": {},
        "spot": {"cloud.google.com/gke-spot": "true"},
        "flex": {"cloud.google.com/gke-flex-start": "true"},
        "reserved": {"cloud.google.com/reservation-name": run.reservation},
    }
    return {
        "cloud.google.com/gke-tpu-accelerator": run.tpu.generation.accelerator,
        "cloud.google.com/gke-tpu-topology": run.tpu.topology,
    } | capacity[run.capacity]


def _container(run: Run) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": run.image,
        "command": [escape_references(word) for word in run.command],
        "env": [{"name": name, "value": escape_references(value)} for name, value in run.variables.items()],
        "ports": [{"containerPort": port} for port in PORTS],
        "securityContext": {"privileged": True},
        "resources": {"limits": {"google.com/tpu": run.tpu.chips_per_node}},
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "bucket", "mountPath": run.mount},
        ],
    }
