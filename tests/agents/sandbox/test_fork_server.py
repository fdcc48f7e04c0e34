"""What a fork server starts is what a bubblewrap of its own would start, and a sandbox that is used again is new."""

import asyncio
import os
import signal
import time

import pytest

from k2jax.agents.sandbox import Limits, SandboxError, SandboxSpec
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from tests.agents.sandbox.backends import SPEC, left_by, python, servers_of

SHELL = ["/bin/sh", "-c"]
LISTS = """
for name in /proc/self/limits /proc/self/cgroup /proc/sys/kernel/hostname; do cat $name; done
grep -E 'Cap|NoNewPrivs|Seccomp|Groups|Uid|Gid|Umask|SigBlk' /proc/self/status
awk '{print $5, $6}' /proc/self/mountinfo | sort -u
ls -la /dev / | awk '{print $1, $9, $10, $11}'; ls /proc/self/fd | wc -l
env | sort; id; umask; pwd; cat /proc/net/dev | cut -d: -f1; set -- /proc/[0-9]*; echo $#; tty
echo x > /proc/self/comm; echo $?; echo x > /dev/x; echo $?; ls /sys /run /home 2>&1
"""
SAME = {
    "lists": [*SHELL, LISTS],
    "code": [*SHELL, "exit 77"],
    "signal": [*SHELL, "kill -9 $$"],
    "no such program": ["missing"],
    "no name": [""],
    "no such path": ["/work/missing"],
    "no program": ["/usr"],
    "not executable": ["/etc/passwd"],
    "no first line": ["./script", "a b", "c"],
    "bytes": ["/bin/echo", "\udcff\udcfe", "é", ""],
    "session": [
        *SHELL,
        "kill -INT 1; kill -TERM 1; cut -d' ' -f1-8 /proc/1/stat /proc/self/stat | sed 's/.*) . //'; tty",
    ],
    "many words": ["/bin/echo", *map(str, range(5000))],
    "pipe": [*SHELL, "yes | head -1; trap - PIPE; yes | true"],
    "namespaces": python(
        "import ctypes\nl = ctypes.CDLL(None)\nprint([l.unshare(1 << n) for n in (17, 25, 26, 27, 28, 29, 30)])"
    ),
    "privileges": python(
        "import ctypes\nl = ctypes.CDLL(None)\nprint(l.prctl(23, 21, 0, 0, 0), l.chroot(b'/tmp'))\n"
        "print(l.setuid(0), l.setgid(0), l.mount(b'x', b'/tmp', b'tmpfs', 0, None), l.prctl(39, 0, 0, 0, 0))"
    ),
}


def with_backend(use, **options):
    """What a coroutine function returns that is given a new backend, which leaves nothing behind."""
    backend = BubblewrapBackend(**options)

    async def run():
        result = await use(backend)
        assert not left_by(backend._link)
        return result

    try:
        return asyncio.run(run())
    finally:
        backend.close()


async def forking(backend, spec=SPEC):
    """A sandbox whose commands are started by its fork server."""
    sandbox = await backend.open(spec)
    for _ in range(2):
        assert (await sandbox.exec([*SHELL, ":"])).code == 0
    assert servers_of(backend._link)
    return sandbox


def test_a_command_is_what_it_would_be_in_a_bubblewrap_of_its_own():
    async def outcome(others, backend, argv):
        async with await others.open(SPEC) as alone, await forking(backend) as sandbox:
            results = []
            for each in (alone, sandbox):
                await each.write("/work/script", b'echo "$0-$1-$2"\n')
                path = each._outside("/work/script")
                os.chmod(path, 0o755, dir_fd=each._root)
                result = await each.exec(argv, stdin=b"in", env={"A": "b c", "LONG": "x" * 1000}, output_limit=20000)
                results.append((result.code, result.stdout, result.stderr, result.truncated))
            return results

    async def use(backend):
        others = BubblewrapBackend(forks=False)
        try:
            return {name: await outcome(others, backend, argv) for name, argv in SAME.items()}
        finally:
            others.close()

    for name, (alone, forked) in with_backend(use).items():
        assert forked == alone, name


def test_what_cannot_be_entered_is_told_as_by_bubblewrap():
    async def use(backend):
        async with await backend.open(SPEC) as alone, await forking(backend) as sandbox:
            first, second = [await each.exec(["/bin/true"], cwd="/work/missing") for each in (alone, sandbox)]
            assert (second.code, second.stderr) == (first.code, first.stderr) and b"missing" in first.stderr

    with_backend(use)


def test_commands_of_a_fork_server_do_not_see_each_other_nor_it_and_each_has_its_own_loopback():
    async def use(backend):
        async with await forking(backend) as sandbox:
            serve = "import os, socket, time; s = socket.create_server(('127.0.0.1', 8000)); time.sleep(0.3); "
            look = serve + "print(os.listdir('/proc'))"
            both = await asyncio.gather(*(sandbox.exec(python(look)) for _ in range(2)))
            for result in both:
                assert result.code == 0, result.stderr
                assert {name for name in eval(result.stdout) if name.isdigit()} == {"1", "2"}
            read = "print(open('/proc/1/environ', 'rb').read(), open('/proc/1/maps').read())"
            assert b"Permission denied" in (await sandbox.exec(python(read))).stderr
            show = "tr '\\0' ' ' < /proc/1/cmdline"  # a command's own words, as of bubblewrap's first process
            words = await sandbox.exec([*SHELL, show])
            assert (words.stdout.rstrip().decode(), words.stderr) == (f"bwrap -- /bin/sh -c {show}", b"")

    with_backend(use)


def test_time_limits_and_cancellation_end_a_command_with_all_that_it_started():
    async def use(backend):
        async with await forking(backend) as sandbox:
            escaped = "(setsid sleep 60 &) ; (setsid sleep 60 &) ; echo here; sleep 60"
            result = await sandbox.exec([*SHELL, escaped], timeout=0.3)
            assert (result.timed_out, result.code, result.stdout) == (True, 137, b"here\n")
            task = asyncio.create_task(sandbox.exec([*SHELL, escaped]))
            await asyncio.sleep(0.3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert (await sandbox.exec([*SHELL, "setsid sleep 60 & echo left"])).stdout == b"left\n"
            end = time.monotonic() + 5
            while left_by(backend._link) and time.monotonic() < end:
                await asyncio.sleep(0.01)
            assert not left_by(backend._link)

    with_backend(use)


@pytest.mark.parametrize("spec", [SPEC, SandboxSpec(limits=Limits(memory=64 << 20))])
def test_a_sandbox_that_is_used_again_has_nothing_of_the_one_before(spec):
    leave = """
    for folder in /work /tmp /dev/shm; do
      mkdir -p $folder/.a/b; echo secret > $folder/.a/b/c; ln -s /etc/passwd $folder/link; mkfifo $folder/pipe
      chmod 000 $folder/.a; setfattr -n user.x -v y $folder 2>/dev/null; chmod 700 $folder
    done
    (setsid sleep 60 &)
    """
    mark = python("import os\nfor f in ('/work', '/tmp', '/dev/shm'): os.setxattr(f, 'user.x', b'y')")
    look = "ls -lAd /work /tmp /dev/shm | awk '{print $1, $3, $4, $9}'; ls -A /work /tmp /dev/shm; ls -A /dev/pts"
    attributes = python("import os\nprint([os.listxattr(f) for f in ('/work', '/tmp', '/dev/shm')])")

    async def use(backend):
        async with await backend.open(spec) as fresh:
            expected = (await fresh.exec([*SHELL, look])).stdout
        async with await forking(backend, spec) as sandbox:
            before = servers_of(backend._link)
            if spec.read_only:
                assert (await sandbox.exec(mark)).code == 0
            assert (await sandbox.exec([*SHELL, leave])).code == 0
        async with await backend.open(spec) as again:
            assert servers_of(backend._link) == before, "another sandbox was made"
            assert (await again.exec([*SHELL, look])).stdout == expected
            if spec.read_only:
                assert (await again.exec(attributes)).stdout == b"[[], [], []]\n"
            await again.write("/work/x", b"1")
            assert (await again.exec(["/bin/cat", "x"])).stdout == b"1"

    with_backend(use)


def test_sandboxes_that_cannot_be_emptied_cheaply_or_differ_are_not_used_again():
    async def use(backend):
        async with await forking(backend) as sandbox:
            first = servers_of(backend._link)
            await sandbox.exec([*SHELL, "seq 1500 | xargs touch"])
        assert not servers_of(backend._link)
        async with await forking(backend) as sandbox:
            first = servers_of(backend._link)
            await sandbox.exec(python("import os\nfor _ in range(80): os.mkdir('d'); os.chdir('d')"))
        assert not servers_of(backend._link)
        async with await forking(backend):
            first = servers_of(backend._link)
        async with await forking(backend, SandboxSpec(limits=Limits(files=100))):
            assert first < servers_of(backend._link)
        sandbox = await forking(backend)
        sandbox._unfinished.add(None)  # as a thread that still reads
        kept = servers_of(backend._link)
        await sandbox.close()
        assert servers_of(backend._link) < kept

    with_backend(use)


def test_a_fork_server_that_is_killed_fails_its_commands_and_the_next_has_another():
    async def use(backend):
        async with await forking(backend) as sandbox:
            running = asyncio.create_task(sandbox.exec(["/bin/sleep", "60"]))
            await asyncio.sleep(0.2)
            for pid in servers_of(backend._link):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(SandboxError, match="could not be started"):
                await running
            assert (await sandbox.exec([*SHELL, "echo on"])).stdout == b"on\n"
        async with await forking(backend):
            pass
        [_, pid] = sorted(servers_of(backend._link))
        os.kill(pid, signal.SIGKILL)  # while nobody uses it
        await asyncio.sleep(0.2)
        async with await backend.open(SPEC) as sandbox:
            assert (await sandbox.exec([*SHELL, "echo on"])).stdout == b"on\n"

    with_backend(use)


def test_memory_is_that_of_the_sandbox_and_its_end_is_told():
    async def use(backend):
        spec = SandboxSpec(read_only=SPEC.read_only, limits=Limits(memory=64 << 20))
        async with await forking(backend, spec) as sandbox:
            result = await sandbox.exec(python("x = bytearray(200 << 20)"), timeout=20)
            assert result.out_of_memory and result.code == 137
            assert (await sandbox.exec([*SHELL, "echo on"])).stdout == b"on\n"

    with_backend(use)


def test_without_control_groups_or_another_place_for_its_python_there_is_none(monkeypatch):
    async def use(backend):
        async with await backend.open(SPEC) as sandbox:
            for _ in range(3):
                assert (await sandbox.exec([*SHELL, "echo on"])).stdout == b"on\n"
        assert not servers_of(backend._link)

    with_backend(use, groups=False)
    with_backend(use, forks=False)
    monkeypatch.setattr("k2jax.agents.sandbox.interpreter._LOADERS", {})
    with_backend(use)


def test_a_fork_server_that_cannot_start_leaves_every_command_to_bubblewrap(monkeypatch):
    wrong = '{"argv": ["/bin/false"], "shown": {"usr": "/usr"}}'
    monkeypatch.setattr("k2jax.agents.sandbox.namespaces._server_python", lambda: wrong)

    async def use(backend):
        async with await backend.open(SPEC) as sandbox:
            for number in range(4):
                assert (await sandbox.exec(["/bin/echo", str(number)])).stdout == b"%d\n" % number
        assert not servers_of(backend._link)

    with_backend(use)
