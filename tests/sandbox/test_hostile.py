"""Programs that mean harm: each costs its time limit at most, leaves nothing behind, and the next command works."""

import asyncio
import contextlib
import dataclasses
import fcntl
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from k2jax.sandbox import Limits
from tests.sandbox.backends import NAMESPACES, SPEC, backend, in_sandbox, python, survivors

pytestmark = pytest.mark.usefixtures("witness")
every_backend = pytest.mark.parametrize("name", NAMESPACES, indirect=True)
MEBI = 1 << 20
SMALL = dataclasses.replace(SPEC, limits=Limits(memory=96 * MEBI, processes=24, disk=4 * MEBI, files=200))
LIBC = "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True)\n"


def attack(name, code, *arguments, spec=SPEC, timeout=5.0, **options):
    """Runs hostile Python code, sees that nothing of it is left and that the next command works; gives its result."""

    async def use(sandbox):
        begun = time.monotonic()
        result = await sandbox.exec(python(code, *arguments), timeout=timeout, **options)
        assert time.monotonic() - begun < timeout + 1.5
        assert not survivors(name)
        after = await sandbox.exec(["/bin/echo", "alive"])
        assert (after.code, after.stdout) == (0, b"alive\n"), after
        return result

    return in_sandbox(name, use, spec)


def said(result):
    """What a program printed that ended well."""
    assert result.code == 0, result
    return result.stdout.decode()


@every_backend
def test_a_fork_bomb_costs_its_time_limit(name):
    result = attack(name, "import os\nwhile True:\n try: os.fork()\n except OSError: pass", spec=SMALL, timeout=1.0)
    assert result.timed_out


@every_backend
def test_there_are_never_more_processes_than_the_limit(name):
    code = """
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0: time.sleep(60)
        n += 1
except OSError: pass
print(n)
"""
    assert 10 <= int(said(attack(name, code, spec=SMALL))) < SMALL.limits.processes


@every_backend
def test_there_are_never_more_threads_than_the_limit(name):
    code = """
import threading, time
threading.stack_size(65536)
n = 0
try:
    while n < 500:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        n += 1
except RuntimeError: pass
print(n, flush=True)
import os; os._exit(0)
"""
    assert 5 <= int(said(attack(name, code, spec=SMALL))) < SMALL.limits.processes


@every_backend
def test_a_memory_bomb_ends_itself_only(name):
    result = attack(name, "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))", spec=SMALL)
    assert result.code != 0 and not result.timed_out
    if backend(name).capabilities.memory == "cgroup":
        assert result.out_of_memory and result.code == 137


def test_memory_is_counted_over_all_processes_and_memory_files():
    code = """
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
"""
    result = attack("bubblewrap", code, spec=SMALL)
    assert int(said(result)) >= 2 and result.out_of_memory
    code = """
import os
while True: os.write(os.memfd_create('x'), b'x' * (1 << 20))
"""
    result = attack("bubblewrap", code, spec=SMALL)
    assert result.code == 137 and result.out_of_memory


@every_backend
def test_a_full_disk_is_the_programs_own(name):
    code = """
import os
total = 0
for folder in ('/work', '/tmp', '/dev/shm'):
    for i in range(8):
        with open(f'{folder}/{i}', 'wb', buffering=0) as f:
            try:
                while True: total += f.write(b'x' * 65536)
            except OSError as error: print(error.errno)
print(total)
"""
    *_, total = said(attack(name, code, spec=SMALL)).split()
    assert SMALL.limits.disk // 2 < int(total) <= SMALL.limits.disk


@every_backend
def test_no_place_beside_the_limited_disk_can_be_written(name):
    code = """
import os
found = []
for top, folders, _ in os.walk('/'):
    if top == '/proc': folders.clear()
    try: open(f'{top}/probe', 'w').close()
    except OSError: continue
    found.append(top)
print(sorted(found))
"""
    assert said(attack(name, code, timeout=60)).strip() == "['/dev/shm', '/tmp', '/work']"


@every_backend
def test_inodes_run_out_for_the_program_alone(name):
    code = """
import os
n = 0
try:
    while n < 100000:
        os.mkdir(f'/work/{n}') if n % 2 else open(f'/tmp/{n}', 'w').close()
        n += 1
except OSError as error: print(error.errno, n)
"""
    number, made = map(int, said(attack(name, code, spec=SMALL)).split())
    assert (number, made) == (28, SMALL.limits.files)


@every_backend
def test_a_flood_of_output_is_cut_and_needs_no_memory(name):
    def memory():
        pids = [backend(name)._link._process.pid, os.getpid()]
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)

    attack(name, "pass")
    before = memory()
    code = "import os\nif os.fork(): os.dup2(2, 1)\nwhile True: os.write(1, b'y' * 65536)"
    result = attack(name, code, timeout=1.0, output_limit=1000)
    assert result.timed_out and result.truncated and result.stdout == result.stderr == b"y" * 1000
    assert memory() - before < 8 * MEBI


@every_backend
def test_no_socket_of_the_host_can_be_reached(name):
    """TCP and UDP on the loopback, an abstract Unix socket, a Unix socket in a folder, and a virtual machine's host."""
    with contextlib.ExitStack() as stack:
        tcp, udp, abstract, path = (
            stack.enter_context(socket.socket(*kind))
            for kind in (
                (socket.AF_INET, socket.SOCK_STREAM),
                (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX,),
                (socket.AF_UNIX,),
            )
        )
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        abstract.bind(f"\0k2jax-{os.getpid()}")
        folder = stack.enter_context(tempfile.TemporaryDirectory())  # short, as addresses of Unix sockets are
        path.bind(f"{folder}/s")
        for server in (tcp, abstract, path):
            server.listen()
            server.settimeout(0.05)
        udp.settimeout(0.05)
        code = f"""
import socket
def reach(family, kind, address):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(1)
            s.connect(address)
            s.send(b'x')
    except OSError: return False
    return True
S = socket
print(reach(S.AF_INET, S.SOCK_STREAM, ('127.0.0.1', {tcp.getsockname()[1]})),
      reach(S.AF_UNIX, S.SOCK_STREAM, {abstract.getsockname()!r}),
      reach(S.AF_UNIX, S.SOCK_STREAM, {path.getsockname()!r}),
      reach(S.AF_INET, S.SOCK_STREAM, ('169.254.169.254', 80)),
      reach(S.AF_INET, S.SOCK_DGRAM, ('192.0.2.1', 53)),
      reach(S.AF_INET6, S.SOCK_STREAM, ('2001:db8::1', 80)),
      reach(40, S.SOCK_STREAM, (2, 80)),
      [name for _, name in S.if_nameindex()])
reach(S.AF_INET, S.SOCK_DGRAM, ('127.0.0.1', {udp.getsockname()[1]}))
try: S.getaddrinfo('example.org', 80)
except S.gaierror: print('no names')
"""
        text = said(attack(name, code))
        for server in (tcp, abstract, path):
            with pytest.raises(TimeoutError):
                server.accept()
        with pytest.raises(TimeoutError):
            udp.recv(1)
    assert text.split("\n")[:2] == ["False " * 7 + "['lo']", "no names"]


@every_backend
def test_the_hosts_usual_sockets_and_folders_do_not_exist(name, witness):
    places = ["/run", "/var", "/home", "/root", "/sys", "/boot", "/mnt", "/srv", "/opt", str(witness.folder)]
    places += ["/etc/shadow", "/etc/ssh", "/etc/hostname", "/etc/machine-id", "/dev/vda", "/dev/sda", "/dev/kmsg"]
    code = "import os, sys; print([p for p in sys.argv[1:] if os.path.exists(p) and os.listdir(p)])"
    allowed = {part for path in SPEC.read_only for part in map(str, Path(path).parents)}
    assert said(attack(name, code, *(place for place in places if place not in allowed))).strip() == "[]"
    code = "import os, sys; print(os.listdir(sys.argv[1]))"
    for path in SPEC.read_only:  # of the folders above what is named, only the way to it
        parent = Path(path).parent
        assert said(attack(name, code, str(parent))).strip() == repr([Path(path).name])


@every_backend
def test_proc_shows_own_processes_alone_and_nothing_in_it_can_be_written(name):
    code = """
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
"""
    assert said(attack(name, code)).strip() == "True True False"


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
        running = asyncio.create_task(sandbox.exec(["sleep", "0.5"]))
        await asyncio.sleep(0.3)
        users = [_users(pid) for pid in survivors(name)]
        await running
        return users

    users = in_sandbox(name, use)
    expected = 65534 if os.geteuid() == 0 else os.geteuid()
    assert len(users) >= 3 and set(users) == {(expected,) * 4}


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
def test_a_flood_of_zombies_stays_inside(name):
    code = "import os\nwhile True:\n try:\n  if os.fork() == 0: os._exit(0)\n except OSError: pass"
    assert attack(name, code, spec=SMALL, timeout=0.7).timed_out


@every_backend
def test_signals_reach_no_process_outside(name):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as bystander:
        code = """
import os, signal, sys
for number in (15, 9):
    for pid in (1, os.getppid(), int(sys.argv[1]), int(sys.argv[2]), -int(sys.argv[2])):
        try: os.kill(pid, number)
        except OSError: pass
print('sent', flush=True)
os.kill(-1, 9)
os.kill(0, 9)
"""
        result = attack(name, code, str(bystander.pid), str(os.getpid()))
        assert result.stdout == b"sent\n"
        assert bystander.poll() is None
        bystander.kill()


@every_backend
def test_secrets_of_the_environment_stay_outside(name, monkeypatch):
    monkeypatch.setenv("API_KEY", "key-77c1")
    backend(name).close()  # a new spawner, which this environment could reach
    code = """
import os, glob
print(sorted(os.environ))
for file in glob.glob('/proc/[0-9]*/*') + glob.glob('/proc/[0-9]*/task/*/*'):
    if file.rsplit('/', 1)[1] in ('environ', 'cmdline', 'comm'):
        try: text = open(file, 'rb').read()
        except OSError: continue
        if b'77c' + b'1' in text: print('found in', file)
"""
    text = said(attack(name, code))
    assert set(eval(text)) <= {"HOME", "LANG", "LC_CTYPE", "PATH", "PWD"}


@every_backend
def test_no_descriptor_is_inherited(name, witness):
    with witness.file.open() as secret, open(fcntl.fcntl(secret, fcntl.F_DUPFD, 200)) as copy:
        for file in (secret, copy):
            os.set_inheritable(file.fileno(), True)
        backend(name).close()  # a new spawner, which could inherit it
        code = """
import os
for n in os.listdir('/proc/self/fd'):
    try: print(n, os.readlink(f'/proc/self/fd/{n}')[:5])
    except OSError: pass  # that of the listing itself
"""
        assert said(attack(name, code)) == "0 pipe:\n1 pipe:\n2 pipe:\n"


@every_backend
def test_a_terminal_cannot_be_written_to(name):
    code = (
        LIBC
        + """
import fcntl, pty
try: fcntl.ioctl(pty.openpty()[1], 0x5412, b'x'); print('pushed')
except OSError as error: print(error.errno)
try: os.open('/dev/tty', os.O_RDWR); print('has a terminal')
except OSError: print('no terminal')
"""
    )
    assert said(attack(name, code)).split("\n")[:2] == ["1", "no terminal"]


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
from k2jax.sandbox.backends import BACKENDS
from k2jax.sandbox import SandboxSpec
async def main():
    backend = BACKENDS[{name.split()[0]!r}](groups={groups})
    sandbox = await backend.open(SandboxSpec())
    running = asyncio.create_task(sandbox.exec(["sh", "-c", "setsid sleep 987 & sleep 987"], timeout=60))
    await asyncio.sleep(0.5)
    print(backend._link._process.pid, backend._link._folder, flush=True)
    await running
asyncio.run(main())
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as program:
        spawner, folder = program.stdout.readline().decode().split()
        spawner = int(spawner)
        running = [pid for pid in _processes() if "sleep\x00987" in _command(pid)]
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


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


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
def test_many_attacks_at_once_leave_each_other_alone(name):
    codes = ["while True: pass", "import os\nwhile True:\n try: os.fork()\n except OSError: pass", "print('fine')"]

    async def one(code):
        async with await backend(name).open(SMALL) as sandbox:
            return await sandbox.exec(python(code), timeout=3.0)

    async def run():
        return await asyncio.gather(*(one(code) for code in codes * 2))

    results = asyncio.run(run())
    assert [result.timed_out for result in results] == [True, True, False] * 2
    assert results[2].stdout == results[5].stdout == b"fine\n"
