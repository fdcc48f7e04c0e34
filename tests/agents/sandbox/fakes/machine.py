"""Fake machines: programs run in a sandbox of bubblewrap, in one namespace until the machine ends, as in a pod."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
from pathlib import Path
import struct
import threading

from aiohttp import web

from k2jax.agents.sandbox import Limits, SandboxSpec, cgroup, forward_program
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.sandbox.interpreter import host_python
from tests.agents.sandbox.fakes import machine_program

PYTHON = host_python()
PROGRAM = Path(machine_program.__file__).read_text()
FORWARDER = Path(forward_program.__file__).read_text()
HEAD = struct.Struct("!II")
ROOM = 16
"""Processes beside those that commands may have: the machine's own."""


class FakeMachine:
    """One machine; ``restarts`` counts how often it has started again because it ran out of memory."""

    def __init__(self, backend, limits, relay=()):
        self._backend, self._limits = backend, limits
        self._shown = (*PYTHON.read_only, *(os.path.dirname(path) for path in relay[1:]))
        self._relay = [str(relay[0]), relay[1], FORWARDER] if relay else []
        self._numbers, self._runs = itertools.count(), {}
        self.restarts, self.running = 0, False

    async def open(self):
        limits = dataclasses.replace(self._limits, processes=self._limits.processes + ROOM)
        self._sandbox = await self._backend.open(SandboxSpec(read_only=self._shown, limits=limits))
        await self._start()

    async def _start(self):
        self._process = await self._sandbox.start(
            [PYTHON.executable, "-I", "-S", "-c", PROGRAM, *self._relay], cwd="/", first=True
        )
        self._reader, self._writer = await asyncio.open_connection(sock=self._process.take(), limit=1 << 24)
        self._listening = asyncio.create_task(self._listen(self._reader))
        self.running = True

    async def close(self):
        self.running = False
        self._listening.cancel()
        self._writer.close()
        for queue in self._runs.values():
            queue.put_nowait(None)
        await self._sandbox.close()

    async def run(self, argv):
        """A number, and a queue of what the program says; None says that the machine has gone."""
        number, queue = next(self._numbers), asyncio.Queue()
        self._runs[number] = queue
        self._send({"id": number, "run": argv})
        return number, queue

    def feed(self, number, data):
        self._send({"id": number}, data)

    def _send(self, record, data=b""):
        text = json.dumps(record).encode()
        with contextlib.suppress(ConnectionError):
            self._writer.write(HEAD.pack(len(text), len(data)) + text + data)

    async def _listen(self, reader):
        before = self._kills()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                text, size = HEAD.unpack(await reader.readexactly(HEAD.size))
                record = json.loads(await reader.readexactly(text))
                data = await reader.readexactly(size)
                if record.get("code") in (-9, 137) and self._kills() > before:
                    break  # as the kernel does where all processes of a container end together
                if record["id"] in self._runs:
                    self._runs[record["id"]].put_nowait((record, data))
                if "code" in record:
                    self._runs.pop(record["id"], None)
        self.running = False
        await self._process.kill()
        runs, self._runs = self._runs, {}
        self._writer.close()
        self.restarts += 1
        await self._start()
        for queue in runs.values():
            queue.put_nowait(None)

    def _kills(self):
        """How often the kernel has killed for memory in the control groups of this server's machines."""
        tree = cgroup.find().get("memory")
        if tree is None:
            return 0
        groups = tree.folder.glob(f"{cgroup.PREFIX}{self._sandbox._link._process.pid}-*")
        files = [group / {1: "memory.oom_control", 2: "memory.events"}[tree.version] for group in groups]
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


class FakeServer:
    """An HTTP server in a thread of its own, with its machines; ``requests`` are those that it has heard."""

    def __init__(self):
        self.requests, self.machines = [], {}
        self.backend = BubblewrapBackend()
        ready = threading.Event()
        threading.Thread(target=self._serve, args=(ready,), daemon=True).start()
        ready.wait(30)

    def _serve(self, ready):
        asyncio.run(self._main(ready))

    async def _main(self, ready):
        application = web.Application(client_max_size=1 << 26)
        self.routes(application)
        runner = web.AppRunner(application, max_line_size=1 << 21, max_field_size=1 << 21, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        ready.set()
        await asyncio.Event().wait()

    async def add(self, name, limits: Limits, relay=()):
        """A machine, which reaches a port of this one by a socket: ``relay`` is the port and the socket's path."""
        machine = FakeMachine(self.backend, limits, relay)
        await machine.open()
        self.machines[name] = machine
        return machine

    async def remove(self, name):
        machine = self.machines.pop(name, None)
        if machine is not None:
            await machine.close()
        return machine is not None
