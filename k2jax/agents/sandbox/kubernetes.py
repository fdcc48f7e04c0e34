"""Sandboxes on Kubernetes: a pod for each, and a WebSocket for each command."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
import contextlib
import importlib.util
import json
import secrets
from typing import Any, NamedTuple
import weakref

from k2jax.agents.options import parse_options
from k2jax.agents.sandbox.pod import CONTAINER, PodOptions, pod_manifest, policy_manifests
from k2jax.agents.sandbox.remote import CommandOutputs, RemoteSandbox, check_remote_spec
from k2jax.agents.sandbox.types import Capabilities, SandboxError, SandboxSpec
from k2jax.errors import UserError

INSTALL_KUBERNETES = 'install the client with: pip install "k2jax[kubernetes]"'
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
"""Channels of the exec protocol; each message begins with the number of its own."""
_CHUNK = 1 << 15
_POLL = 0.2
_RESTART = 60.0
"""How long a container that has ended may take to start again [s]."""


class _Clients(NamedTuple):
    """Connections to the API server, which belong to one event loop."""

    core: Any
    network: Any
    streams: Any


class KubernetesBackend:
    """Opens pods; see ``PodOptions`` for what they are.

    Args:
        options: of all pods.
        images: how names of images must begin that specs may name; see ``image_name``.
        configuration: a ``kubernetes.aio.client.Configuration``; None for the kubeconfig's current context, or the
            service account of the pod in which this runs.

    Raises:
        UserError: the client is not installed.

    Attributes:
        capabilities: processes are limited where pods have user namespaces. That the network is cut off is the work of
            the cluster's network plugin, which must know policies.
        options: of all pods.
    """

    def __init__(self, options: PodOptions | None = None, *, images: str = "", configuration: Any = None):
        if importlib.util.find_spec("kubernetes") is None:
            raise UserError(f"no package kubernetes on this machine; {INSTALL_KUBERNETES}")
        self.options = options or PodOptions()
        self._images, self._configuration = images, configuration
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = weakref.WeakKeyDictionary()
        self._users: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int] = weakref.WeakKeyDictionary()
        self.capabilities = Capabilities(
            network="gateway" if self.options.gateway else "none",
            memory="cgroup",
            processes="rlimit" if self.options.user_namespaces else "none",
            file_system="private",
            snapshot=False,
        )

    @staticmethod
    def options_of(words: Sequence[str]) -> PodOptions:
        """Options of pods from texts such as ``cpus=2``; UserError for one that there is not."""
        return PodOptions(**parse_options(PodOptions, words, "the sandbox backend kubernetes", given=()))

    async def open(self, spec: SandboxSpec) -> KubernetesSandbox:
        """A new pod, when its container runs; see ``SandboxBackend.open``."""
        from kubernetes.aio.client.exceptions import ApiException

        check_remote_spec(spec, "kubernetes", self._images)
        clients = await self._connect()
        name = f"k2jax-{secrets.token_hex(8)}"
        sandbox = None
        try:
            await self._ensure_policies(clients)
            sandbox = KubernetesSandbox(self, clients, name, spec)  # from here on there may be a pod
            await clients.core.create_namespaced_pod(self.options.namespace, pod_manifest(name, spec, self.options))
            await sandbox.ready(self.options.start_timeout)
        except BaseException as error:
            if sandbox is not None:
                with contextlib.suppress(SandboxError):
                    await sandbox.close()
            else:
                await self.release()
            if isinstance(error, ApiException | OSError):
                raise SandboxError(f"the cluster made no pod: {_reason(error)}") from None
            raise
        return sandbox

    async def _connect(self) -> _Clients:
        from kubernetes.aio import client, config
        from kubernetes.aio.config import ConfigException
        from kubernetes.aio.stream import WsApiClient

        loop = asyncio.get_running_loop()
        if self._configuration is None:
            self._configuration = client.Configuration()
            try:
                await config.load_config(client_configuration=self._configuration)
            except (ConfigException, OSError) as error:
                self._configuration = None
                raise UserError(f"no cluster is configured ({error}): set KUBECONFIG or run kubectl config") from None
        if loop not in self._clients:
            api, streams = client.ApiClient(self._configuration), WsApiClient(self._configuration)
            self._clients[loop] = _Clients(
                client.CoreV1Api(api), client.NetworkingV1Api(api), client.CoreV1Api(streams)
            )
        self._users[loop] = self._users.get(loop, 0) + 1
        return self._clients[loop]

    async def release(self) -> None:
        """Takes note that a sandbox has ended; the last of an event loop closes its connections."""
        loop = asyncio.get_running_loop()
        self._users[loop] -= 1
        if self._users[loop] == 0:
            clients = self._clients.pop(loop)
            await clients.core.api_client.close()
            await clients.streams.api_client.close()

    async def _ensure_policies(self, clients: _Clients) -> None:
        """No pod runs before the policies are there."""
        from kubernetes.aio.client.exceptions import ApiException

        for manifest in policy_manifests(self.options):
            try:
                name = manifest["metadata"]["name"]
                await clients.network.read_namespaced_network_policy(name, self.options.namespace)
            except ApiException as error:
                if error.status != 404:
                    raise
                try:
                    await clients.network.create_namespaced_network_policy(self.options.namespace, manifest)
                except ApiException as late:
                    if late.status != 409:  # another program has made it meanwhile
                        raise


def _reason(error: BaseException) -> str:
    body = getattr(error, "body", None)
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(body)["message"])
    return str(error)


class KubernetesSandbox(RemoteSandbox):
    """One pod; see ``RemoteSandbox``.

    Attributes:
        name: of the pod.
    """

    def __init__(self, backend: KubernetesBackend, clients: _Clients, name: str, spec: SandboxSpec):
        """Takes over a pod that has been made."""
        processes = spec.limits.processes if backend.options.user_namespaces else 0
        limits: Mapping[str, int] = {"processes": processes}
        super().__init__(spec, backend.capabilities, python=backend.options.python, limits=limits)
        self.name = name
        self._backend, self._clients, self._restarts = backend, clients, 0

    async def ready(self, timeout: float) -> Any:
        """Waits until the container runs, and gives its status.

        Args:
            timeout: at most [s].

        Raises:
            SandboxError: the pod has ended, or is not there in time.
        """
        end = asyncio.get_running_loop().time() + timeout
        while True:
            pod = await self._status()
            statuses = pod.status.container_statuses or []
            if pod.status.phase in ("Failed", "Succeeded"):
                raise SandboxError(f"the pod has ended: {pod.status.reason or pod.status.phase}")
            if pod.status.phase == "Running" and statuses and statuses[0].state.running is not None:
                return statuses[0]
            if asyncio.get_running_loop().time() > end:
                waiting = statuses[0].state.waiting if statuses else None
                raise SandboxError(f"the pod does not run: {waiting.reason if waiting else pod.status.phase}")
            await asyncio.sleep(_POLL)

    async def _status(self) -> Any:
        from kubernetes.aio.client.exceptions import ApiException

        try:
            return await self._clients.core.read_namespaced_pod(self.name, self._backend.options.namespace)
        except (ApiException, OSError) as error:
            raise SandboxError(f"the pod is gone: {_reason(error)}") from None

    async def _stream(self, argv: list[str], stdin: bytes, outputs: CommandOutputs) -> int:
        import aiohttp

        end = asyncio.get_running_loop().time() + _RESTART
        while True:
            try:
                connecting = await self._clients.streams.connect_get_namespaced_pod_exec_without_preload_content(
                    self.name,
                    self._backend.options.namespace,
                    container=CONTAINER,
                    command=argv,
                    stdin=bool(stdin),
                    stdout=True,
                    stderr=True,
                    tty=False,
                )
                async with connecting as connection:
                    outputs.begun.set()
                    return await self._exchange(connection, stdin, outputs)
            except aiohttp.WSServerHandshakeError as error:  # the container may be about to start again
                if error.status < 400 or asyncio.get_running_loop().time() > end:
                    raise SandboxError(f"the pod takes no command: {error.message or error.status}") from None
                await asyncio.sleep(_POLL)
                await self.ready(_RESTART)
            except (aiohttp.ClientError, OSError) as error:
                raise SandboxError(f"the connection to the pod failed: {error}") from None

    async def _exchange(self, connection: Any, stdin: bytes, outputs: CommandOutputs) -> int:
        sending = asyncio.ensure_future(_send(connection, stdin))
        kept = {_STDOUT: outputs.stdout, _STDERR: outputs.stderr}
        try:
            async for message in connection:
                data = message.data if isinstance(message.data, bytes) else message.data.encode()
                if data[:1] and data[0] in kept:
                    outputs.add(kept[data[0]], data[1:])
                elif data[:1] and data[0] == _STATUS:
                    return _exit_code(data[1:])
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if (await self.ready(_RESTART)).restart_count > self._restarts:  # the container ended, and the command with it
            return 137
        raise SandboxError("the connection to the pod ended before the command")

    async def _out_of_memory(self) -> bool:
        status = await self.ready(_RESTART)
        ended = status.last_state.terminated if status.last_state else None
        if status.restart_count == self._restarts:
            return False
        self._restarts = status.restart_count
        return ended is not None and ended.reason == "OOMKilled"

    async def _end(self) -> None:
        try:
            # The answer is the pod, or a status, or whatever else a server sees fit.
            answer = await self._clients.core.delete_namespaced_pod_without_preload_content(
                self.name, self._backend.options.namespace, grace_period_seconds=0
            )
            if answer.status >= 300 and answer.status != 404:
                raise SandboxError(f"the pod could not be deleted: status {answer.status}")
        except OSError as error:
            raise SandboxError(f"the pod could not be deleted: {error}") from None
        finally:
            await self._backend.release()


async def _send(connection: Any, data: bytes) -> None:
    """Sends the input; the command knows how long it is, because this protocol cannot end it."""
    for start in range(0, len(data), _CHUNK):
        await connection.send_bytes(bytes([_STDIN]) + data[start : start + _CHUNK])


def _exit_code(data: bytes) -> int:
    """The exit code of a ``Status`` object.

    Raises:
        SandboxError: it is not that of a command that has run.
    """
    status = json.loads(data)
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise SandboxError(f"the pod did not run a command: {status.get('message')}")
