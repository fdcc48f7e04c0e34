"""The first process of a fake machine: starts programs, passes their outputs on, and adopts whatever they leave behind.

Frames are two lengths, JSON and bytes. In: ``{"id", "run": argv}``, then ``{"id"}`` with bytes for its input. Out:
``{"id", "pid"}``, ``{"id", "output": 1 or 2}`` with bytes, ``{"id", "code"}`` (negative for a signal).
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading

HEAD = struct.Struct("!II")


class Program:
    def __init__(self, machine, number, argv):
        self.machine, self.number, self.input = machine, number, b""
        try:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", bufsize=0
            )
        except OSError as error:
            machine.tell({"id": number, "pid": 0})
            machine.tell({"id": number, "output": 2}, str(error).encode())
            machine.tell({"id": number, "code": 127})
            self.process = None
            return
        os.set_blocking(self.process.stdin.fileno(), False)
        machine.tell({"id": number, "pid": self.process.pid})
        self.open = {}
        for name, stream in ((1, self.process.stdout), (2, self.process.stderr)):
            os.set_blocking(stream.fileno(), False)
            self.open[name] = stream
            machine.selector.register(stream, selectors.EVENT_READ, lambda name=name: self.read(name))

    def read(self, name):
        try:
            data = os.read(self.open[name].fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if data:
            self.machine.tell({"id": self.number, "output": name}, data)
            return True
        self.close(name)
        return False

    def close(self, name):
        stream = self.open.pop(name)
        self.machine.selector.unregister(stream)
        stream.close()

    def feed(self, data):
        idle = not self.input
        self.input += data
        if idle and self.input and not self.process.stdin.closed:
            self.machine.selector.register(self.process.stdin, selectors.EVENT_WRITE, self.write)

    def write(self):
        try:
            self.input = self.input[os.write(self.process.stdin.fileno(), self.input[: 1 << 16]) :]
        except BlockingIOError:
            return
        except OSError:
            self.input = b""
        if not self.input:
            self.machine.selector.unregister(self.process.stdin)

    def end(self, status):
        for name in list(self.open):
            while name in self.open and self.read(name):
                pass
            if name in self.open:  # a process that was left behind may hold it
                self.close(name)
        if self.input:
            self.machine.selector.unregister(self.process.stdin)
        self.process.stdin.close()
        self.process.returncode = 0
        self.machine.tell({"id": self.number, "code": os.waitstatus_to_exitcode(status)})


class Machine:
    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.programs, self.bytes, self.ended = {}, b"", False
        self.connection = os.dup(0)
        null = os.open(os.devnull, os.O_RDWR)
        for target in (0, 1):
            os.dup2(null, target)
        reading, writing = os.pipe()
        for end in (reading, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.wakeup = reading
        self.selector.register(reading, selectors.EVENT_READ, self.reap)
        self.selector.register(self.connection, selectors.EVENT_READ, self.hear)

    def tell(self, record, data=b""):
        text = json.dumps(record).encode()
        view = memoryview(HEAD.pack(len(text), len(data)) + text + data)
        while view:
            view = view[os.write(self.connection, view) :]

    def hear(self):
        data = os.read(self.connection, 1 << 18)
        if not data:
            os._exit(0)
        self.bytes += data
        while len(self.bytes) >= HEAD.size:
            text, size = HEAD.unpack_from(self.bytes)
            end = HEAD.size + text + size
            if len(self.bytes) < end:
                return
            record = json.loads(self.bytes[HEAD.size : HEAD.size + text])
            payload, self.bytes = self.bytes[HEAD.size + text : end], self.bytes[end:]
            if "run" in record:
                program = Program(self, record["id"], record["run"])
                if program.process is not None:
                    self.programs[program.process.pid] = program
            else:
                for program in self.programs.values():
                    if program.number == record["id"]:
                        program.feed(payload)

    def reap(self):
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            program = self.programs.pop(pid, None)
            if program is not None:
                program.end(status)

    def run(self):
        while True:
            for key, _ in self.selector.select():
                if self.selector.get_map().get(key.fd) == key:
                    key.data()


def relay(port, path, source):
    """Forwards a port of the loopback from a thread of this process, which nothing inside can end."""
    forwarder = {"__name__": "forwarder"}
    exec(source, forwarder)
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=128)
    threading.Thread(target=forwarder["serve"], args=(listener, path), daemon=True).start()


if __name__ == "__main__":
    if sys.argv[1:]:
        relay(*sys.argv[1:])
    Machine().run()
