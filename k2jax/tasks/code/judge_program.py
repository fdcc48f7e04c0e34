"""Runs inside a sandbox, as text, with the standard library alone: tests in one process, the solution in another.

The process of the tests calls the solution's functions by messages of Python literals. The solution therefore never
sees the tests, cannot replace what compares, and cannot write the verdict, which carries a secret of this call.
"""

import ast
import builtins
import ctypes
import json
import subprocess
import sys

SERVER = r"""
import ast, os, sys
source, answers = sys.stdin, os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "solution"}
try:
    exec(compile(open("/work/solution.py").read(), "solution.py", "exec"), names)
    answers.write("None\n")
except BaseException as error:
    answers.write(repr((type(error).__name__, str(error))) + "\n")
answers.flush()
for line in source:
    name, arguments, keywords = ast.literal_eval(line)
    try:
        answer = (True, names[name](*arguments, **keywords))
    except BaseException as error:
        answer = (False, (type(error).__name__, str(error)))
    answers.write(repr(answer).replace("\n", " ") + "\n")
    answers.flush()
"""


def main() -> None:
    """Reads a request from stdin, and writes its secret with the number of passed tests to stdout."""
    request = json.loads(sys.stdin.read())
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the solution cannot open this process in /proc
    server = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    reasons = []
    if (failure := server.stdout.readline()).strip() != "None":
        reasons = [failure.strip()[:200]] * len(request["tests"])
    else:
        for test in request["tests"]:
            try:
                source = request["setup"] + "\n" + test
                exec(compile(source, "test", "exec"), _names(source, server))
            except BaseException as error:
                reasons.append((type(error).__name__ + ": " + str(error))[:200])
    server.kill()
    print(json.dumps({"secret": request["secret"], "failed": len(reasons), "reasons": reasons[:3]}))


def _names(source: str, server: subprocess.Popen) -> dict:
    """A function for every name that a test reads and nobody defines: it calls the solution's."""
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {name: _function(name, server) for name in used if not hasattr(builtins, name)}


def _function(name: str, server: subprocess.Popen):
    def call(*arguments, **keywords):
        message = repr((name, arguments, keywords))
        if "\n" in message or ast.literal_eval(message) != (name, arguments, keywords):
            raise TypeError("the arguments of a test must be Python literals")
        server.stdin.write(message + "\n")
        server.stdin.flush()
        good, value = ast.literal_eval(server.stdout.readline())
        if good is True:
            return value
        kind = getattr(builtins, value[0], RuntimeError)
        raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError)(value[1])

    return call


if __name__ == "__main__":
    main()
