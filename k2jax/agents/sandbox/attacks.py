"""Programs that mean harm, for every backend, and what must hold of their results; hostile.py runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
import contextlib
from typing import NamedTuple

from k2jax.agents.sandbox.types import MEBI, ExecResult, Sandbox, SandboxError

_TIMEOUT = 5.0


class Attack(NamedTuple):
    """One program, and what must hold of its result.

    Attributes:
        code: Python; its arguments are those of ``Outside.arguments``.
        contained: whether a result is one of a contained attack.
        timeout: time limit [s].
        then: what is tried from outside on the files that the program left; raises AssertionError where it succeeds.
    """

    code: str
    contained: Callable[[ExecResult], bool] = lambda result: True
    timeout: float = _TIMEOUT
    then: Callable[[Sandbox], Awaitable[None]] | None = None


def _says(text: str) -> Callable[[ExecResult], bool]:
    return lambda result: result.code == 0 and result.stdout.decode(errors="replace").strip() == text


def _says_numbers(low: int, high: int) -> Callable[[ExecResult], bool]:
    return lambda result: result.code == 0 and all(low <= int(word) <= high for word in result.stdout.split())


def _times_out(result: ExecResult) -> bool:
    return result.timed_out


def _fails_by_itself(result: ExecResult) -> bool:
    return result.code != 0 and not result.timed_out


async def _refuses(sandbox: Sandbox) -> None:
    for path in ("file", "folder/secret", "round", "pipe", "socket", "device"):
        with contextlib.suppress(SandboxError):
            await sandbox.read(path)
            raise AssertionError(f"{path} could be read")
    for path in ("folder", "pipe", "socket"):
        with contextlib.suppress(SandboxError):
            await sandbox.list(path)
            raise AssertionError(f"{path} could be listed")
    with contextlib.suppress(SandboxError):
        await sandbox.write("folder/new", b"x")
        raise AssertionError("a file was written behind a link")
    await sandbox.write("file", b"own")
    await sandbox.write("pipe", b"own")
    assert await sandbox.read("file") == await sandbox.read("pipe") == b"own"


async def _reads_little(sandbox: Sandbox) -> None:
    assert len(await sandbox.read("sparse", limit=1000)) == 1000
    assert await sandbox.list("/work", limit=3) == ["\n", " two\nlines", "0"]
    assert await sandbox.list("/work/" + "/".join(["d"] * 10_000)) == ["end"]


ATTACKS: dict[str, Attack] = {
    "fork bomb": Attack(
        """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
        _times_out,
        0.8,
    ),
    "processes and threads without end": Attack(
        """
import os, threading, time
def started(start):
    n = 0
    try:
        while n < 500: start(); n += 1
    except (OSError, RuntimeError): return n
children = []
def fork():
    children.append(os.fork())
    if not children[-1]: time.sleep(60)
processes = started(fork)
for pid in children: os.kill(pid, 9); os.waitpid(pid, 0)
threading.stack_size(65536)
threads = started(lambda: threading.Thread(target=time.sleep, args=(60,), daemon=True).start())
print(processes, threads, flush=True)
os._exit(0)
""",
        _says_numbers(4, 99),
    ),
    "memory bomb": Attack(
        """
x = []
while True: x.append(bytearray(b'x' * (1 << 20)))
""",
        _fails_by_itself,
        20.0,
    ),
    "full disk": Attack(
        """
import os
for place in ('/work', '/tmp', '/dev/shm'):
    try:
        with open(place + '/fill', 'wb', buffering=0) as f:
            for _ in range(1000): f.write(b'x' * 65536)
    except OSError: pass
    os.unlink(place + '/fill')
""",
        timeout=20.0,
    ),
    "inode flood": Attack(
        """
try:
    for n in range(30000): open(f'/tmp/{n}', 'w').close()
except OSError: pass
import os
for n in os.listdir('/tmp'): os.unlink(f'/tmp/{n}')
""",
        timeout=20.0,
    ),
    "output flood": Attack(
        """
import os
if os.fork(): os.dup2(2, 1)
while True: os.write(1, b'y' * 65536)
""",
        lambda result: result.timed_out and result.truncated and len(result.stdout) <= MEBI >= len(result.stderr),
        2.0,
    ),
    "sockets of the host": Attack(
        r"""
import socket, sys
S = socket
reached = []
for family, kind, address in ((S.AF_INET, S.SOCK_STREAM, ('127.0.0.1', int(sys.argv[2]))),
        (S.AF_INET, S.SOCK_DGRAM, ('127.0.0.1', int(sys.argv[3]))), (S.AF_UNIX, S.SOCK_STREAM, '\0' + sys.argv[4]),
        (S.AF_UNIX, S.SOCK_STREAM, sys.argv[5]), (S.AF_UNIX, S.SOCK_STREAM, '/run/docker.sock'),
        (S.AF_INET, S.SOCK_STREAM, ('169.254.169.254', 80)), (S.AF_INET, S.SOCK_STREAM, ('192.0.2.1', 53)),
        (S.AF_INET6, S.SOCK_STREAM, ('2001:db8::1', 80))):
    try:
        with S.socket(family, kind) as s:
            s.settimeout(1); s.connect(address); s.send(b'x')
            if kind == S.SOCK_STREAM: reached.append(address)
    except OSError: pass
try: reached.append(S.getaddrinfo('example.org', 80)[0])
except OSError: pass
print(reached)
""",
        _says("[]"),
        20.0,
    ),
    "reading /proc and /sys": Attack(
        """
import os, sys
for top in ('/proc', '/sys/kernel', '/sys/firmware', '/sys/fs'):
    for folder, folders, files in os.walk(top):
        if folder.count('/') > 3: folders.clear()
        for name in files:
            try:
                d = os.open(f'{folder}/{name}', os.O_RDONLY | os.O_NONBLOCK)
                text = os.read(d, 4096); os.close(d)
                if name in ('environ', 'secret'): os.write(1, text)
            except OSError: pass
for file in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/sys/kernel/uevent_helper'):
    try: os.close(os.open(file, os.O_WRONLY)); print('wrote', file)
    except OSError: pass
""",
        lambda result: b"wrote" not in result.stdout,
        20.0,
    ),
    "files of the host": Attack(
        """
import os, sys
for path in (sys.argv[1], '/proc/1/root' + sys.argv[1], '/proc/self/cwd/../../..' + sys.argv[1]):
    for mode in ('r', 'a'):
        try: print(open(path, mode).read())
        except OSError: pass
    try: os.link(path, '/work/link'); print('linked')
    except OSError: pass
""",
        _says(""),
    ),
    "nested namespaces": Attack(
        """
import ctypes, os
libc = ctypes.CDLL(None)
flags = (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80)
results = {libc.unshare(flag) for flag in flags}
clone = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
for flag in flags[:-1]:
    pid = libc.syscall(clone, ctypes.c_ulong(flag | 17), 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    results.add(pid)
for kind in ('user', 'mnt', 'pid', 'net'):
    results.add(libc.setns(os.open(f'/proc/self/ns/{kind}', os.O_RDONLY), 0))
print(results)
""",
        _says("{-1}"),
    ),
    "mounts": Attack(
        """
import ctypes
libc = ctypes.CDLL(None)
c = ctypes.c_char_p
print({libc.mount(c(b'x'), c(b'/work'), c(b'tmpfs'), 0, None), libc.mount(c(b'/usr'), c(b'/work'), None, 4096, None),
    libc.mount(None, c(b'/'), None, 32, None), libc.umount2(c(b'/work'), 2), libc.umount2(c(b'/proc'), 2),
    libc.umount2(c(b'/proc/sys'), 2), libc.syscall(430, c(b'tmpfs'), 0), libc.syscall(428, -100, c(b'/usr'), 1),
    libc.syscall(442, -100, c(b'/usr'), 0, 0, 0)})
""",
        _says("{-1}"),
    ),
    "tracing": Attack(
        """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
child, outside = os.fork(), int(sys.argv[6])
if child == 0: time.sleep(60)
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
print({libc.ptrace(0, 0, 0, 0), libc.ptrace(0x4206, 1, 0, 0), *(libc.ptrace(16, pid, 0, 0) for pid in (child, outside)),
    *(call(pid, vector, 1, vector, 1, 0) for pid in (child, outside)
      for call in (libc.process_vm_readv, libc.process_vm_writev))})
""",
        _says("{-1}"),
    ),
    "survivors of their parents": Attack(
        """
import os, signal, time
for n in range(1, 32):
    if n not in (9, 17, 19): signal.signal(n, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(600)
        os._exit(0)
time.sleep(0.3)
print('left')
""",
        _says("left"),
    ),
    "grandchildren past the time limit": Attack(
        """
import os, signal
for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)
os.fork(); os.fork()
os.getpid() == os.getsid(0) or os.setsid()
while True: pass
""",
        _times_out,
        0.8,
    ),
    "zombie flood": Attack(
        """
import os
while True:
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: pass
""",
        _times_out,
        0.8,
    ),
    "orphan flood": Attack(
        """
import os, time
end = time.time() + 1
while time.time() < end:
    try:
        if os.fork() == 0:
            os.fork() or os._exit(0)
            time.sleep(0.01); os._exit(0)
        os.wait()
    except OSError: pass
""",
    ),
    "signals": Attack(
        """
import os, sys
for number in (15, 9):
    for pid in (1, os.getppid(), int(sys.argv[6]), -int(sys.argv[6])):
        try: os.kill(pid, number)
        except OSError: pass
try: os.kill(-1, 9)
except OSError: pass
os.kill(0, 9)
""",
        lambda result: result.code in (137, 143) and not result.timed_out,
    ),
    "exit codes written into other processes": Attack(
        r"""
import os, platform
if platform.machine() == 'x86_64': idle, end = b'\x90', b'\x31\xff\xb8\xe7\x00\x00\x00\x0f\x05'
else: idle, end = b'\x1f\x20\x03\xd5', b'\x00\x00\x80\xd2\xc8\x0b\x80\xd2\x01\x00\x00\xd4'
for pid in (n for n in os.listdir('/proc') if n.isdigit() and int(n) != os.getpid()):
    for place in (f'/proc/{pid}', f'/proc/{pid}/task/{pid}'):
        try:
            with open(f'{place}/maps') as maps: parts = [line.split() for line in maps if ' r-xp ' in line]
            memory = os.open(f'{place}/mem', os.O_RDWR)
        except OSError: continue
        for part in parts:
            first, last = (int(word, 16) for word in part[0].split('-'))
            page = (idle * 4096)[:4096 - len(end)] + end
            try: os.pwrite(memory, page * ((last - first) // 4096), first)
            except OSError: pass
    for name in os.listdir(f'/proc/{pid}/fd') if os.access(f'/proc/{pid}/fd', os.R_OK) else ():
        try:
            if os.readlink(f'/proc/{pid}/fd/{name}').startswith('anon_inode'):
                os.write(os.open(f'/proc/{pid}/fd/{name}', os.O_WRONLY | os.O_NONBLOCK), (1).to_bytes(8, 'little'))
        except OSError: pass
os._exit(7)
""",
        lambda result: result.code == 7,
    ),
    "secrets in the environment": Attack(
        """
import glob, os
print(dict(os.environ))
for file in glob.glob('/proc/[0-9]*/environ'):
    try: print(open(file).read())
    except OSError: pass
""",
        lambda result: result.code == 0 and b"K2JAX" not in result.stdout,
    ),
    "inherited descriptors": Attack(
        """
import os, stat
kinds = set()
for n in os.listdir('/proc/self/fd'):
    try: kinds.add(stat.S_IFMT(os.fstat(int(n)).st_mode) not in (stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK))
    except OSError: pass
print(kinds)
""",
        _says("{False}"),
    ),
    "links, pipes, devices and sockets for a reader": Attack(
        """
import os, socket, sys
os.symlink(sys.argv[1], 'file'); os.symlink(os.path.dirname(sys.argv[1]), 'folder')
os.symlink('round', 'round'); os.mkfifo('pipe'); socket.socket(socket.AF_UNIX).bind('socket')
os.symlink('/dev/zero', 'device')
print('ready')
""",
        _says("ready"),
        then=_refuses,
    ),
    "huge, deep and strange files for a reader": Attack(
        r"""
import os, resource
limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 1 << 40 if limit < 0 else limit)
for name in (' two\nlines', '\n', '0'): open(name, 'w').close()
for _ in range(10_000): os.mkdir('d'); os.chdir('d')
open('end', 'w').close()
print('ready')
""",
        _says("ready"),
        20.0,
        _reads_little,
    ),
}
