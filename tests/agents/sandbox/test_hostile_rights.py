"""Programs that want more rights: none is gained by namespaces, mounts, tracing or another user."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.agents.sandbox.backends import in_sandbox, survivors
from tests.agents.sandbox.hostile_programs import LIBC, attack, command_of, every_backend, said

pytestmark = pytest.mark.usefixtures("witness")


@every_backend
def test_a_command_without_rights_stays_without(name):
    code = """
import os, socket
for process in ('self', '1'):
    status = dict(line.split(':', 1) for line in open(f'/proc/{process}/status'))
    caps = [status[f'Cap{k}'].strip() for k in ('Eff', 'Prm', 'Bnd', 'Amb', 'Inh')]
    print(status['Uid'].split(), status['Gid'].split(), status['Groups'].split() in ([], ['65534']), set(caps),
          status['NoNewPrivs'].strip(), status['Seccomp'].strip())
for call in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.chroot('/work'), lambda: os.setgroups([0]),
             lambda: os.mknod('/work/n', 0o20666, 259), lambda: os.setpriority(0, 0, -5),
             lambda: socket.sethostname('x')):
    try: call(); print('did')
    except OSError: pass
print(os.listdir('/work'))
"""
    one = f"{['65534'] * 4} {['65534'] * 4} True {{'{'0' * 16}'}} 1 2\n"  # the command, and the first process
    assert said(attack(name, code)) == f"{one}{one}[]\n"


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
def test_nested_namespaces_are_refused(name):
    code = (
        LIBC
        + """
flags = (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80)
print([libc.unshare(flag) for flag in flags] == [-1] * 8)
clone = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
for flag in flags[:-1]:
    pid = libc.syscall(clone, ctypes.c_ulong(flag | 17), 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    print(pid, ctypes.get_errno())
for kind in ('user', 'mnt', 'pid', 'net'):
    f = os.open(f'/proc/self/ns/{kind}', os.O_RDONLY)
    print(libc.setns(f, 0))
"""
    )
    assert said(attack(name, code)).split("\n")[:-1] == ["True", *["-1 1"] * 7, *["-1"] * 4]


@every_backend
def test_mounts_are_refused(name):
    code = (
        LIBC
        + """
c = ctypes.c_char_p
print(libc.mount(c(b'x'), c(b'/work'), c(b'tmpfs'), 0, None), libc.mount(c(b'/usr'), c(b'/work'), None, 4096, None),
      libc.mount(None, c(b'/'), None, 32, None), libc.umount2(c(b'/work'), 2), libc.umount2(c(b'/proc/sys'), 2),
      libc.syscall(430, c(b'tmpfs'), 0), libc.syscall(428, -100, c(b'/usr'), 1),
      libc.syscall(442, -100, c(b'/usr'), 0, 0, 0))
"""
    )
    assert said(attack(name, code)).split() == ["-1"] * 8


@every_backend
def test_other_processes_cannot_be_traced_or_read(name):
    code = (
        LIBC
        + """
import time
pid = os.fork()
if pid == 0: time.sleep(60)
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
print(libc.ptrace(0, 0, 0, 0), libc.ptrace(16, pid, 0, 0), libc.ptrace(0x4206, 1, 0, 0),
      libc.process_vm_readv(pid, vector, 1, vector, 1, 0), libc.process_vm_writev(pid, vector, 1, vector, 1, 0))
"""
    )
    assert said(attack(name, code)).split() == ["-1"] * 5
