"""A server on this machine that counts what it is asked for, which hostile places must never reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
import contextlib
import http.server
import io
import threading
import zipfile

from tests.data.images.hostile import encoded, picture

PNG = encoded(picture())
HITS: Counter[str] = Counter()
"""Requests by path, of all servers of this process."""
ANSWERS = {"/gone": 404, "/busy": 503, "/moved": 302}
"""Status by path; 200 for all others, of which ``/cut`` ends before it is whole."""


def zipped() -> bytes:
    """An archive with a picture."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.png", PNG)
    return file.getvalue()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        HITS[self.path] += 1
        data = zipped() if self.path.endswith(".zip") else PNG
        self.send_response(ANSWERS.get(self.path, 200))
        self.send_header("Location", "/secret.png")
        self.send_header("Content-Length", str(len(data) + 99 * (self.path == "/cut")))
        self.end_headers()
        self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def counting_server() -> Iterator[int]:
    """A server at 127.0.0.1; gives its port."""
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    running.daemon_threads = True
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield running.server_port
    finally:
        running.shutdown()
        running.server_close()
