"""Programs that take a test of their own: they do not want to end, flood what listens, or look at what is inherited."""

import asyncio
import dataclasses
import fcntl
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time

from k2jax.agents.sandbox.hostile import LIMITS
from tests.agents.sandbox.backends import (
    NAMESPACES,
    SPEC,
    backend,
    in_sandbox,
    processes_of,
    python,
    sandboxed,
    survivors,
)
from tests.agents.sandbox.hostile_programs import command_of, every_backend, is_running, processes

SMALL = dataclasses.replace(SPEC, limits=LIMITS)


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
        running = [int(spawner), *(pid for pid in processes() if "sleep\x00987" in command_of(pid))]
        assert len(running) >= 3
        program.send_signal(signal.SIGKILL)
        program.wait()
        end = time.monotonic() + 5
        while time.monotonic() < end and any(map(is_running, running)):
            time.sleep(0.02)
        assert not any(map(is_running, running)) and not os.path.exists(folder)


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


@sandboxed(NAMESPACES)
async def test_no_time_limit_is_too_long_or_too_short(sandbox):
    """Before the first process of a command's namespace is known, nobody but the spawner can end it."""
    for timeout in (1e308, 1e10, float("inf")):
        assert (await sandbox.exec(["/bin/echo", "here"], timeout=timeout)).stdout == b"here\n"
    for timeout in (-1e308, -1.0, *((number % 4) / 1000 for number in range(40))):
        assert (await sandbox.exec(["/bin/sleep", "5"], timeout=timeout)).timed_out
    end = time.monotonic() + 3
    while processes_of(sandbox) and time.monotonic() < end:
        await asyncio.sleep(0.01)
    assert not processes_of(sandbox)


@every_backend
def test_on_the_host_no_process_of_a_sandbox_is_root(name):
    """User 0 of the host may do much without any capability, such as write into /proc/sys."""

    async def use(sandbox):
        running = asyncio.create_task(sandbox.exec(["sleep", "20"]))
        try:
            async with asyncio.timeout(15):
                while True:
                    pids = survivors(name)
                    if any(command_of(pid).split("\0")[0].endswith("sleep") for pid in pids):  # it has begun
                        return {pid: (command_of(pid), _users(pid)) for pid in pids}
                    await asyncio.sleep(0.02)
        finally:
            running.cancel()

    users = in_sandbox(name, use)
    expected = 65534 if os.geteuid() == 0 else os.geteuid()
    assert len(users) >= 2 and {each for _, each in users.values()} == {(expected,) * 4}, users


def _users(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return tuple(int(word) for word in status.partition("Uid:")[2].split("\n")[0].split())


@every_backend
def test_no_secret_and_no_descriptor_is_inherited(name, monkeypatch, witness):
    monkeypatch.setenv("API_KEY", "key-77c1")
    with witness.file.open() as secret, open(fcntl.fcntl(secret, fcntl.F_DUPFD, 200)) as copy:
        for file in (secret, copy):
            os.set_inheritable(file.fileno(), True)
        backend(name).close()  # a new spawner, which this environment and these files could reach
        code = """
import os, glob
for n in os.listdir('/proc/self/fd'):
    try: print(n, os.readlink(f'/proc/self/fd/{n}')[:5])
    except OSError: pass  # that of the listing itself
for file in glob.glob('/proc/[0-9]*/*') + glob.glob('/proc/[0-9]*/task/*/*'):
    if file.rsplit('/', 1)[1] in ('environ', 'cmdline', 'comm'):
        try: text = open(file, 'rb').read()
        except OSError: continue
        if b'77c' + b'1' in text: print('found in', file)
print(sorted(os.environ))
"""
        text = in_sandbox(name, lambda sandbox: sandbox.exec(python(code))).stdout.decode()
    *descriptors, variables = text.splitlines()
    assert descriptors == ["0 pipe:", "1 pipe:", "2 pipe:"]
    assert set(eval(variables)) <= {"HOME", "LANG", "LC_CTYPE", "PATH", "PWD"}


@every_backend
def test_a_flood_of_output_is_cut_and_needs_no_memory(name):
    def memory():
        pids = [backend(name)._link._process.pid, os.getpid()]
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)

    code = "import os\nif os.fork(): os.dup2(2, 1)\nwhile True: os.write(1, b'y' * 65536)"

    async def use(sandbox):
        await sandbox.exec(python("pass"))
        before = memory()
        result = await sandbox.exec(python(code), timeout=1.0, output_limit=1000)
        return result, memory() - before

    result, growth = in_sandbox(name, use)
    assert result.timed_out and result.truncated and result.stdout == result.stderr == b"y" * 1000
    assert growth < 8 << 20


@every_backend
async def test_many_attacks_at_once_leave_each_other_alone(name):
    codes = ["while True: pass", "import os\nwhile True:\n try: os.fork()\n except OSError: pass", "print('fine')"]

    async def one(code):
        async with await backend(name).open(SMALL) as sandbox:
            return await sandbox.exec(python(code), timeout=3.0 if "fine" in code else 1.0)

    results = await asyncio.gather(*(one(code) for code in codes * 2))
    assert [result.timed_out for result in results] == [True, True, False] * 2
    assert results[2].stdout == results[5].stdout == b"fine\n"
