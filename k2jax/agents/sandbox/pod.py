"""The manifests of sandboxes on Kubernetes: a pod that can only run commands, and a policy without network."""

from __future__ import annotations

import dataclasses
from typing import Any

from k2jax.agents.sandbox.mount_namespace import NOBODY
from k2jax.agents.sandbox.types import SandboxSpec

LABELS = {"app.kubernetes.io/name": "k2jax-sandbox"}
POLICY = "k2jax-sandbox-no-network"
CONTAINER = "sandbox"
FIRST_PROCESS = (
    "mkfifo /tmp/.wait && exec 3<>/tmp/.wait && rm /tmp/.wait && trap '' CHLD TERM && while :; do read -r x <&3; done"
)
"""Waits for ever without starting a process, and adopts those whose parents have ended, so that none stays a zombie."""
_PLACES = {"work": "/work", "tmp": "/tmp", "shm": "/dev/shm"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PodOptions:
    """What all pods of a backend have in common.

    Attributes:
        namespace: where they are made; it should hold nothing else.
        image: for specs without one; it needs /bin/sh with the usual programs, and Python 3.8.
        python: the image's interpreter.
        user_namespaces: whether pods have user namespaces of their own (Kubernetes 1.33 or newer), in which alone the
            number of processes can be limited.
        runtime_class: such as ``gvisor`` or ``kata``; empty for the cluster's usual one.
        cpus: processors of each pod, as Kubernetes writes them.
        lifetime: after which a pod is ended, whoever has forgotten it [s].
        start_timeout: how long fetching an image and starting may take [s].
    """

    namespace: str = "k2jax-sandboxes"
    image: str = "docker.io/library/python:3.11-slim"
    python: str = "python3"
    user_namespaces: bool = True
    runtime_class: str = ""
    cpus: str = "1"
    lifetime: int = 6 * 3600
    start_timeout: float = 300.0


def pod_manifest(name: str, spec: SandboxSpec, options: PodOptions) -> dict[str, Any]:
    """A pod for one sandbox: no rights, no token, no names, no network (see ``policy_manifest``), limited resources."""
    resources = {"memory": str(spec.limits.memory), "cpu": options.cpus, "ephemeral-storage": "64Mi"}
    container = {
        "name": CONTAINER,
        "image": spec.image or options.image,
        "command": ["/bin/sh", "-c", FIRST_PROCESS],
        "workingDir": "/work",
        "resources": {"limits": resources, "requests": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "files", "mountPath": path, "subPath": name} for name, path in _PLACES.items()],
    }
    pod = {
        "containers": [container],
        "restartPolicy": "Always",  # a container that ran out of memory starts again, with its files
        "activeDeadlineSeconds": options.lifetime,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "hostUsers": not options.user_namespaces,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NOBODY,
            "runAsGroup": NOBODY,
            "fsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [{"name": "files", "emptyDir": {"medium": "Memory", "sizeLimit": str(spec.limits.disk)}}],
    }
    if options.runtime_class:
        pod["runtimeClassName"] = options.runtime_class
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": LABELS}, "spec": pod}


def policy_manifest() -> dict[str, Any]:
    """A policy under which no pod reaches anything and nothing reaches it; the cluster's network must enforce it."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY, "labels": LABELS},
        "spec": {"podSelector": {"matchLabels": LABELS}, "policyTypes": ["Ingress", "Egress"]},
    }
