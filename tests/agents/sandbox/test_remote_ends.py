"""A machine is given back whatever happens while it is opened, used or closed; here it is a script of failures."""

import asyncio

import pytest

from k2jax.agents.sandbox import SandboxError, SandboxSpec
from k2jax.agents.sandbox.e2b import E2BBackend, E2BOptions
from k2jax.agents.sandbox.kubernetes import KubernetesBackend, _Clients
from k2jax.agents.sandbox.remote import RemoteSandbox
from k2jax.agents.sandbox.types import Capabilities

CAPABILITIES = Capabilities(network="none", memory="none", processes="none", file_system="private", snapshot=False)


class Machine(RemoteSandbox):
    """Commands never end, and what kills them fails."""

    def __init__(self):
        super().__init__(SandboxSpec(), CAPABILITIES, python="python3", limits={})
        self.ended, self.may_end = 0, asyncio.Event()

    async def _stream(self, argv, stdin, outputs):
        outputs.begun.set()
        if "kill -9 -1" in argv[2]:
            return 1
        await asyncio.Event().wait()

    async def _end(self):
        await asyncio.sleep(0)
        await self.may_end.wait()
        self.ended += 1


async def turns(count=100):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_machine_whose_processes_cannot_be_ended_after_a_cancelled_command_is_ended_itself():
    machine = Machine()
    machine.may_end.set()
    running = asyncio.create_task(machine.exec(["sleep", "60"]))
    await turns()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await turns()
    assert machine.ended == 1
    with pytest.raises(SandboxError, match="closed"):
        await machine.exec(["true"])
    await machine.close()
    assert machine.ended == 1


async def test_a_machine_ends_although_the_wait_for_its_end_is_cancelled():
    machine = Machine()
    closing = asyncio.create_task(machine.close())
    await turns()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    machine.may_end.set()
    await machine.close()  # waits for the end that the first call has begun
    assert machine.ended == 1


class Cluster:
    """An API server that makes every pod and is slow to say so."""

    def __init__(self):
        self.pods, self.api_client = set(), self

    async def read_namespaced_network_policy(self, name, namespace):
        return None

    async def create_namespaced_pod(self, namespace, manifest):
        self.pods.add(manifest["metadata"]["name"])
        await asyncio.Event().wait()

    async def delete_namespaced_pod_without_preload_content(self, name, namespace, grace_period_seconds):
        await asyncio.sleep(0)
        self.pods.discard(name)
        return type("Answer", (), {"status": 200})()

    async def close(self):
        await asyncio.sleep(0)


async def test_a_pod_whose_opening_is_cancelled_is_deleted(monkeypatch):
    backend, cluster = KubernetesBackend(), Cluster()

    async def connect():
        loop = asyncio.get_running_loop()
        backend._users[loop], backend._clients[loop] = 1, _Clients(cluster, cluster, cluster)
        return backend._clients[loop]

    monkeypatch.setattr(backend, "_connect", connect)

    opening = asyncio.create_task(backend.open(SandboxSpec()))
    await turns()
    assert len(cluster.pods) == 1
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not cluster.pods and not list(backend._clients.keys())


@pytest.mark.parametrize("answer", [{}, [], {"sandboxID": None}])
async def test_an_answer_that_names_no_machine_is_a_failure_of_the_sandbox(monkeypatch, answer):
    backend = E2BBackend(E2BOptions(api_key="key"))

    async def request(*arguments):
        return answer

    monkeypatch.setattr(backend, "request", request)

    with pytest.raises(SandboxError, match="no machine"):
        await backend.open(SandboxSpec())
    assert not list(backend._clients.keys())
