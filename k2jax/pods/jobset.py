"""Launches a run as a JobSet on GKE: one Job per slice and one pod per host.

The slices that train are restarted together. Engines and workers, where there are some, restart by themselves.
"""

from __future__ import annotations

import shlex
from typing import Any

from k2jax.pods.launch_spec import NOT_RETRIED, LaunchSpec, check_cluster, check_spec, escape_references
from k2jax.pods.parts import MAIN, Part, parts
from k2jax.pods.shell import here_document
from k2jax.pods.yaml_text import dump

CONTAINER = "train"
PORTS = (8471, 8080)
"""Ports over which libtpu connects hosts and slices (as in xpk's manifests)."""
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
"""Each Job has a node pool for itself: a slice is a node pool."""
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
"""Labels that JobSet gives to pods."""
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
    Any other failure of a trainer's pod, including the loss of a node, also fails its Job (backoffLimit 0, because a
    slice cannot continue without one of its hosts), but restarts the JobSet. The restart waits until the pods of the
    previous attempt are gone: two attempts must not write to the same workdir.

    A pod of an engine or worker that fails is replaced by its own Job, and no other Job hears of it. The hosts of an
    engine end together, so that all of them are replaced. The JobSet is done when the trainer is.
    """
    listed = parts(spec, f"{spec.name}-{MAIN}-0-0.{spec.name}")
    rule = {"name": "notRetried", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    policy = {"maxRestarts": spec.max_restarts, "restartStrategy": "BlockingRecreate", "rules": [rule]}
    wanted: dict[str, Any] = {"failurePolicy": policy}
    if len(listed) > 1:
        wanted["successPolicy"] = {"operator": "All", "targetReplicatedJobs": [MAIN]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": spec.name},
        "spec": {**wanted, "replicatedJobs": [_replicated(spec, part) for part in listed]},
    }


def _replicated(spec: LaunchSpec, part: Part) -> dict[str, Any]:
    template: dict[str, Any] = {"spec": _job(spec, part)}
    if part.tpu and part.hosts > 1:
        template = {"metadata": {"annotations": EXCLUSIVE}, **template}
    job = {"name": part.name, "replicas": part.replicas, "template": template}
    return job if part.name == MAIN else {**job, "dependsOn": [{"name": MAIN, "status": "Ready"}]}


def _job(spec: LaunchSpec, part: Part) -> dict[str, Any]:
    codes = {"containerName": CONTAINER, "operator": "In", "values": list(NOT_RETRIED)}
    return {
        "parallelism": part.hosts,
        "completions": part.hosts,
        "completionMode": "Indexed",
        **({"backoffLimitPerIndex": spec.max_restarts} if part.restarts_alone else {"backoffLimit": 0}),
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}]},
        "template": {"metadata": {"annotations": _sidecar()}, "spec": _pod(spec, part)},
    }


def _sidecar() -> dict[str, str]:
    """Annotations for the container that mounts the bucket, without limits because checkpoints pass through it."""
    limits = ("cpu", "memory", "ephemeral-storage")
    return {"gke-gcsfuse/volumes": "true"} | {f"gke-gcsfuse/{limit}-limit": "0" for limit in limits}


def _pod(spec: LaunchSpec, part: Part) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.grace_seconds,
        **_placement(spec, part),
        "containers": [_container(spec, part)],
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
    if spec.service_account:
        pod["serviceAccountName"] = spec.service_account
    return pod


def _placement(spec: LaunchSpec, part: Part) -> dict[str, Any]:
    """Which nodes a pod may have: those of its slice, or a machine to itself."""
    if part.tpu is None:
        labels = {JOBSET_NAME: spec.name, REPLICATED_JOB: part.name}
        apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
        return {
            "nodeSelector": {"node.kubernetes.io/instance-type": spec.machine},
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        }
    capacity = {
        "on_demand": {},
        "spot": {"cloud.google.com/gke-spot": "true"},
        "flex": {"cloud.google.com/gke-flex-start": "true"},
        "reserved": {"cloud.google.com/reservation-name": spec.reservation},
    }
    selector = {
        "cloud.google.com/gke-tpu-accelerator": part.tpu.generation.accelerator,
        "cloud.google.com/gke-tpu-topology": part.tpu.topology,
    } | capacity[spec.capacity]
    tolerations = [{"key": "google.com/tpu", "operator": "Exists"}]
    if spec.capacity == "spot":
        tolerations.append({"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"})
    return {"nodeSelector": selector, "tolerations": tolerations}


def _container(spec: LaunchSpec, part: Part) -> dict[str, Any]:
    of_tpus: dict[str, Any] = {}
    if part.tpu:
        of_tpus["ports"] = [{"containerPort": port} for port in PORTS]
        of_tpus["resources"] = {"limits": {"google.com/tpu": part.tpu.chips_per_node}}
    return {
        "name": CONTAINER,
        "image": spec.image,
        "command": [escape_references(word) for word in part.command],
        "env": [{"name": name, "value": escape_references(value)} for name, value in part.variables.items()],
        **({"envFrom": [{"secretRef": {"name": spec.secret}}]} if spec.secret else {}),
        "securityContext": {"privileged": True},
        **of_tpus,
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "bucket", "mountPath": spec.mount},
        ],
    }
