"""The manifests of sandboxes on Kubernetes: a pod that can only run commands, and a policy without network."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any, NamedTuple

from k2jax.agents.sandbox.mount_namespace import NOBODY
from k2jax.agents.sandbox.types import SandboxSpec
from k2jax.errors import UserError

LABELS = {"app.kubernetes.io/name": "k2jax-sandbox"}
POLICY = "k2jax-sandbox-no-network"
_REACHING = "k2jax/gateway"
"""Label of the pods that reach a gateway; its value is a digest of where that is."""
_GATEWAY = re.compile(r"([\w./-]+)=([\w.-]*):(\d+)(?:-(\d+))?", re.ASCII)
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
        gateway: the pods that sandboxes may connect to, and at which ports, ``LABEL=VALUE:PORT`` or
            ``LABEL=VALUE:PORT-PORT``: those of the run, where a gateway answers agents. Empty is none.
        gateway_namespace: of those pods; empty for that of the sandboxes.
    """

    namespace: str = "k2jax-sandboxes"
    image: str = "docker.io/library/python:3.11-slim"
    python: str = "python3"
    user_namespaces: bool = True
    runtime_class: str = ""
    cpus: str = "1"
    lifetime: int = 6 * 3600
    start_timeout: float = 300.0
    gateway: str = ""
    gateway_namespace: str = ""

    def __post_init__(self):
        if self.gateway:
            GatewayPods.read(self.gateway)

    @property
    def labels(self) -> dict[str, str]:
        """Of all pods, by which policies find them."""
        if not self.gateway:
            return LABELS
        text = json.dumps([self.gateway, self.gateway_namespace])
        return LABELS | {_REACHING: hashlib.sha256(text.encode()).hexdigest()[:16]}


class GatewayPods(NamedTuple):
    """The pods that a gateway is in.

    Attributes:
        label: of them.
        value: of the label.
        first: port.
        last: port.
    """

    label: str
    value: str
    first: int
    last: int

    @classmethod
    def read(cls, text: str) -> GatewayPods:
        """Reads ``LABEL=VALUE:PORT`` or ``LABEL=VALUE:PORT-PORT``.

        Raises:
            UserError: it is neither.
        """
        match = _GATEWAY.fullmatch(text)
        if match is None or not 0 < int(match[3]) <= int(match[4] or match[3]) < 1 << 16:
            raise UserError(f"gateway={text} names no pods and ports; write gateway=app=trainer:8900-8999")
        return cls(match[1], match[2], int(match[3]), int(match[4] or match[3]))


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
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": options.labels}, "spec": pod}


def policy_manifests(options: PodOptions) -> list[dict[str, Any]]:
    """The policies of all pods; the cluster's network must enforce them.

    Under the first no pod reaches anything and nothing reaches it. With a gateway the second lets pods with its label
    connect to that: what any policy allows is allowed.
    """
    manifests = [_policy(POLICY, LABELS, {"policyTypes": ["Ingress", "Egress"]})]
    if options.gateway:
        pods = GatewayPods.read(options.gateway)
        peer: dict[str, Any] = {"podSelector": {"matchLabels": {pods.label: pods.value}}}
        if options.gateway_namespace:
            space = {"kubernetes.io/metadata.name": options.gateway_namespace}
            peer["namespaceSelector"] = {"matchLabels": space}
        ports = [{"protocol": "TCP", "port": pods.first, "endPort": pods.last}]
        name = f"k2jax-sandbox-gateway-{options.labels[_REACHING]}"
        rules = {"policyTypes": ["Egress"], "egress": [{"to": [peer], "ports": ports}]}
        manifests.append(_policy(name, options.labels, rules))
    return manifests


def _policy(name: str, selected: dict[str, str], rules: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"podSelector": {"matchLabels": selected}, **rules},
    }
