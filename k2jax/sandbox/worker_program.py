"""The program of a tool worker: it runs inside a sandbox, where nothing of this package is, and answers requests.

A request and an answer are each two lengths, a record in JSON and bytes (see wire.py), over the socket that is this
program's input and output. ``{"call": name, "arguments": {...}}`` calls a function, ``{"run": code}`` runs code as a
notebook does, with one set of names for all requests. It needs Python 3.8 and nothing but the standard library.
"""

import json
import os
import struct
import sys

HEAD = struct.Struct("!II")
MOST_ERROR = 4000


def read_exactly(connection, size):
    """So many bytes; the program ends where the connection does."""
    parts = []
    while size:
        data = os.read(connection, min(size, 1 << 18))
        if not data:
            os._exit(0)
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def write_all(connection, data):
    """All bytes, however many the socket takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(connection, view) :]


def explain(error):
    """The last lines of an exception's traceback, without this program's own frames."""
    import traceback

    lines = traceback.format_exception(type(error), error, error.__traceback__.tb_next)
    return "".join(lines)[-MOST_ERROR:]


def run(code, names):
    """Runs code, and prints the value of its last line where that is an expression."""
    import ast

    tree = ast.parse(code, "<code>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
        if value is not None:
            print(repr(value))


def answer(record, names):
    """The record of an answer; what is raised becomes its ``error``."""
    try:
        if "call" in record:
            value = names[record["call"]](**record["arguments"])
            json.dumps(value)
            return {"value": value}
        run(record["run"], names)
        return {"value": None}
    except BaseException as error:
        return {"value": None, "error": explain(error)}


def main():
    """Answers until the connection ends."""
    connection, own = os.dup(0), os.getpid()
    null = os.open(os.devnull, os.O_RDWR)
    memory = os.memfd_create("output")
    output = os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_APPEND)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    while True:
        text, payload = HEAD.unpack(read_exactly(connection, HEAD.size))
        record = json.loads(read_exactly(connection, text))
        read_exactly(connection, payload)
        told = answer(record, names)
        if os.getpid() != own:  # the code has forked, and its child has come back
            os._exit(0)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            pass
        size = os.fstat(output).st_size
        kept = os.pread(output, min(size, record["limit"]), 0) if size else b""
        if size:
            os.ftruncate(output, 0)
        told["cut"] = size > len(kept)
        body = json.dumps(told).encode()
        write_all(connection, HEAD.pack(len(body), len(kept)) + body + kept)


if __name__ == "__main__":
    main()
