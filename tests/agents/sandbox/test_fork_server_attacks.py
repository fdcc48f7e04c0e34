"""What programs and crowds of commands try against fork servers, and against sandboxes that are used again."""

import asyncio
import errno
import gc
import os
import time
from types import SimpleNamespace

import pytest

from k2jax.agents.sandbox import Limits, SandboxError, SandboxSpec, fork_server_program
from k2jax.agents.sandbox.box import Box
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.sandbox.empty_folder import reset
from k2jax.agents.sandbox.fork_server import ForkedCommand
from k2jax.agents.sandbox.spawner import SandboxSpawner
from tests.agents.sandbox.backends import SPEC, python, servers_of
from tests.agents.sandbox.test_fork_server import SHELL, forking, with_backend

LEAVE = """
import fcntl, os
for folder in ('/work', '/tmp', '/dev/shm'):
    for n in range(50): open(f'{folder}/{n}', 'w').close()
    os.setxattr(folder, 'system.posix_acl_default', b''.join(
        bytes(part) for part in ((2, 0, 0, 0), *((tag, 0, 7, 0, 255, 255, 255, 255) for tag in (1, 4, 32)))))
    try: fcntl.ioctl(os.open(folder, os.O_RDONLY), 0x40086602, (0xC0).to_bytes(4, 'little'))
    except OSError: pass
    os.utime(folder, (4102444800, 4102444801))
"""
LOOK = """
import fcntl, os, time
for folder in ('/work', '/tmp', '/dev/shm', '/dev/pts', '/dev/pts/ptmx'):
    status = os.stat(folder)
    print(folder, oct(status.st_mode), status.st_uid, status.st_size, status.st_nlink, os.listxattr(folder))
    print([time.time() - 60 < each <= time.time() for each in (status.st_atime, status.st_mtime)])
    try: print(fcntl.ioctl(os.open(folder, os.O_RDONLY | os.O_NOCTTY), 0x80086601, bytes(8)))
    except OSError as error: print(error)
print(os.listdir('/work'), os.statvfs('/work').f_ffree, os.statvfs('/work').f_bfree)
"""


def test_times_flags_and_access_lists_of_folders_do_not_outlive_a_sandbox():
    async def use(backend):
        async with await forking(backend) as sandbox:
            expected = (await sandbox.exec(python(LOOK))).stdout
            before = servers_of(backend._link)
            left = await sandbox.exec(python(LEAVE))
            assert left.code == 0, left.stderr
            assert (await sandbox.exec(python(LOOK))).stdout != expected
        async with await backend.open(SPEC) as again:
            assert servers_of(backend._link) == before
            assert (await again.exec(python(LOOK))).stdout == expected
        assert expected.count(b"[True, True]") == 5

    with_backend(use)


def test_a_file_that_programs_may_change_is_as_it_was(tmp_path):
    path = tmp_path / "ptmx"
    path.touch()
    path.chmod(0)
    os.utime(path, (4102444800, 5))
    reset(path, 0o666)
    status = path.stat()
    assert status.st_mode & 0o7777 == 0o666
    assert max(abs(each - time.time()) for each in (status.st_atime, status.st_mtime)) < 60


def test_hundreds_of_commands_that_are_ended_at_once_leave_their_server_alive():
    async def use(backend):
        async with await forking(backend) as sandbox:
            before = servers_of(backend._link)
            tasks = [asyncio.create_task(sandbox.exec(["/bin/sleep", "60"])) for _ in range(500)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (await sandbox.exec([*SHELL, "echo on"])).stdout == b"on\n"
            assert servers_of(backend._link) == before
        async with await backend.open(SPEC) as again:
            assert (await again.exec([*SHELL, "set -- /proc/[0-9]*; echo $#"])).stdout == b"2\n"
            assert servers_of(backend._link) == before, "something was left running"

    with_backend(use)


def test_more_commands_than_descriptors_fail_alone():
    async def use(backend):
        spec = SandboxSpec(read_only=SPEC.read_only, limits=Limits(open_files=20))
        async with await forking(backend, spec) as sandbox:
            before = servers_of(backend._link)
            many = await asyncio.gather(
                *(sandbox.exec(["/bin/sleep", "0.5"]) for _ in range(30)), return_exceptions=True
            )
            failed = [each for each in many if isinstance(each, SandboxError)]
            assert 5 < len(failed) < 25 and all("Too many open files" in str(each) for each in failed)
            assert all(each.code == 0 for each in many if each not in failed)
            assert (await sandbox.exec([*SHELL, "echo on"])).stdout == b"on\n"
            assert servers_of(backend._link) == before

    with_backend(use)


def test_a_sandbox_too_full_for_a_fork_server_takes_none_from_others():
    async def use(backend):
        async with await backend.open(SandboxSpec(limits=Limits(memory=16 << 20))) as full:
            await full.exec([*SHELL, "head -c 14000000 /dev/zero > /dev/shm/x"])
            for _ in range(2):
                assert (await full.exec([*SHELL, "echo on"])).stdout == b"on\n"
            assert not servers_of(backend._link)
        async with await forking(backend):
            pass

    with_backend(use)


def test_the_end_of_a_program_waits_for_no_command_that_waits_for_a_fork_server():
    async def use(backend):
        sandbox = await backend.open(SPEC)
        tasks = [asyncio.create_task(sandbox.exec(["/bin/sleep", "9"])) for _ in range(6)]
        await asyncio.sleep(0.03)
        start = time.monotonic()
        await asyncio.to_thread(backend.close)
        assert time.monotonic() - start < 1.5
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, SandboxError) or result.code == 137

    backend = BubblewrapBackend()
    asyncio.run(use(backend))


def test_what_is_no_command_is_an_error_of_the_sandbox_and_no_exit_code():
    async def use(backend):
        async with await forking(backend) as sandbox:
            for argv in (["/bin/echo", "a\0b"], ["/bin/echo", "\ud800"]):
                record = {"argv": argv, "cwd": "/", "env": {}, "timeout": 5.0, "output_limit": 10}
                _, future = backend._link.ask("exec", box=sandbox._box, bare=False, **record)
                with pytest.raises(SandboxError, match="could not be started"):
                    future.result(10)

    with_backend(use)


def test_a_command_that_cannot_be_watched_does_not_go_on(monkeypatch):
    def refuse(pid):
        raise OSError(errno.ENOMEM, "no memory")

    started = []
    server = fork_server_program.ForkingProcess.__new__(fork_server_program.ForkingProcess)
    server.own_processes, server.filter_program = -1, b""
    monkeypatch.setattr(fork_server_program, "call", lambda *arguments: None)
    monkeypatch.setattr(fork_server_program, "be_first", lambda *arguments: os.execvp("sleep", ["sleep", "60"]))
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: started.append(fork()) or started[-1])
    monkeypatch.setattr(os, "pidfd_open", refuse)
    reading, writing = os.pipe()
    os.write(writing, b"{}")
    os.close(writing)
    with pytest.raises(OSError, match="no memory"):
        server.run(1, [reading] * 4)
    os.close(reading)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_a_fork_server_that_is_ending_takes_no_more_commands():
    server = SimpleNamespace(is_ready=True, is_ending=True, end=lambda: None)
    box = SimpleNamespace(key="same", server=server, group=SimpleNamespace(count=lambda: 2))
    assert not Box.wipe(box)
    assert SandboxSpawner._server_of(SimpleNamespace(), box) is None
    spawner = SimpleNamespace(_kept=[box])
    SandboxSpawner._drop_one(spawner)
    assert not spawner._kept


def test_a_fork_server_takes_no_place_of_a_process_and_leaves_none():
    code = """
import os, signal
count = 0
try:
    while True:
        if not os.fork(): signal.pause()
        count += 1
except OSError: print(count)
"""

    async def use(backend):
        async with await backend.open(SandboxSpec(read_only=SPEC.read_only, limits=Limits(processes=20))) as sandbox:
            for _ in range(3):
                assert (await sandbox.exec(python(code))).stdout == b"19\n"

    with_backend(use)


def test_nobody_is_told_of_the_failure_of_a_command_that_was_cancelled():
    async def use(backend):
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["message"]))
        async with await backend.open(SPEC) as sandbox:
            tasks = [asyncio.create_task(sandbox.exec(["/bin/sleep", "60"])) for _ in range(4)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await sandbox.exec([*SHELL, ":"])
        del tasks, task
        gc.collect()
        await asyncio.sleep(0)
        assert not told

    with_backend(use)


def test_a_command_for_which_there_are_no_pipes_leaves_none(monkeypatch):
    record = {"request": 1, "argv": ["x"], "cwd": "/", "env": {}, "timeout": 1.0, "output_limit": 1}
    before, left, pipe = os.listdir("/proc/self/fd"), [None, None], os.pipe
    monkeypatch.setattr(os, "pipe", lambda: pipe() if left.pop() is None else None)
    with pytest.raises(IndexError):
        ForkedCommand(None, SimpleNamespace(record=record), None, memory_kills=lambda: 0, done=None)
    assert os.listdir("/proc/self/fd") == before
