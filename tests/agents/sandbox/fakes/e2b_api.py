"""A fake of E2B: the control plane and the daemons of machines, behind one address."""

import base64
import contextlib
import json
import secrets
import struct

from aiohttp import web

from k2jax.agents.sandbox import Limits
from tests.agents.sandbox.fakes.machine import FakeServer

ENVELOPE = struct.Struct("!BI")
KEY = "e2b_key"


class FakeE2B(FakeServer):
    """Machines that need their token; each is a fake machine."""

    def __init__(self, limits=None):
        self.tokens, self.processes, self.limits = (
            {},
            {},
            limits or Limits(memory=1 << 30, processes=256, files=1 << 16),
        )
        super().__init__()

    def routes(self, application):
        application.add_routes(
            [
                web.post("/api/sandboxes", self.create),
                web.delete("/api/sandboxes/{name}", self.delete),
                web.post("/envd/{name}/process.Process/Start", self.start),
                web.post("/envd/{name}/process.Process/SendInput", self.send),
            ]
        )

    async def create(self, request):
        if request.headers.get("X-API-KEY") != KEY:
            return web.json_response({"code": 401, "message": "no"}, status=401)
        body = await request.json()
        if body["templateID"] == "my/missing":
            return web.json_response({"code": 404, "message": "template not found"}, status=404)
        self.requests.append(body)
        name, token = secrets.token_hex(8), secrets.token_hex(8)
        self.tokens[name] = token
        await self.add(name, Limits(memory=1 << 30, processes=256, files=1 << 16))
        answer = {"sandboxID": name, "clientID": "c", "envdVersion": "0.2.0", "templateID": body["templateID"]}
        return web.json_response(answer | {"envdAccessToken": token, "domain": None}, status=201)

    async def delete(self, request):
        return web.Response(status=204 if await self.remove(request.match_info["name"]) else 404)

    def machine_of(self, request):
        name = request.match_info["name"]
        assert request.headers["X-Access-Token"] == self.tokens[name]
        return self.machines[name]

    async def start(self, request):
        machine = self.machine_of(request)
        user = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        assert user in ("sandbox:", "root:") and request.headers["Connect-Protocol-Version"] == "1"
        assert request.content_type == "application/connect+json"
        body = await request.read()
        flags, size = ENVELOPE.unpack_from(body)
        assert (flags, size) == (0, len(body) - ENVELOPE.size)
        message = json.loads(body[ENVELOPE.size :])
        response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        await response.prepare(request)
        number, queue = await machine.run([message["process"]["cmd"], *message["process"]["args"]])
        with contextlib.suppress(ConnectionError):
            while (said := await queue.get()) is not None:
                for event in self._events(machine, number, *said):
                    await self._write(response, {"event": event})
                if "code" in said[0]:
                    await self._write(response, {}, last=2)
                    break
            await response.write_eof()
        return response

    def _events(self, machine, number, record, data):
        if "pid" in record:
            self.processes[str(record["pid"])] = (machine, number)
            yield {"start": {"pid": record["pid"]}}
            yield {"keepalive": {}}
        elif "output" in record:
            yield {"data": {"stdout" if record["output"] == 1 else "stderr": base64.b64encode(data).decode()}}
        elif record["code"] < 0:
            word = {-9: "killed", -15: "terminated", -11: "segmentation fault"}.get(record["code"], "unknown")
            yield {"end": {"exitCode": -1, "exited": False, "status": f"signal: {word}"}}
        else:  # the JSON form leaves zeros out
            code = {"exitCode": record["code"]} if record["code"] else {}
            yield {"end": code | {"exited": True, "status": f"exit status {record['code']}"}}

    @staticmethod
    async def _write(response, record, last=0):
        data = json.dumps(record).encode()
        await response.write(ENVELOPE.pack(last, len(data)) + data)

    async def send(self, request):
        body = await request.json()
        machine, number = self.processes[str(body["process"]["pid"])]
        assert machine is self.machine_of(request)
        machine.feed(number, base64.b64decode(body["input"]["stdin"]))
        return web.json_response({})
