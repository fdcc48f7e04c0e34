"""Programs that mean harm beside ``k2jax.agents.sandbox.attacks``, of which namespaces must hold more."""

import os
from pathlib import Path

import pytest

from k2jax.agents.sandbox.attacks import ATTACKS, Attack
from k2jax.agents.sandbox.hostile import LIMITS
from tests.agents.sandbox.backends import NAMESPACES, SPEC

every_backend = pytest.mark.parametrize("name", NAMESPACES, indirect=True)
PARENTS = {part for path in SPEC.read_only for part in map(str, Path(path).parents)}
PLACES = {"/run", "/var", "/home", "/root", "/sys", "/boot", "/mnt", "/srv", "/opt", "/etc/shadow", "/etc/ssh",
          "/etc/hostname", "/etc/machine-id", "/dev/vda", "/dev/sda", "/dev/kmsg"} - PARENTS  # fmt: skip
PROCESS = f"{['65534'] * 4} {['65534'] * 4} True {{'{'0' * 16}'}} 1 2\n"


def prints(text):
    return lambda result: result.code == 0 and result.stdout.decode().strip() == text.strip()


def counts(low, high):
    """Whether the last line is a number from ``low`` to ``high``."""
    return lambda result: result.code == 0 and low <= int(result.stdout.split()[-1]) <= high


PROGRAMS = {
    "processes and threads up to the limit": ATTACKS["processes and threads without end"]._replace(
        contained=lambda result: all(4 <= int(word) < LIMITS.processes for word in result.stdout.split())
    ),
    "all places on one disk": Attack(
        """
import os
total = 0
for folder in ('/work', '/tmp', '/dev/shm'):
    for i in range(8):
        with open(f'{folder}/{i}', 'wb', buffering=0) as f:
            try:
                while True: total += f.write(b'x' * 65536)
            except OSError: pass
for folder in ('/work', '/tmp', '/dev/shm'):
    for i in range(8): os.unlink(f'{folder}/{i}')
print(total)
""",
        counts(LIMITS.disk // 2, LIMITS.disk),
    ),
    "places beside the disk": Attack(
        """
import os
found = []
for top, folders, _ in os.walk('/'):
    if top == '/proc': folders.clear()
    try: open(f'{top}/probe', 'w').close()
    except OSError: continue
    found.append(top)
print(sorted(found))
""",
        prints("['/dev/shm', '/tmp', '/work']"),
        60.0,
    ),
    "inodes up to the limit": Attack(
        """
import os
n = 0
try:
    while n < 100000:
        os.mkdir(f'/work/{n}') if n % 2 else open(f'/tmp/{n}', 'w').close()
        n += 1
except OSError as error: print(error.errno, n)
os.unlink('/tmp/0')
""",
        prints(f"28 {LIMITS.files}"),
        20.0,
    ),
    "the words of a sandbox that failed": Attack(
        "import sys; sys.stderr.write('bwrap: setting up uid map: Permission denied\\n'); sys.exit(1)",
        lambda result: (result.code, result.out_of_memory, result.timed_out) == (1, False, False),
    ),
    "errors on every descriptor": Attack(
        """
import os
for n in range(3, 64):
    try: os.write(n, b'{ "error": "x" }')
    except OSError: pass
os.kill(os.getpid(), 9)
""",
        lambda result: result.code == 137,
    ),
    "the first process destroyed": Attack(
        r"""
import os, sys
for line in open('/proc/1/maps'):
    if 'r-xp' in line:
        start, end = (int(x, 16) for x in line.split()[0].split('-'))
        with open('/proc/1/mem', 'wb', buffering=0) as memory:
            try:
                memory.seek(start)
                memory.write(b'\0' * (end - start))
            except OSError: pass
sys.stderr.write('bwrap: no')
os._exit(1)
""",
        lambda result: result.code in (1, 139) and not result.timed_out,
    ),
    "rights": Attack(
        """
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
""",
        prints(f"{PROCESS}{PROCESS}[]"),
    ),
    "a terminal": Attack(
        """
import fcntl, os, pty
try: fcntl.ioctl(pty.openpty()[1], 0x5412, b'x'); print('pushed')
except OSError as error: print(error.errno)
try: os.open('/dev/tty', os.O_RDWR); print('has a terminal')
except OSError: print('no terminal')
""",
        prints("1\nno terminal"),
    ),
    "a virtual machine's host and other interfaces": Attack(
        """
import socket
try: socket.socket(40, socket.SOCK_STREAM).connect((2, 80)); print('reached')
except OSError: pass
print([name for _, name in socket.if_nameindex()])
""",
        prints("['lo']"),
    ),
    "the host's usual places": Attack(
        f"import os, sys; print([p for p in {sorted(PLACES)} if os.path.exists(p) and os.listdir(p)])\n"
        "folder = os.path.dirname(sys.argv[1])\n"
        "print(os.path.exists(folder) and os.listdir(folder))\n"
        f"print([os.listdir(os.path.dirname(p)) == [os.path.basename(p)] for p in {list(SPEC.read_only)}])",
        prints(f"[]\nFalse\n{[True] * len(SPEC.read_only)}"),
    ),
    "other processes in /proc": Attack(
        """
import os
pids = [int(n) for n in os.listdir('/proc') if n.isdigit()]
print(len(pids) <= 3, max(pids) < 10, os.path.exists('/sys'))
for file in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/sysrq-trigger',
             '/proc/irq/default_smp_affinity', '/proc/sys/kernel/randomize_va_space'):
    try: os.close(os.open(file, os.O_WRONLY)); print('wrote', file)
    except OSError: pass
for file in ('/proc/kcore', '/proc/kmsg', '/proc/timer_list', '/proc/slabinfo', '/proc/vmallocinfo'):
    try: os.close(os.open(file, os.O_RDONLY)); print('read', file)
    except OSError: pass
""",
        prints("True True False"),
    ),
}
MEMORY = {
    "a bomb": Attack(
        "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))",
        lambda result: result.out_of_memory and result.code == 137,
    ),
    "of all processes": Attack(
        """
import os, time
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        x = bytearray(b'x' * (40 << 20))
        time.sleep(1)
        os._exit(0)
    children.append(pid)
print(sum(os.waitpid(pid, 0)[1] != 0 for pid in children))
""",
        lambda result: result.out_of_memory and counts(2, 4)(result),
    ),
    "in memory files": Attack(
        "import os\nwhile True: os.write(os.memfd_create('x'), b'x' * (1 << 20))",
        lambda result: result.out_of_memory and result.code == 137,
    ),
}
"""What the kernel counts in a control group."""


def command_of(pid):
    """The command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
