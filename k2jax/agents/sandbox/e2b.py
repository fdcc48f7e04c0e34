"""Sandboxes behind the HTTP interface of E2B: a virtual machine for each, in their cloud or on servers of one's own.

The control plane opens and ends machines; in each a daemon runs processes, over the JSON form of Connect's streams.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import struct
from typing import Any
import weakref

from k2jax.agents.options import parse_options
from k2jax.agents.sandbox.remote import CommandOutputs, RemoteSandbox, check_remote_spec
from k2jax.agents.sandbox.types import Capabilities, SandboxError, SandboxSpec
from k2jax.errors import UserError
from k2jax.files.bounded_json import parse_bounded_json

INSTALL_HTTP = 'install the client with: pip install "k2jax[client]"'
_ENVELOPE = struct.Struct("!BI")
_LAST = 2
"""Flag of a stream's last envelope."""
_LONGEST = 1 << 24
_MOST_VALUES = 1000  # of an event, which has one long text
_CHUNK = 1 << 18
_SIGNAL = re.compile(r"signal: (\w+)")
_SIGNALS = {"killed": 9, "terminated": 15, "segmentation": 11, "aborted": 6, "interrupt": 2, "broken": 13, "hangup": 1}
"""Numbers by the first word with which Go describes a signal."""
_MAKE_FOLDERS = 'mkdir -p /work && chmod 755 /work && chown "$1" /work'


@dataclasses.dataclass(frozen=True, kw_only=True)
class E2BOptions:
    """Where machines come from.

    Attributes:
        api_url: of the control plane.
        api_key: sent to it.
        envd_url: of the daemon of a machine, with ``{sandbox}`` and ``{domain}``.
        template: for specs without an image.
        user: who runs commands.
        python: the template's interpreter.
        lifetime: after which a machine is ended, whoever has forgotten it [s].
        start_timeout: how long a request, and so opening a machine, may take [s].
    """

    api_url: str = "https://api.e2b.dev"
    api_key: str = dataclasses.field(default="", repr=False)
    envd_url: str = "https://49983-{sandbox}.{domain}"
    template: str = "base"
    user: str = "user"
    python: str = "python3"
    lifetime: int = 3600
    start_timeout: float = 120.0

    @classmethod
    def from_environment(cls) -> E2BOptions:
        """Those that ``E2B_API_KEY``, ``E2B_API_URL`` and ``E2B_DOMAIN`` name.

        Raises:
            UserError: there is no key.
        """
        key, domain = os.environ.get("E2B_API_KEY", ""), os.environ.get("E2B_DOMAIN", "e2b.dev")
        if not key:
            raise UserError("the e2b backend needs a key: set E2B_API_KEY, and E2B_DOMAIN for servers of your own")
        return cls(api_url=os.environ.get("E2B_API_URL", f"https://api.{domain}"), api_key=key)


class E2BBackend:
    """Opens machines without internet access.

    Args:
        options: None for those of the environment.
        images: how names of templates must begin that specs may name; see ``image_name``.

    Raises:
        UserError: the client is not installed, or there is no key.

    Attributes:
        capabilities: the machine's memory and disk are those of its template; commands have limits of their own too.
        options: see ``E2BOptions``.
    """

    def __init__(self, options: E2BOptions | None = None, *, images: str = ""):
        if importlib.util.find_spec("httpx") is None:
            raise UserError(f"no package httpx on this machine; {INSTALL_HTTP}")
        self.options = options or E2BOptions.from_environment()
        self._images = images
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Any]] = weakref.WeakKeyDictionary()
        self.capabilities = Capabilities(
            network="none", memory="rlimit", processes="rlimit", file_system="private", snapshot=False
        )

    @staticmethod
    def options_of(words: Sequence[str]) -> E2BOptions:
        """Options of machines from texts such as ``template=base``; the key comes from the environment alone.

        Raises:
            UserError: there is no such option, or no key.
        """
        values = parse_options(E2BOptions, words, "the sandbox backend e2b", given=("api_key",))
        return dataclasses.replace(E2BOptions.from_environment(), **values)

    async def open(self, spec: SandboxSpec) -> E2BSandbox:
        """A new machine; see ``SandboxBackend.open``."""
        check_remote_spec(spec, "e2b", self._images)
        client = self._acquire()
        body = {
            "templateID": spec.image or self.options.template,
            "timeout": self.options.lifetime,
            "secure": True,
            "allow_internet_access": False,
            "metadata": {"made-by": "k2jax"},
        }
        try:
            answer = await self.request(client, "POST", "/sandboxes", body)
            if not (isinstance(answer, dict) and isinstance(answer.get("sandboxID"), str)):
                raise SandboxError("the control plane of sandboxes failed: its answer names no machine")
        except BaseException:
            await self.release()
            raise
        sandbox = E2BSandbox(self, client, answer, spec)
        try:
            await sandbox.prepare()
        except BaseException:
            with contextlib.suppress(SandboxError):
                await asyncio.shield(sandbox.close())
            raise
        return sandbox

    async def request(self, client: Any, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """An answer of the control plane.

        Raises:
            SandboxError: there is none, or it is an error.
        """
        import httpx

        try:
            answer = await client.request(
                method, self.options.api_url + path, json=body, headers={"X-API-KEY": self.options.api_key}
            )
            answer.raise_for_status()
            return answer.json() if answer.content else {}
        except (httpx.HTTPError, ValueError) as error:
            raise SandboxError(f"the control plane of sandboxes failed: {error or type(error).__name__}") from None

    def _acquire(self) -> Any:
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._clients[loop] = [httpx.AsyncClient(timeout=self.options.start_timeout, limits=limits), 0]
        self._clients[loop][1] += 1
        return self._clients[loop][0]

    async def release(self) -> None:
        """Takes note that a sandbox has ended; the last of an event loop closes its connections."""
        entry = self._clients[asyncio.get_running_loop()]
        entry[1] -= 1
        if entry[1] == 0:
            del self._clients[asyncio.get_running_loop()]
            await entry[0].aclose()


class E2BSandbox(RemoteSandbox):
    """One machine; see ``RemoteSandbox``.

    Attributes:
        name: its identifier.
    """

    def __init__(self, backend: E2BBackend, client: Any, opened: dict[str, Any], spec: SandboxSpec):
        """Takes over a machine that the control plane has opened."""
        limits = {"processes": spec.limits.processes, "memory": spec.limits.memory}
        super().__init__(spec, backend.capabilities, python=backend.options.python, limits=limits)
        self.name = str(opened["sandboxID"])
        self._backend, self._client, self._user = backend, client, backend.options.user
        self._url = backend.options.envd_url.format(sandbox=self.name, domain=opened.get("domain") or "e2b.dev")
        self._headers = {"Connect-Protocol-Version": "1", "E2b-Sandbox-Id": self.name, "E2b-Sandbox-Port": "49983"}
        if opened.get("envdAccessToken"):
            self._headers["X-Access-Token"] = opened["envdAccessToken"]

    async def prepare(self) -> None:
        """Makes ``/work``.

        Raises:
            SandboxError: the machine runs no commands.
        """
        argv = ["/bin/sh", "-c", _MAKE_FOLDERS, "sh", self._user]
        if (code := await self._as_user(argv, b"", CommandOutputs(0), user="root")) != 0:
            raise SandboxError(f"the machine has no /work: code {code}")

    async def _stream(self, argv: list[str], stdin: bytes, outputs: CommandOutputs) -> int:
        return await self._as_user(argv, stdin, outputs, user=self._user)

    async def _as_user(self, argv: list[str], stdin: bytes, outputs: CommandOutputs, *, user: str) -> int:
        import httpx

        config = {"cmd": argv[0], "args": argv[1:], "envs": {}, "cwd": "/"}
        body = json.dumps({"process": config, "stdin": bool(stdin)}).encode(errors="surrogateescape")
        headers = self._headers | _credentials(user) | {"Content-Type": "application/connect+json"}
        sending = None
        try:
            async with self._client.stream(
                "POST",
                f"{self._url}/process.Process/Start",
                content=_ENVELOPE.pack(0, len(body)) + body,
                headers=headers,
                timeout=httpx.Timeout(self._backend.options.start_timeout, read=None),
            ) as response:
                if response.status_code != 200:
                    raise SandboxError(f"the machine runs no commands: {response.status_code}")
                async for event in _events(response):
                    if "start" in event:
                        outputs.begun.set()
                        sending = asyncio.ensure_future(self._send(int(event["start"]["pid"]), stdin))
                    for name, kept in (("stdout", outputs.stdout), ("stderr", outputs.stderr)):
                        if name in event.get("data", {}):
                            outputs.add(kept, base64.b64decode(event["data"][name]))
                    if "end" in event:
                        return _exit_code(event["end"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SandboxError(f"the machine failed: {error or type(error).__name__}") from None
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        raise SandboxError("the machine ended before the command")

    async def _send(self, pid: int, data: bytes) -> None:
        headers = self._headers | _credentials(self._user)
        for start in range(0, len(data), _CHUNK):
            part = base64.b64encode(data[start : start + _CHUNK]).decode()
            body = {"process": {"pid": pid}, "input": {"stdin": part}}
            await self._client.post(f"{self._url}/process.Process/SendInput", json=body, headers=headers)

    async def _end(self) -> None:
        try:
            await self._backend.request(self._client, "DELETE", f"/sandboxes/{self.name}")
        finally:
            await self._backend.release()


def _credentials(user: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode()}


async def _events(response: Any) -> AsyncIterator[dict[str, Any]]:
    """Events of a stream of envelopes; ValueError where it is none, or ends with an error."""
    buffer = bytearray()
    async for data in response.aiter_bytes():
        buffer += data
        while len(buffer) >= _ENVELOPE.size:
            flags, size = _ENVELOPE.unpack_from(buffer)
            if size > _LONGEST:
                raise ValueError("an envelope is too long")
            if len(buffer) < _ENVELOPE.size + size:
                break
            record = parse_bounded_json(bytes(buffer[_ENVELOPE.size : _ENVELOPE.size + size]) or b"{}", _MOST_VALUES)
            del buffer[: _ENVELOPE.size + size]
            if flags & _LAST:
                if record.get("error"):
                    raise ValueError(record["error"].get("message") or record["error"].get("code"))
                return
            yield record.get("event", {})


def _exit_code(end: dict[str, Any]) -> int:
    """128 and the number for a signal; Go gives -1 and a word."""
    if signal := _SIGNAL.match(str(end.get("status", ""))):
        return 128 + _SIGNALS.get(signal[1], 0)
    return int(end.get("exitCode", 0))
