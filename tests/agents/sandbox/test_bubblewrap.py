"""What is particular to bubblewrap: its spawner's life, where it is found, other users, images, control groups."""

import asyncio
import gc
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from k2jax.agents.sandbox import Limits, SandboxError, SandboxSpec, bubblewrap, cgroup, warden
from k2jax.agents.sandbox import check as checking
from k2jax.agents.sandbox.attacks import ATTACKS, Attack
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend, find_bubblewrap
from k2jax.errors import UserError
from tests.agents.sandbox.backends import PYTHON, in_sandbox, own_descriptors, python, servers_of
from tests.agents.sandbox.other_user import run_as_another_user


@pytest.fixture
def folder():
    """A folder outside /tmp that every user can reach."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


def with_backend(use):
    """Runs a coroutine function on a backend of its own, whose spawner it may look at."""
    backend = BubblewrapBackend()
    try:
        return asyncio.run(use(backend))
    finally:
        backend.close()


def wait_for(condition, seconds=60.0):
    """Waits as long as even a loaded machine takes, and no longer than the condition."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_requests_that_come_faster_than_answers_are_read_all_get_theirs():
    """One thread asks without a pause, and the answers alone fill the connection meanwhile."""
    answers, count, payload = [], 16, bytes(1 << 20)

    async def ask(backend):
        async with await backend.open(SandboxSpec()) as sandbox:
            return await asyncio.gather(*(sandbox.exec(["/bin/cat"], stdin=payload) for _ in range(count)))

    asking = threading.Thread(target=lambda: answers.extend(with_backend(ask)), daemon=True)
    asking.start()
    asking.join(30.0)
    assert [len(answer.stdout) for answer in answers] == [1 << 20] * count


def test_more_sandboxes_may_live_than_a_command_may_have_descriptors():
    """The spawner holds some of each; its fork, which becomes the command, has them for a moment."""
    limits = Limits(open_files=32)

    async def use(backend):
        sandboxes = [await backend.open(SandboxSpec(limits=limits)) for _ in range(40)]
        result = await sandboxes[-1].exec(["/bin/sh", "-c", "ulimit -n"])
        for sandbox in sandboxes:
            await sandbox.close()
        return result.stdout

    assert with_backend(use) == b"32\n"


def in_place_of_the_wheel(monkeypatch, folder, script):
    """A script that is the system's bubblewrap, where no wheel is installed; None is none at all."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}" if script else "/does/not/exist")
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, r'pip install "k2jax\[sandbox\]"'),
        *((script, r"0\.8") for script in ("echo bubblewrap 0.7.9", "echo what", "exit 1")),
    ],
)
def test_a_bubblewrap_that_is_missing_too_old_or_broken_is_refused_with_what_to_install(
    monkeypatch, tmp_path, script, message
):
    in_place_of_the_wheel(monkeypatch, tmp_path, script)
    with pytest.raises(UserError, match=message):
        BubblewrapBackend()


def test_the_systems_bubblewrap_is_used_where_there_is_no_wheel(monkeypatch, tmp_path):
    found, folder = find_bubblewrap()
    in_place_of_the_wheel(monkeypatch, tmp_path, f'exec {os.path.join(folder, found)} "$@"')
    assert find_bubblewrap() == (str(tmp_path / "bwrap"), "")


def test_a_machine_without_user_namespaces_is_refused_in_one_line(monkeypatch, folder):
    """A bubblewrap that answers as on such a machine."""
    script = folder / "bwrap"
    script.write_text("#!/bin/sh\necho bwrap: No permissions >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "find_bubblewrap", lambda: ("bwrap", str(folder)))
    backend = BubblewrapBackend()
    with pytest.raises(UserError, match=r"No permissions.*user namespaces"):
        asyncio.run(backend.open(SandboxSpec()))


def test_a_spawner_that_is_killed_fails_its_sandboxes_and_the_next_one_opens():
    async def use(backend):
        sandbox = await backend.open(SandboxSpec())
        running = asyncio.create_task(sandbox.exec(["sleep", "60"], timeout=60))
        await asyncio.sleep(0.3)
        folder, spawner = backend._link._folder, backend._link._process.pid
        os.kill(backend._link._process.pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="has ended"):
            await running
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"])
        await sandbox.close()
        wait_for(lambda: not os.path.exists(folder) and not groups_of(spawner))
        async with await backend.open(SandboxSpec()) as other:
            assert (await other.exec(["true"])).code == 0

    with_backend(use)


def test_a_spawner_that_is_killed_while_it_starts_is_none_of_the_machine_s_fault(monkeypatch):
    killed, try_out = [], BubblewrapBackend._try_out

    async def killing(self, link):
        if not killed:
            killed.append(os.kill(link.process_id, signal.SIGKILL))
        await try_out(self, link)

    async def use(backend):
        async with await backend.open(SandboxSpec()) as sandbox:
            assert (await sandbox.exec(["true"])).code == 0

    monkeypatch.setattr(BubblewrapBackend, "_try_out", killing)
    with_backend(use)
    assert killed


@pytest.mark.parametrize("delay", [0.005, 0.01, 0.015, 0.02, 0.03])
def test_commands_that_are_being_started_when_their_spawner_is_killed_do_not_outlive_it(delay):
    """Bubblewrap binds a command to its parent's life only once its namespaces are there."""

    async def use(backend):
        async def work():
            async with await backend.open(SandboxSpec()) as sandbox:
                await sandbox.exec(["sleep", "0.3"])

        await work()  # the spawner is there, and has started nothing but its warden
        folder = backend._link._folder
        wardens = set(warden.marked(os.path.basename(folder).encode())) - {backend._link._process.pid}
        working = [asyncio.ensure_future(work()) for _ in range(6)]
        await asyncio.sleep(delay)
        os.kill(backend._link._process.pid, signal.SIGKILL)
        await asyncio.gather(*working, return_exceptions=True)
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}/cwd") for pid in wardens))  # a zombie has no folder
        assert wardens and not warden.marked(os.path.basename(folder).encode()) and not os.path.exists(folder)

    with_backend(use)


def test_a_backend_that_is_forgotten_ends_its_spawner():
    async def run(backend):
        async with await backend.open(SandboxSpec()):
            pass

    gc.collect()  # what earlier tests have left would otherwise close its descriptors below
    before = own_descriptors()
    backend = BubblewrapBackend()
    asyncio.run(run(backend))
    process, folder = backend._link._process, backend._link._folder
    assert process.poll() is None
    del backend

    def has_ended():
        gc.collect()  # again where a thread that was answering has held the backend a moment longer
        return process.returncode is not None and not os.path.exists(folder) and own_descriptors() <= before

    wait_for(has_ended)


def groups_of(spawner):
    """Folders of the control groups that a spawner has made, by its pid."""
    return {path for tree in cgroup.find().values() for path in tree.folder.glob(f"{cgroup.PREFIX}{spawner}-*")}


def test_sandboxes_that_were_never_closed_end_with_their_backend():
    async def use(backend):
        for _ in range(3):
            await backend.open(SandboxSpec())
        spawner = backend._link._process.pid
        assert len(groups_of(spawner)) == 3 * len(set(cgroup.find().values()))
        return spawner

    assert not groups_of(with_backend(use))


def test_the_next_sandbox_of_the_same_limits_takes_over_the_control_groups_of_a_closed_one():
    async def use(backend):
        async with await backend.open(SandboxSpec()) as sandbox:
            running = asyncio.create_task(sandbox.exec(["sleep", "60"]))
            await asyncio.sleep(0.3)
            spawner = backend._link._process.pid
            first = groups_of(spawner)
            assert first and all((group / "cgroup.procs").read_text() for group in first)
        await running
        left = {int(pid) for group in first for pid in (group / "cgroup.procs").read_text().split()}
        assert groups_of(spawner) == first and left <= servers_of(backend._link)
        async with await backend.open(SandboxSpec()), await backend.open(SandboxSpec(limits=Limits(processes=20))):
            assert len(groups_of(spawner)) == 2 * len(first) and groups_of(spawner) > first
            files = [group / "pids.max" for group in groups_of(spawner)]
            limits = {file.read_text().strip() for file in files if file.exists()}
            assert limits == {"22", str(Limits().processes + 3)}, "the one that is used again has a fork server"
        return spawner

    assert not groups_of(with_backend(use))


def test_a_sandbox_does_not_answer_for_what_was_killed_in_its_control_group_before():
    """The kernel's count of kills stays with a group that another sandbox takes over."""
    spec = SandboxSpec(read_only=PYTHON.read_only, limits=Limits(memory=64 << 20))

    async def use(backend):
        for code, out_of_memory in (("x = bytearray(1 << 28)", True), ("import os; os.kill(os.getpid(), 9)", False)):
            async with await backend.open(spec) as sandbox:
                assert (await sandbox.exec(python(code))).out_of_memory is out_of_memory

    with_backend(use)


def test_a_user_who_hides_new_files_from_others_gets_sandboxes_that_read_theirs():
    async def use(backend):
        async with await backend.open(SandboxSpec()) as sandbox:
            return await sandbox.exec(["sh", "-c", "cat /etc/hosts && umask"])

    before = os.umask(0o077)
    try:
        assert with_backend(use).stdout == b"127.0.0.1 localhost\n::1 localhost\n0022\n"
    finally:
        os.umask(before)


def test_opening_that_is_cancelled_leaves_nothing_behind():
    async def use(backend):
        async def once():
            async with await backend.open(SandboxSpec()):
                pass

        await once()
        link, before = backend._link, own_descriptors()
        spawner, resolve, answers = link._process.pid, link._resolve, threading.Event()

        def hold(*answer):  # The thread that listens could be faster than the cancellation.
            answers.wait()
            resolve(*answer)

        link._resolve = hold
        for _ in range(5):
            answers.clear()
            opening = asyncio.create_task(backend.open(SandboxSpec()))
            while not link._waiting:
                await asyncio.sleep(0)
            opening.cancel()
            answers.set()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await once()  # the spawner answers in order
            await once()
        # A sandbox that nobody closed would keep its groups, and each of the next ones would need its own.
        assert len(groups_of(spawner)) <= 2 * len(set(cgroup.find().values())) and own_descriptors() == before

    with_backend(use)


def test_folders_behind_closed_ones_are_visible_where_the_spec_names_them(folder):
    secret = folder / "closed" / "named"
    secret.mkdir(parents=True)
    (secret / "file").write_text("shown")
    (secret.parent / "other").write_text("not shown")
    (secret.parent).chmod(0o700)
    spec = SandboxSpec(read_only=(str(secret),))

    async def use(sandbox):
        return await sandbox.exec(["sh", "-c", f"cat {secret}/file; ls {secret.parent}; echo x > {secret}/new"])

    result = in_sandbox("bubblewrap", use, spec)
    assert result.stdout.split() == [b"shownnamed"] and b"Read-only" in result.stderr
    assert os.listdir(secret) == ["file"]


def test_a_link_to_a_folder_that_is_never_shown_is_not_shown_either(folder):
    (folder / "link").symlink_to("/")
    with pytest.raises(UserError, match="whole"):
        in_sandbox("bubblewrap", None, SandboxSpec(read_only=(str(folder / "link"),)))


SCRIPT = """
import asyncio, os, sys
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.sandbox import SandboxSpec
async def main():
    backend = BubblewrapBackend()
    async with await backend.open(SandboxSpec()) as sandbox:
        await sandbox.write("a/in", b"in")
        result = await sandbox.exec(["sh", "-c", "id -u; cat a/in; echo out > a/out; ls -a / | tr '\\\\n' ' '"])
        print(os.getuid(), result, await sandbox.read("a/out"))
        bomb = await sandbox.exec(["sh", "-c", "f() { f | f & }; f; sleep 60"], timeout=1.0)
        print(bomb.code != 0, (await sandbox.exec(["echo", "alive"])).stdout)
asyncio.run(main())
"""


def test_any_user_can_have_sandboxes():
    first, second = run_as_another_user(SCRIPT).splitlines()
    assert first.startswith("12345 " if os.geteuid() == 0 else str(os.getuid()))
    assert "stdout=b'65534\\nin" in first and first.endswith("b'out\\n'") and "code=0" in first
    assert second == "True b'alive\\n'"


def test_groups_of_version_two_are_made_below_the_nearest_group_that_has_the_controllers(tmp_path, monkeypatch):
    """Against a folder that looks like such a tree; the kernel fills new groups, so this does."""
    tree = tmp_path / "cgroup"
    own = tree / "user.slice" / "session"
    own.mkdir(parents=True)
    for folder in (tree, tree / "user.slice", own):
        (folder / "cgroup.procs").write_text("")
    make = Path.mkdir

    def kernel(path, *arguments, **options):
        new = not path.exists()
        make(path, *arguments, **options)
        if new and path.parent == tree / "user.slice":
            for name in ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs"):
                (path / name).write_text("max")
            (path / "memory.events").write_text("low 0\noom 4\noom_kill 3\n")

    def forget(path):
        shutil.rmtree(path)

    monkeypatch.setattr(Path, "mkdir", kernel)
    monkeypatch.setattr(Path, "rmdir", forget)
    texts = {
        "/proc/self/cgroup": ["0::/user.slice/session"],
        "/proc/self/mountinfo": [f"30 20 0:26 / {tree} rw,nosuid shared:4 - cgroup2 cgroup2 rw"],
    }
    monkeypatch.setattr(cgroup, "_lines", texts.__getitem__)
    trees = cgroup.find()
    assert trees == {name: cgroup.Tree(2, tree / "user.slice") for name in ("memory", "pids")}
    group = cgroup.ControlGroup(trees, "name", memory=1000, processes=7)
    folder = tree / "user.slice" / "k2jax-name"
    assert [(folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")] == ["1000", "0", "7"]
    assert group.memory_kills() == 3 and group.controllers == {"memory", "pids"}
    entrances = group.entrances()
    assert [os.readlink(f"/proc/self/fd/{entrance}") for entrance in entrances] == [str(folder / "cgroup.procs")]
    for entrance in entrances:
        os.close(entrance)
    assert group.remove() and not folder.exists()


FORKS_ONCE = """
import os
from k2jax.agents.sandbox import warden

def fork(calls=[], kernel=os.fork):
    calls.append(1)
    if len(calls) == 2:
        raise BlockingIOError("no more processes")
    return kernel()

os.fork = fork
warden.start_warden("folder")
print("the spawner goes on", flush=True)
"""


def test_a_warden_that_cannot_start_is_no_second_spawner():
    done = subprocess.run([sys.executable, "-c", FORKS_ONCE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the spawner goes on\n", "")


def test_check_says_what_holds_here_and_fails_where_the_backend_or_an_attack_does(monkeypatch):
    monkeypatch.setattr(checking, "ATTACKS", {name: ATTACKS[name] for name in ("signals", "mounts")})
    monkeypatch.setattr(checking, "COUNTED", ["timers"])
    lines = []
    assert checking.check(say=lines.append)
    text = "\n".join(lines)
    assert lines[0].startswith("bubblewrap: works;") and lines[-1] == "  3 of 3 attacks contained"
    assert lines[1].startswith("  program: /") and lines[1].endswith("/bwrap")
    assert "control group" in text if cgroup.find() else "address space" in text
    assert "seccomp: filter" in text and "namespaces of its own: user, pid, mnt, net, ipc, uts" in text
    assert "capabilities none - user 65534" in text
    lines.clear()
    assert checking.check("unsafe", say=lines.append) and "namespaces of its own: none" in "\n".join(lines)
    monkeypatch.setattr(checking, "ATTACKS", {"says no": Attack("", lambda result: False)})
    lines.clear()
    assert not checking.check(say=lines.append) and lines[-3].startswith("  says no: NOT CONTAINED")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/does/not/exist")
    lines.clear()
    assert not checking.check(say=lines.append)
    assert lines[0].startswith("bubblewrap: does not work: no bubblewrap")
