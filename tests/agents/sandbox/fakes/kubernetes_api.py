"""A fake API server of Kubernetes: pods, network policies and exec over a WebSocket, as far as sandboxes use them."""

import asyncio
import contextlib
import json
import os
import tempfile

from aiohttp import WSMsgType, web

from k2jax.agents.sandbox import Limits
from tests.agents.sandbox.fakes.machine import FakeServer


class FakeKubernetes(FakeServer):
    """Pods start after one look at them; each is a fake machine."""

    def __init__(self):
        self.pods, self.policies, self.relays = {}, {}, {}
        super().__init__()

    def routes(self, application):
        pods, policies = (
            "/api/v1/namespaces/{space}/pods",
            "/apis/networking.k8s.io/v1/namespaces/{space}/networkpolicies",
        )
        application.add_routes(
            [
                web.post(pods, self.create),
                web.get(f"{pods}/{{name}}", self.read),
                web.delete(f"{pods}/{{name}}", self.delete),
                web.get(f"{pods}/{{name}}/exec", self.exec),
                web.post(policies, self.create_policy),
                web.get(f"{policies}/{{name}}", self.read_policy),
            ]
        )

    @staticmethod
    def failure(status, message):
        return web.json_response(
            {"kind": "Status", "status": "Failure", "message": message, "code": status}, status=status
        )

    async def create(self, request):
        pod = await request.json()
        if not self.policies:
            return self.failure(403, "a pod before the policy")
        if pod["spec"]["containers"][0]["image"] == "my/forbidden":
            return self.failure(403, "the image is forbidden")
        self.requests.append(pod)
        name = pod["metadata"]["name"]
        self.pods[name] = pod
        if pod["spec"]["containers"][0]["image"] != "my/never":
            container, volume = pod["spec"]["containers"][0], pod["spec"]["volumes"][0]["emptyDir"]
            disk, memory = int(volume["sizeLimit"]), int(container["resources"]["limits"]["memory"])
            # A cluster limits no number of files and has its own limits of processes.
            relay = await self.relay(name, pod["metadata"]["labels"])
            await self.add(name, Limits(memory=memory, disk=disk, processes=256, files=1 << 16), relay)
        return web.json_response(pod, status=201)

    async def relay(self, name, labels):
        """The port that policies let a machine reach, and a socket that leads there; see ``add``."""
        rules = [rule for policy in self.policies.values() for rule in policy["spec"].get("egress", [])
                 if policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()]  # fmt: skip
        if not rules:
            return ()
        [[port]] = [rule["ports"] for rule in rules]
        folder = tempfile.mkdtemp(prefix="k2jax-fake-", dir="/var/tmp")
        os.chmod(folder, 0o755)

        async def copy(source, target):
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    target.write(data)
                    await target.drain()
            target.close()

        async def relayed(reader, writer):
            inner, outer = await asyncio.open_connection("127.0.0.1", port["port"])
            await asyncio.gather(copy(reader, outer), copy(inner, writer))

        server = await asyncio.start_unix_server(relayed, f"{folder}/socket")
        os.chmod(f"{folder}/socket", 0o666)
        self.relays[name] = (folder, server)
        return port["port"], f"{folder}/socket"

    def _described(self, name):
        pod, machine = self.pods[name], self.machines.get(name)
        state = {"running": {}} if machine and machine.running else {"waiting": {"reason": "ErrImagePull"}}
        last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}} if machine and machine.restarts else {}
        status = {
            "name": "sandbox", "image": "x", "imageID": "x", "ready": True, "state": state, "lastState": last,
            "restartCount": machine.restarts if machine else 0,
        }  # fmt: skip
        return pod | {"status": {"phase": "Running" if machine else "Pending", "containerStatuses": [status]}}

    async def read(self, request):
        name = request.match_info["name"]
        if name not in self.pods:
            return self.failure(404, "no such pod")
        return web.json_response(self._described(name))

    async def delete(self, request):
        if self.pods.pop(request.match_info["name"], None) is None:
            return self.failure(404, "no such pod")
        await self.remove(request.match_info["name"])
        if relay := self.relays.pop(request.match_info["name"], None):
            relay[1].close()
            os.unlink(f"{relay[0]}/socket")
            os.rmdir(relay[0])
        return web.json_response({"kind": "Status", "status": "Success"})

    async def create_policy(self, request):
        policy = await request.json()
        self.policies[policy["metadata"]["name"]] = policy
        return web.json_response(policy, status=201)

    async def read_policy(self, request):
        if request.match_info["name"] not in self.policies:
            return self.failure(404, "no such policy")
        return web.json_response(self.policies[request.match_info["name"]])

    async def exec(self, request):
        machine = self.machines.get(request.match_info["name"])
        if machine is None or not machine.running:
            return self.failure(404, "no such container")
        assert request.query["container"] == "sandbox" and request.query["tty"] == "false"
        connection = web.WebSocketResponse(protocols=["v4.channel.k8s.io"], max_msg_size=1 << 22)
        await connection.prepare(request)
        number, queue = await machine.run(request.query.getall("command"))
        hearing = asyncio.create_task(self._hear(connection, machine, number))
        try:
            while (said := await queue.get()) is not None:
                record, data = said
                if "output" in record:
                    await connection.send_bytes(bytes([record["output"]]) + data)
                elif "code" in record:
                    await connection.send_bytes(b"\x03" + json.dumps(self._status(record["code"])).encode())
                    break
            await connection.close()
        except ConnectionError:
            pass
        finally:
            hearing.cancel()
        return connection

    @staticmethod
    def _status(code):
        if code == 0:
            return {"metadata": {}, "status": "Success"}
        cause = {"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}
        return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}

    @staticmethod
    async def _hear(connection, machine, number):
        with contextlib.suppress(ConnectionError, RuntimeError):
            async for message in connection:
                if message.type == WSMsgType.BINARY and message.data[:1] == b"\x00":
                    machine.feed(number, message.data[1:])
