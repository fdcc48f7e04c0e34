"""Tool workers: state that lasts, errors as answers, and programs that mean harm."""

import asyncio
import dataclasses
import functools
import time

import pytest

from k2jax.agents.sandbox import Limits, SandboxError
from k2jax.agents.sandbox.python_worker import ToolWorker
from tests.agents.sandbox.backends import NAMESPACES, SPEC, processes_of, python, sandboxed

SMALL = dataclasses.replace(SPEC, limits=Limits(memory=96 << 20))
SOURCE = """
count = 0
def add(n, unit="m"):
    global count
    count += n
    return {"total": count, "unit": unit}
def strange(): return {1, 2}
"""


def with_worker(names=("bubblewrap",), source=SOURCE):
    """Makes of a coroutine function a test of it with a worker and its sandbox."""

    def make(use):
        @functools.wraps(use)
        async def run(sandbox):
            await use(ToolWorker(sandbox, source), sandbox)

        return sandboxed(names, SMALL)(run)

    return make


@with_worker(NAMESPACES)
async def test_functions_and_code_share_names_that_last_and_give_values_outputs_and_errors(worker, sandbox):
    first, second = await worker.call("add", {"n": 2}), await worker.call("add", {"n": 3, "unit": "s"})
    assert (first.value, second.value) == ({"total": 2, "unit": "m"}, {"total": 5, "unit": "s"})
    cell = await worker.run("import os, sys\nprint('out'); os.system('echo child'); print('e', file=sys.stderr)\ncount")
    assert sorted(cell.output.split()) == [b"5", b"child", b"e", b"out"] and cell.error is None
    assert (await worker.run("")).output == (await worker.run("None")).output == b""
    for call in (worker.call("add", {"x": 1}), worker.call("gone", {}), worker.call("strange", {})):
        assert "Error" in (await call).error
    wrong = await worker.run("x = 1\n1 / 0")
    assert wrong.error.endswith("ZeroDivisionError: division by zero\n") and "worker_program" not in wrong.error
    assert "SystemExit" in (await worker.run("sys.exit(3)")).error
    assert (await worker.run("x")).output == b"1\n"
    flood = await worker.run("print('y' * 5000)", output_limit=10)
    assert flood.output == b"y" * 10 and flood.truncated
    again = await worker.run("print('z')", output_limit=10)
    assert again.output == b"z\n" and not again.truncated
    await worker.run("open('file', 'w').write('kept')")
    assert await sandbox.read("file") == b"kept"


@with_worker(NAMESPACES)
async def test_a_worker_that_hangs_or_ends_is_an_answer_and_the_next_call_starts_another(worker, sandbox):
    begun = time.monotonic()
    hung = await worker.run("import os\nos.system('setsid sleep 60 &')\nwhile True: pass", timeout=0.4)
    assert hung.timed_out and hung.ended and time.monotonic() - begun < 4
    assert not processes_of(sandbox)
    assert (await worker.call("add", {"n": 1})).value["total"] == 1
    gone = await worker.run("import os; os._exit(3)")
    assert gone.ended and not gone.timed_out and gone.error.startswith("the worker ended")
    full = await worker.run("x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))", timeout=30.0)
    assert full.error.endswith("the worker ended for memory" if sandbox.capabilities.memory == "cgroup" else "Error\n")
    assert (await worker.call("add", {"n": 1})).value["total"] == 1
    assert (await sandbox.exec(python("print(1)"))).stdout == b"1\n"
    await worker.close()
    assert not processes_of(sandbox)


FIND = """
import os, struct
for n in map(int, os.listdir('/proc/self/fd')):
    if os.path.exists(f'/proc/self/fd/{n}') and 'socket' in os.readlink(f'/proc/self/fd/{n}'): c = n
"""
FORGED = {
    "too long": "os.write(c, struct.pack('!II', 4_000_000_000, 0))",
    "too much output": "os.write(c, struct.pack('!II', 2, 4_000_000_000) + b'{}')",
    "no JSON": "os.write(c, struct.pack('!II', 4, 0) + b'nope')",
    "no record": "os.write(c, struct.pack('!II', 2, 0) + b'[]')",
    "no answer": "os.write(c, struct.pack('!II', 14, 0) + b'{\"answer\": []}')",
    "deep": "os.write(c, struct.pack('!II', 200_000, 0) + b'[' * 200_000)",
    "two": "os.write(c, (struct.pack('!II', 14, 0) + b'{\"answer\": {}}') * 2)",
}


@with_worker()
async def test_an_answer_that_is_none_ends_the_worker_and_nothing_else(worker, sandbox):
    for kind, code in FORGED.items():
        answer = await worker.run(f"{FIND}{code}\nimport time; time.sleep(5)", timeout=3.0)
        assert answer.ended and answer.error and not answer.timed_out, kind
        assert (await worker.call("add", {"n": 1})).value["total"] == 1


@with_worker()
async def test_a_child_of_the_code_that_comes_back_does_not_answer(worker, sandbox):
    await worker.run("import os\nkept = 'kept'\npid = os.fork()")
    assert [(await worker.run("print(kept, pid > 0)")).output for _ in range(3)] == [b"kept True\n"] * 3


@with_worker()
async def test_a_cancelled_call_ends_its_worker(worker, sandbox):
    await worker.start()
    call = asyncio.create_task(worker.run("import time; time.sleep(60)", timeout=60))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not processes_of(sandbox)
    assert (await worker.run("7")).output == b"7\n"


@with_worker(source="def (")
async def test_a_source_that_cannot_be_run_is_a_failure(worker, sandbox):
    with pytest.raises(SandboxError, match="SyntaxError"):
        await worker.start()
    with pytest.raises(SandboxError, match="no-such-python"):
        await ToolWorker(sandbox, "x = 1", python="no-such-python").start()


@with_worker()
async def test_a_closed_sandbox_is_a_failure(worker, sandbox):
    await worker.start()
    await sandbox.close()
    with pytest.raises(SandboxError):
        for _ in range(2):  # the first may still be answered that the worker ended
            assert (await worker.run("1")).ended


@sandboxed(NAMESPACES)
async def test_a_fork_has_the_files_and_goes_its_own_way(sandbox):
    await sandbox.exec(["sh", "-c", "mkdir d; echo 1 > d/f; ln -s /etc l; mkfifo p; chmod 640 d/f; echo t > /tmp/t"])
    snapshot = await sandbox.snapshot()
    await sandbox.write("d/f", b"2")
    async with await sandbox.fork(snapshot) as other:
        await other.write("new", b"")
        listing = await other.exec(["sh", "-c", "ls -A; readlink l; stat -c %a d/f; cat d/f /tmp/t; test -p p"])
        assert (listing.code, listing.stdout) == (0, b"d\nl\nnew\np\n/etc\n640\n1\nt\n")
    assert (await sandbox.list("/work"), await sandbox.read("d/f")) == (["d", "l", "p"], b"2")
