"""Programs that look around: sockets, files, processes, secrets and descriptors of the host are out of reach."""

import contextlib
import fcntl
import os
from pathlib import Path
import socket
import subprocess
import sys
import tempfile

import pytest

from tests.agents.sandbox.backends import SPEC, backend
from tests.agents.sandbox.hostile_programs import LIBC, attack, every_backend, said

pytestmark = pytest.mark.usefixtures("witness")


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
