"""The program of a tool worker: it runs inside a sandbox, where nothing of this package is, and answers requests.

A request and an answer are each two lengths, a record in JSON and bytes (see wire.py), over the socket that is this
program's input and output. ``{"call": name, "arguments": {...}}`` calls a function, ``{"run": code}`` runs code as a
notebook does, with one set of names for all requests. It needs Python 3.8 and nothing but the standard library, of
which it imports little: thousands of these programs live at a time, and the package ``json`` takes a megabyte of each.
"""

import os
import struct
import sys

HEAD = struct.Struct("!II")
CHUNK = 1 << 16
MOST_ERROR = 4000


def json_functions():
    """Functions that read and write JSON: of the C module beneath ``json``, or of ``json`` where there is none."""
    try:
        import _json
    except ImportError:
        import json

        return json.loads, json.dumps

    class Context:
        strict, object_hook, object_pairs_hook = True, None, None
        parse_float, parse_int, parse_constant = float, int, float

    def refuse(value):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    scan = _json.make_scanner(Context)
    encode = _json.make_encoder(None, refuse, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True)
    return lambda text: scan(text, 0)[0], lambda value: "".join(encode(value, 0))


loads, dumps = json_functions()


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
    """An answer in JSON; what is raised becomes its ``error``."""
    try:
        if "call" in record:
            return dumps({"value": names[record["call"]](**record["arguments"])})
        if record["define"]:
            exec(compile(record["run"], "<source>", "exec"), names)
        else:
            run(record["run"], names)
        return '{"value": null}'
    except BaseException as error:
        return dumps({"value": None, "error": explain(error)})


def flush():
    """Passes on what Python still holds of the standard outputs, which the code may have replaced or closed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # whatever the code has put there
            continue


def requests(connection):
    """Records of requests, one at a time; the program ends where the connection does."""
    data = b""
    while True:
        while len(data) < HEAD.size or len(data) < HEAD.size + sum(HEAD.unpack_from(data)):
            more = os.read(connection, CHUNK)
            if not more:
                os._exit(0)
            data += more
        text, payload = HEAD.unpack_from(data)
        record, data = data[HEAD.size : HEAD.size + text], data[HEAD.size + text + payload :]
        yield loads(record.decode())


def main():
    """Answers until the connection ends."""
    connection, own = os.dup(0), os.getpid()
    null = os.open(os.devnull, os.O_RDWR)
    memory = os.memfd_create("output")
    output = os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_APPEND)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    for record in requests(connection):
        told = answer(record, names)
        if os.getpid() != own:  # the code has forked, and its child has come back
            os._exit(0)
        flush()
        size = os.fstat(output).st_size
        kept = os.pread(output, min(size, record["limit"]), 0) if size else b""
        if size:
            os.ftruncate(output, 0)
        body = (f'{{"cut": {"true" if size > len(kept) else "false"}, "answer": {told}}}').encode()
        view = memoryview(HEAD.pack(len(body), len(kept)) + body + kept)
        while view:
            view = view[os.write(connection, view) :]


if __name__ == "__main__":
    main()
