"""The only way out of a sandbox: copies bytes between its own loopback and one Unix socket that the host shows it.

Runs inside, with the standard library of Python 3.8: ``PORT SOCKET COMMAND...`` listens on 127.0.0.1 in a child, and
then becomes the command. The child ends with the command's namespace.
"""

import os
import selectors
import socket
import sys

CHUNK = 1 << 16
MOST_BUFFERED = 1 << 18


class _Pair:
    """One direction: what one end has sent and the other has not yet taken."""

    def __init__(self, source, target):
        self.source, self.target, self.data, self.ended = source, target, b"", False

    def readable(self):
        """Whether the source should be read."""
        return not self.ended and len(self.data) < MOST_BUFFERED

    def read(self):
        """Takes what has come; an end is passed on once everything before it is."""
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.data += data
        self.ended = not data
        self.write()

    def write(self):
        """Passes on what the target takes."""
        try:
            if self.data:
                self.data = self.data[self.target.send(self.data) :]
            if self.ended and not self.data:
                self.target.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:  # the target has gone
            self.data, self.ended = b"", True

    def done(self):
        """Whether nothing more can come."""
        return self.ended and not self.data


def update(selector, pairs):
    """Watches both ends of a connection for what can happen next, or closes them."""
    out, back = pairs
    finished = out.done() and back.done()
    for end, reads, writes in ((out.source, out, back), (back.source, back, out)):
        events = (selectors.EVENT_READ if reads.readable() else 0) | (selectors.EVENT_WRITE if writes.data else 0)
        if end in selector.get_map():
            selector.unregister(end)
        if finished:
            end.close()
        elif events:
            selector.register(end, events, (reads, writes, pairs))


def serve(listener, path):
    """Copies bytes for ever."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, events in selector.select():
            if key.fileobj is listener:
                inner, _ = listener.accept()
                outer = socket.socket(socket.AF_UNIX)
                try:
                    outer.connect(path)
                except OSError:
                    inner.close()
                    outer.close()
                    continue
                for end in (inner, outer):
                    end.setblocking(False)
                update(selector, (_Pair(inner, outer), _Pair(outer, inner)))
                continue
            if key.fileobj.fileno() < 0:  # closed by one before it
                continue
            reads, writes, pairs = key.data
            if events & selectors.EVENT_READ:
                reads.read()
            if events & selectors.EVENT_WRITE:
                writes.write()
            update(selector, pairs)


def main(port, path, command):
    """Listens, then becomes the command."""
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=128)
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for target in range(3):
            os.dup2(null, target)
        serve(listener, path)
    listener.close()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
