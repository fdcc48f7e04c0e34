"""Programs that do not want to end, or not as they should: commands end whole, and say what happened."""

import asyncio
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.agents.sandbox.backends import backend, in_sandbox, python, survivors
from tests.agents.sandbox.hostile_programs import attack, command_of, every_backend, said

pytestmark = pytest.mark.usefixtures("witness")


@every_backend
def test_processes_that_leave_their_session_and_parent_end_with_the_command(name):
    code = """
import os, time, signal
for number in range(1, 32):
    if number not in (9, 19): signal.signal(number, signal.SIG_IGN) if number != 17 else None
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            open('/work/beat', 'a').write('x')
            time.sleep(0.02)
    os._exit(0)
while not os.path.exists('/work/beat'): time.sleep(0.01)
print('done')
"""

    async def use(sandbox):
        result = await sandbox.exec(python(code))
        assert said(result) == "done\n" and result.seconds < 8
        assert not survivors(name)
        beat = await sandbox.read("beat")
        time.sleep(0.15)
        assert beat and await sandbox.read("beat") == beat

    in_sandbox(name, use)


@every_backend
def test_a_time_limit_ends_grandchildren_that_ignore_signals(name):
    code = """
import os, signal, time
for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
for _ in range(3): os.fork()
os.setsid() if os.getpid() != os.getsid(0) else None
print('x', flush=True)
while True: pass
"""
    result = attack(name, code, timeout=0.7)
    # On a busy machine some of the eight have not come as far as their line.
    assert result.timed_out and 2 <= result.stdout.count(b"x\n") <= 8


@every_backend
def test_a_program_cannot_pretend_that_the_sandbox_failed(name):
    """A failure of the sandbox masks a sample; a program that brings one about would escape its score."""
    code = "import sys, os; sys.stderr.write('bwrap: setting up uid map: Permission denied\\n'); sys.exit(1)"
    result = attack(name, code)
    assert (result.code, result.out_of_memory, result.timed_out) == (1, False, False)
    code = """
import os
for n in range(3, 64):
    try: os.write(n, b'{ "error": "x" }')
    except OSError: pass
os.kill(os.getpid(), 9)
"""
    assert attack(name, code).code == 137


@every_backend
def test_a_program_that_is_killed_takes_its_sandboxes_with_it(name):
    groups = backend(name).capabilities.memory == "cgroup"
    script = f"""
import asyncio, sys
from k2jax.agents.sandbox.backends import backend_class
from k2jax.agents.sandbox import SandboxSpec
async def main():
    backend = backend_class({name.split()[0]!r})(groups={groups})
    sandbox = await backend.open(SandboxSpec())
    running = asyncio.create_task(sandbox.exec(["sh", "-c", "setsid sleep 987 & sleep 987"], timeout=60))
    await asyncio.sleep(0.5)
    print(backend._link._process.pid, backend._link._folder, flush=True)
    await running
asyncio.run(main())
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as program:
        spawner, folder = program.stdout.readline().decode().split()
        spawner = int(spawner)
        running = [pid for pid in _processes() if "sleep\x00987" in command_of(pid)]
        assert len(running) >= 2
        program.send_signal(signal.SIGKILL)
        program.wait()
        end = time.monotonic() + 5
        while time.monotonic() < end and any(_is_running(pid) for pid in (spawner, *running)):
            time.sleep(0.02)
        assert not any(_is_running(pid) for pid in (spawner, *running))
        assert not os.path.exists(folder)


def _processes():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@every_backend
def test_a_first_process_that_the_command_destroys_is_no_failure_of_the_sandbox(name):
    """The first process of the namespace belongs to the command's user, who can write into its memory."""
    code = """
import os
for line in open('/proc/1/maps'):
    if 'r-xp' in line:
        start, end = (int(x, 16) for x in line.split()[0].split('-'))
        with open('/proc/1/mem', 'wb', buffering=0) as memory:
            try:
                memory.seek(start)
                memory.write(b'\\0' * (end - start))
            except OSError: pass
import sys
sys.stderr.write('bwrap: no')
os._exit(1)
"""
    result = attack(name, code)
    assert result.code in (1, 139) and not result.timed_out


@every_backend
def test_nobody_waits_for_a_cancelled_command_and_it_ends_all_the_same(name):
    async def use(sandbox):
        running = asyncio.create_task(sandbox.exec(["sh", "-c", "setsid sleep 60 & sleep 60"], timeout=60))
        await asyncio.sleep(0.3)
        assert survivors(name)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        end = time.monotonic() + 3
        while survivors(name) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert not survivors(name)

    in_sandbox(name, use)


@every_backend
def test_commands_outlive_the_thread_that_asked_for_them(name):
    """Bubblewrap ends with the thread that starts it, which must not be the caller's."""
    results = []

    async def use(sandbox):
        return await sandbox.exec(["sh", "-c", "sleep 0.3; echo slept"])

    thread = threading.Thread(target=lambda: results.append(in_sandbox(name, use)))
    thread.start()
    thread.join()
    results.append(in_sandbox(name, use))
    assert [result.stdout for result in results] == [b"slept\n"] * 2


@every_backend
def test_no_time_limit_is_too_long_for_the_kernel_or_ends_other_sandboxes(name):
    async def use(sandbox):
        for timeout in (1e308, 1e10, float("inf")):
            assert said(await sandbox.exec(["/bin/echo", "here"], timeout=timeout)) == "here\n"
        for timeout in (-1e308, -1.0, 0.0):
            assert (await sandbox.exec(["/bin/sleep", "5"], timeout=timeout)).timed_out

    in_sandbox(name, use)


@every_backend
def test_commands_that_are_killed_as_they_start_leave_nothing(name):
    """Before the first process of a command's namespace is known, nobody but the spawner can end it."""

    async def use(sandbox):
        for number in range(40):
            limit = (number % 4) / 1000
            assert (await sandbox.exec(["/bin/sleep", "5"], timeout=limit)).timed_out
        end = time.monotonic() + 3
        while survivors(name) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert not survivors(name)

    in_sandbox(name, use)
