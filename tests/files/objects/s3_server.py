"""A real S3 server (moto) in a process of its own, and a proxy before it that makes it slow, busy, broken or wrong."""

from __future__ import annotations

import contextlib
import http.client
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time

SERVER = """
import sys
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""
BUCKET = "corpora"


@contextlib.contextmanager
def moto_server():
    """The port of a server with an empty bucket."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert select.select([process.stdout], [], [], 60)[0]
        port = int(process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", f"/{BUCKET}", headers={"Host": f"127.0.0.1:{port}", "Authorization": AUTHORIZATION})
        assert connection.getresponse().status == 200
        yield port
    finally:
        process.kill()
        process.wait()


AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Faults:
    """What the proxy does to requests; shares of them by kind, drawn in the order in which they come."""

    def __init__(self, seed: int = 0):
        self.busy = self.reset = self.cut = self.flipped = self.broken = 0.0
        self.latency = 0.0
        self.retry_after = ""
        self.requests: list[str] = []
        self.together = self.now = self.injected = 0
        self.random, self.lock = random.Random(seed), threading.Lock()

    def draw(self) -> str:
        """The fault of a request, or empty."""
        with self.lock:
            number = self.random.random()
            for kind in ("busy", "reset", "cut", "flipped", "broken"):
                number -= getattr(self, kind)
                if number < 0:
                    self.injected += 1
                    return kind
            return ""


@contextlib.contextmanager
def fault_proxy(port: int):
    """The URL of a proxy before the server of a port, and its faults."""
    faults = Faults()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            with faults.lock:
                faults.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
                faults.now += 1
                faults.together = max(faults.together, faults.now)
            try:
                self._answer(faults.draw())
            finally:
                with faults.lock:
                    faults.now -= 1

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def _answer(self, fault):
            body = self._body()
            time.sleep(faults.latency)
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            if fault in ("busy", "broken"):
                self._send(503 if fault == "busy" else 500, [("Retry-After", faults.retry_after)], b"")
                return
            upstream = http.client.HTTPConnection("127.0.0.1", port)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            headers.pop("Transfer-Encoding", None)
            upstream.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            answer = upstream.getresponse()
            content, kept = answer.read(), ("transfer-encoding", "connection", "content-length")
            fields = [(name, value) for name, value in answer.getheaders() if name.lower() not in kept]
            if self.command == "HEAD":
                fields.append(("Content-Length", answer.getheader("Content-Length") or "0"))
                self._send(answer.status, fields, None)
                return
            if fault == "flipped" and self.command == "GET" and len(content) > 100 and "list-type" not in self.path:
                content = content[:50] + bytes([content[50] ^ 1]) + content[51:]
            self._send(answer.status, fields, content, cut=fault == "cut" and len(content) > 1)

        def _body(self):
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _send(self, status, fields, content, cut=False):
            self.send_response_only(status)
            for name, value in fields:
                if value:
                    self.send_header(name, value)
            if content is not None:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if content:
                self.wfile.write(content[: len(content) // 2] if cut else content)
            if cut:
                self.wfile.flush()
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        server.server_close()


def environment(url: str, folder, **more: str) -> dict[str, str]:
    """What makes a process read from a server, by way of a disk tier of its own."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "K2JAX_STORE_CACHE": os.fspath(folder),
    } | more
