"""Traps in a sandbox's files for whoever reads, writes or lists them from outside."""

import asyncio
import contextlib
import dataclasses
import os
import tempfile
import time

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.agents.sandbox import Limits, SandboxError
from k2jax.agents.sandbox.files import list_folder, read_file, write_file
from tests.agents.sandbox.backends import ALL, NAMESPACES, SPEC, in_sandbox, python, sandboxed

every_backend = pytest.mark.parametrize("name", ALL, indirect=True)
every_isolated_backend = pytest.mark.parametrize("name", NAMESPACES, indirect=True)
NAMES = (b"two\nlines", b"\x1b[31m", b" ", b"-rf", b"\xff\xfe", b"\r", "ü".encode(), b"a" * 255)
TRAPS = f"""
import os, resource, socket, sys
os.symlink(sys.argv[1] + '/secret', 'file')
os.symlink(sys.argv[1], 'folder')
os.symlink('/proc/self/root' + sys.argv[1], 'round')
os.symlink('x', 'x')
os.mkfifo('pipe')
socket.socket(socket.AF_UNIX).bind('socket')
limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 1 << 40 if limit < 0 else limit)
for folder in ('many', 'names', 'deep'): os.mkdir(folder)
for n in range(2000): open(f'many/{{n:05}}', 'w').close()
for name in {NAMES}: open(b'names/' + name, 'w').write(repr(name))
os.chdir('deep')
for _ in range(10_000): os.mkdir('d'); os.chdir('d')
open('end', 'w').write('reached')
"""
UNREADABLE = ("file", "folder/secret", "round/secret", "x", "x/y", "pipe", "socket", "pipe/x", "deep" + "/d" * 10_001)


def with_files(name, code, use, *arguments, spec=SPEC):
    """Runs Python code that prepares files inside, then ``use`` from outside; neither may take long."""

    async def run(sandbox):
        prepared = await sandbox.exec(python(code, *arguments), timeout=30.0)
        assert prepared.code == 0, prepared
        begun = time.monotonic()
        result = await use(sandbox)
        assert time.monotonic() - begun < 10
        assert (await sandbox.exec(["true"])).code == 0
        return result

    return in_sandbox(name, run, spec)


@every_backend
def test_traps_for_whoever_reads_lists_or_writes_lead_nowhere_and_cost_nothing(name, witness, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")  # a busy disk takes half a minute to delete so many folders
    deep = "/work/deep" + "/d" * 10_000

    async def use(sandbox):
        for path in UNREADABLE:
            with pytest.raises(SandboxError):
                await sandbox.read(path)
        for path in ("folder", "file", "x", "pipe", "socket", "pipe/x"):
            with pytest.raises(SandboxError):
                await sandbox.list(path)
        for path in ("folder/secret", "folder/new.txt", "folder/deep/new.txt", "x/y"):
            with pytest.raises(SandboxError):
                await sandbox.write(path, b"overwritten")
        for path in ("file", "pipe", f"{deep}/new"):
            await sandbox.write(path, b"replaced")
            assert await sandbox.read(path) == b"replaced"
        assert await sandbox.read("sparse", limit=1000) == bytes(1000)
        assert len(await sandbox.read("/work/sparse")) == 1 << 20
        assert await sandbox.list("many", limit=3) == ["00000", "00001", "00002"]
        assert len(await sandbox.list("many")) == 1000
        names = await sandbox.list("names")
        assert names == sorted(map(os.fsdecode, NAMES))
        assert [eval(await sandbox.read(f"names/{each}")) for each in names] == list(map(os.fsencode, names))
        assert (await sandbox.list(deep), await sandbox.read(f"{deep}/end")) == (["end", "new"], b"reached")

    spec = dataclasses.replace(SPEC, limits=Limits(files=30_000))
    with_files(name, TRAPS, use, str(witness.file.parent), spec=spec)


@every_isolated_backend
def test_no_hard_link_leads_out(name, witness):
    code = """
import os, sys
for source in ('/etc/passwd', '/usr/bin/env', sys.argv[1] + '/secret', '/proc/self/exe', '/proc/self/environ'):
    try: os.link(source, 'link'); print('linked')
    except OSError: pass
open('own', 'w').write('own')
os.link('own', 'other')
"""

    async def use(sandbox):
        await sandbox.write("own", b"new")
        return await sandbox.read("own"), await sandbox.read("other"), await sandbox.list("/work")

    assert with_files(name, code, use, str(witness.file.parent)) == (b"new", b"own", ["other", "own"])


def test_writing_replaces_a_hard_link_and_never_writes_through_it(tmp_path, witness):
    """Without a file system of its own a sandbox could hold one to a file of the host."""
    box = tmp_path / "box"
    box.mkdir()
    os.link(witness.file, box / "link")
    root = os.open(box, os.O_RDONLY)
    write_file(root, "link", b"mine")
    assert (box / "link").read_bytes() == b"mine" and witness.file.read_text() == witness.secret
    os.close(root)
    witness._before = witness._state()  # the link changed its count


@every_isolated_backend
def test_swapping_a_folder_for_a_link_while_it_is_read_gains_nothing(name, witness):
    """A busy machine may take seconds to start the program, and may stop it between making its file and filling it."""
    code = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.mkdir('first'); open('first/secret', 'w').write('own'); os.symlink(sys.argv[1], 'link')
os.rename('first', 'place')
while True:
    libc.renameat2(-100, b'place', -100, b'link', 2)  # exchanges them
"""

    async def use(sandbox):
        running = asyncio.create_task(sandbox.exec(python(code, str(witness.file.parent)), timeout=60.0))
        while not {"place", "link"} <= set(await sandbox.list("/work")):
            await asyncio.sleep(0.01)
        read = refused = 0
        while read < 100 or refused < 100:
            await asyncio.sleep(0)
            assert not running.done()
            try:
                data = await sandbox.read("place/secret")
                await sandbox.write("place/secret", b"own")
            except SandboxError:
                refused += 1
                continue
            read += 1
            assert data == b"own"
        running.cancel()

    in_sandbox(name, use)


@pytest.mark.parametrize("device", ["zero", "null", "full", "random", "tty", "ptmx"])
def test_a_device_is_not_even_opened(device):
    root = os.open("/dev", os.O_RDONLY)
    with pytest.raises(SandboxError, match="no regular file"):
        read_file(root, device, 10)
    os.close(root)


@every_isolated_backend
def test_a_full_disk_refuses_a_file_from_outside_whole(name):
    code = """
try:
    with open('fill', 'wb', buffering=0) as f:
        while True: f.write(b'x' * 65536)
except OSError: pass
"""
    spec = dataclasses.replace(SPEC, limits=Limits(disk=1 << 20))

    async def use(sandbox):
        with pytest.raises(SandboxError, match="No space"):
            await sandbox.write("more", b"y" * (1 << 20))
        return await sandbox.list("/work")

    assert with_files(name, code, use, spec=spec) == ["fill"]


@sandboxed(NAMESPACES)
async def test_the_program_owns_what_is_written_from_outside(sandbox):
    await sandbox.write("a/b/file", b"x")
    await sandbox.write("/tmp/file", b"x")
    script = "echo y >> a/b/file && rm -r a && echo z > /tmp/file && umask && ls"
    assert (await sandbox.exec(["sh", "-c", script])).stdout == b"0022\n"


PATHS = st.lists(st.sampled_from(["a", "b", "link", "loop", "up", "..", ".", "", "secret.txt"]), max_size=6)


@given(PATHS)
def test_no_path_leaves_the_folder(names):
    """Whatever a path is made of, what is read, listed or written lies below the folder."""
    with tempfile.TemporaryDirectory() as top:
        os.makedirs(f"{top}/box/a/b")
        with open(f"{top}/secret.txt", "w") as file:
            file.write("secret")
        for place in ("box", "box/a", "box/a/b"):
            os.symlink(top, f"{top}/{place}/link")
            os.symlink("loop", f"{top}/{place}/loop")
            os.symlink("..", f"{top}/{place}/up")
        root = os.open(f"{top}/box", os.O_RDONLY)
        try:
            path = "/".join(names)
            for call in (lambda: read_file(root, path, 100), lambda: list_folder(root, path, 100)):
                try:
                    found = call()
                except SandboxError:
                    continue
                assert found != b"secret" and "box" not in found
            with contextlib.suppress(SandboxError):
                write_file(root, path, b"written")
            with open(f"{top}/secret.txt") as file:
                assert file.read() == "secret"
            assert sorted(os.listdir(top)) == ["box", "secret.txt"]
        finally:
            os.close(root)
