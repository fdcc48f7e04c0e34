"""Runs inside a fresh sandbox, as text: unpacks what an agent has left, and runs the task's test script over it.

The script runs in this process, which holds the secret of the call; what it runs of the agent's is another process.
"""

import base64
import ctypes
import io
import json
import os
import subprocess
import sys
import tarfile


def run(*argv: str, stdin: str = "", timeout: float = 5.0) -> str:
    """Output of a command in the agent's folder, for test scripts; raises AssertionError where it fails."""
    path = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, env=path)
    assert done.returncode == 0, done.stderr[-200:]
    return done.stdout


def read(path: str) -> str:
    """Text of a regular file, for test scripts; raises AssertionError where it is none."""
    assert os.path.isfile(path) and not os.path.islink(path), path + " is no regular file"
    with open(path, encoding="utf-8") as file:
        return file.read(1 << 20)


def main() -> None:
    """Reads a request from stdin, and writes its secret with the verdict to stdout."""
    request = json.loads(sys.stdin.read())
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: what the script starts cannot open this process in /proc
    reason = ""
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(request["archive"]))) as archive:
            # Modes count. Python 3.11.2 knows no filter, and does as this one.
            archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
            archive.extractall("/work/left")
        os.chdir("/work/left")
        exec(compile(request["test"], "test", "exec"), {"os": os, "json": json, "run": run, "read": read})
    except BaseException as error:
        reason = (type(error).__name__ + ": " + str(error))[:300] or "?"
    print("\n" + json.dumps({"secret": request["secret"], "reason": reason}))


if __name__ == "__main__":
    main()
