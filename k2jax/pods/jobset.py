"""Launches a run as a JobSet on GKE: one Job per slice and one pod per host, restarted together."""

from __future__ import annotations

import shlex
from typing import Any

from k2jax.pods.launch_spec import NOT_RETRIED, LaunchSpec, check_cluster, check_spec, escape_references
from k2jax.pods.shell import here_document
from k2jax.pods.yaml_text import dump

CONTAINER = "train"
PORTS = (8471, 8080)
"""Ports over which libtpu connects hosts and slices (as in xpk's manifests)."""
MOUNT_OPTIONS = "implicit-dirs,metadata-cache:ttl-secs:0,metadata-cache:negative-ttl-secs:0"
"""Metadata is not cached, because all hosts write to the same folder."""


def jobset_script(spec: LaunchSpec) -> str:
    """Returns the shell script that creates the JobSet through kubectl."""
    check_spec(spec)
    check_cluster(spec)
    credentials = ["gcloud", "container", "clusters", "get-credentials", spec.cluster]
    credentials += [f"--location={spec.zone}", f"--project={spec.project}"]
    manifest = here_document("kubectl create --filename=-", dump(jobset(spec)))
    return f"set -euo pipefail\n{shlex.join(credentials)}\n{manifest}"


def jobset(spec: LaunchSpec) -> dict[str, Any]:
    """Returns the manifest, in ``jobset.x-k8s.io/v1alpha2``.

    An exit code after which a restart cannot help fails the Job with reason PodFailurePolicy, and thereby the JobSet.
    Any other failure, including the loss of a node, also fails the Job (backoffLimit 0, because a slice cannot continue
    without one of its hosts), but restarts all slices. The restart waits until the pods of the previous attempt are
    gone: two attempts must not write to the same workdir.
    """
    metadata: dict[str, Any] = {"name": spec.name}
    if spec.tpu.nodes > 1:
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    rule = {"name": "notRetried", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    slices = {"name": "slice", "replicas": spec.slices, "template": {"spec": _job(spec)}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": {"maxRestarts": spec.max_restarts, "restartStrategy": "BlockingRecreate", "rules": [rule]},
            "replicatedJobs": [slices],
        },
    }


def _job(spec: LaunchSpec) -> dict[str, Any]:
    codes = {"containerName": CONTAINER, "operator": "In", "values": list(NOT_RETRIED)}
    return {
        "parallelism": spec.tpu.nodes,
        "completions": spec.tpu.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}]},
        "template": {"metadata": {"annotations": _sidecar()}, "spec": _pod(spec)},
    }


def _sidecar() -> dict[str, str]:
    """Annotations for the container that mounts the bucket, without limits because checkpoints pass through it."""
    limits = ("cpu", "memory", "ephemeral-storage")
    return {"gke-gcsfuse/volumes": "true"} | {f"gke-gcsfuse/{limit}-limit": "0" for limit in limits}


def _pod(spec: LaunchSpec) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.grace_seconds,
        "nodeSelector": _node_selector(spec),
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
        "containers": [_container(spec)],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            {
                "name": "bucket",
                "csi": {
                    "driver": "gcsfuse.csi.storage.gke.io",
                    "volumeAttributes": {"bucketName": spec.bucket, "mountOptions": MOUNT_OPTIONS},
                },
            },
        ],
    }
    if spec.capacity == "spot":
        pod["tolerations"].append({"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"})
    if spec.service_account:
        pod["serviceAccountName"] = spec.service_account
    return pod


def _node_selector(spec: LaunchSpec) -> dict[str, str]:
    capacity = {
        "on_demand": {},
        "spot": {"cloud.google.com/gke-spot": "true"},
        "flex": {"cloud.google.com/gke-flex-start": "true"},
        "reserved": {"cloud.google.com/reservation-name": spec.reservation},
    }
    return {
        "cloud.google.com/gke-tpu-accelerator": spec.tpu.generation.accelerator,
        "cloud.google.com/gke-tpu-topology": spec.tpu.topology,
    } | capacity[spec.capacity]


def _container(spec: LaunchSpec) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": spec.image,
        "command": [escape_references(word) for word in spec.command],
        "env": [{"name": name, "value": escape_references(value)} for name, value in spec.variables.items()],
        "ports": [{"containerPort": port} for port in PORTS],
        "securityContext": {"privileged": True},
        "resources": {"limits": {"google.com/tpu": spec.tpu.chips_per_node}},
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "bucket", "mountPath": spec.mount},
        ],
    }
