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
from tests.agents.sandbox.backends import ALL, NAMESPACES, SPEC, in_sandbox, python

every_backend = pytest.mark.parametrize("name", ALL, indirect=True)
every_isolated_backend = pytest.mark.parametrize("name", NAMESPACES, indirect=True)


def with_files(name, code, use, *arguments, spec=SPEC):
    """Runs Python code that prepares files inside, then ``use`` from outside; neither may take long."""

    async def run(sandbox):
        prepared = await sandbox.exec(python(code, *arguments))
        assert prepared.code == 0, prepared
        begun = time.monotonic()
        result = await use(sandbox)
        assert time.monotonic() - begun < 10
        assert (await sandbox.exec(["true"])).code == 0
        return result

    return in_sandbox(name, run, spec)


@every_backend
def test_no_symbolic_link_is_followed(name, witness):
    code = """
import os, sys
os.symlink(sys.argv[1] + '/secret.txt', 'file')
os.symlink(sys.argv[1], 'folder')
os.symlink('/proc/self/root' + sys.argv[1], 'round')
os.symlink('x', 'x')
"""

    async def use(sandbox):
        for path in ("file", "folder/secret.txt", "round/secret.txt", "x", "x/y"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
        for path in ("folder", "file", "x"):
            with pytest.raises(SandboxError):
                await sandbox.list(path)
        for path in ("folder/secret.txt", "folder/new.txt", "folder/deep/new.txt", "x/y"):
            with pytest.raises(SandboxError):
                await sandbox.write(path, b"overwritten")
        await sandbox.write("file", b"replaced")
        return await sandbox.read("file")

    assert with_files(name, code, use, str(witness.folder)) == b"replaced"


@every_isolated_backend
def test_no_hard_link_leads_out(name, witness):
    code = """
import os, sys
for source in ('/etc/passwd', '/usr/bin/env', sys.argv[1] + '/secret.txt', '/proc/self/exe', '/proc/self/environ'):
    try: os.link(source, 'link'); print('linked')
    except OSError: pass
open('own', 'w').write('own')
os.link('own', 'other')
"""

    async def use(sandbox):
        await sandbox.write("own", b"new")
        return await sandbox.read("own"), await sandbox.read("other"), await sandbox.list("/work")

    assert with_files(name, code, use, str(witness.folder)) == (b"new", b"own", ["other", "own"])


def test_writing_replaces_a_hard_link_and_never_writes_through_it(tmp_path, witness):
    """Without a file system of its own a sandbox could hold one to a file of the host."""
    box = tmp_path / "box"
    box.mkdir()
    os.link(witness.file, box / "link")
    root = os.open(box, os.O_RDONLY)
    write_file(root, "link", b"mine")
    assert (box / "link").read_bytes() == b"mine" and witness.file.read_text() == witness.SECRET
    os.close(root)
    witness._before = witness._state()  # the link changed its count


@every_isolated_backend
def test_swapping_a_folder_for_a_link_while_it_is_read_gains_nothing(name, witness):
    """A busy machine may take seconds to start the program, and may stop it between making its file and filling it."""
    code = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.mkdir('first'); open('first/secret.txt', 'w').write('own'); os.symlink(sys.argv[1], 'link')
os.rename('first', 'place')
while True:
    libc.renameat2(-100, b'place', -100, b'link', 2)  # exchanges them
"""

    async def use(sandbox):
        running = asyncio.create_task(sandbox.exec(python(code, str(witness.folder)), timeout=60.0))
        while not {"place", "link"} <= set(await sandbox.list("/work")):
            await asyncio.sleep(0.01)
        read = refused = 0
        while read < 100 or refused < 100:
            await asyncio.sleep(0)
            assert not running.done()
            try:
                data = await sandbox.read("place/secret.txt")
                await sandbox.write("place/secret.txt", b"own")
            except SandboxError:
                refused += 1
                continue
            read += 1
            assert data == b"own"
        running.cancel()

    in_sandbox(name, use)


@every_backend
def test_a_pipe_a_device_or_a_socket_is_refused_at_once(name):
    code = """
import os, socket
os.mkfifo('pipe')
socket.socket(socket.AF_UNIX).bind('socket')
"""

    async def use(sandbox):
        for path in ("pipe", "socket", "pipe/x"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
            with pytest.raises(SandboxError):
                await sandbox.list(path)
        await sandbox.write("pipe", b"a file now")
        return await sandbox.list("/work"), await sandbox.read("pipe")

    assert with_files(name, code, use) == (["pipe", "socket"], b"a file now")


@pytest.mark.parametrize("device", ["zero", "null", "full", "random", "tty", "ptmx"])
def test_a_device_is_not_even_opened(device):
    root = os.open("/dev", os.O_RDONLY)
    with pytest.raises(SandboxError, match="no regular file"):
        read_file(root, device, 10)
    os.close(root)


@every_backend
def test_of_a_terabyte_with_holes_only_the_limit_is_read(name):
    code = """
import os, resource
limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
os.truncate(os.open('big', os.O_CREAT | os.O_RDWR), 1 << 40 if limit < 0 else limit)
"""

    async def use(sandbox):
        return await sandbox.read("big", limit=1000), len(await sandbox.read("/work/big"))

    assert with_files(name, code, use) == (bytes(1000), 1 << 20)


def test_a_terabyte_with_holes_is_no_more_than_its_start(tmp_path):
    with (tmp_path / "big").open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    root = os.open(tmp_path, os.O_RDONLY)
    assert read_file(root, "big", 10) == bytes(10)
    os.close(root)


@every_backend
def test_a_folder_ten_thousand_deep_is_listed_and_written_and_deleted(name, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")  # a busy disk takes half a minute to delete so many folders
    code = """
import os
for _ in range(10_000):
    os.mkdir('d'); os.chdir('d')
open('end', 'w').write('reached')
"""
    path = "/work" + "/d" * 10_000
    spec = dataclasses.replace(SPEC, limits=Limits(files=30_000))

    async def use(sandbox):
        await sandbox.write(f"{path}/new", b"")
        with pytest.raises(SandboxError):
            await sandbox.read(f"{path}/d")
        return await sandbox.list("/work"), await sandbox.list(path), await sandbox.read(f"{path}/end")

    assert with_files(name, code, use, spec=spec) == (["d"], ["end", "new"], b"reached")


@every_backend
def test_names_may_be_anything_but_a_slash(name):
    code = r"""
for name in (b'two\nlines', b'\x1b[31m', b' ', b'-rf', b'\xff\xfe', b'\r', 'ü'.encode(), b'a' * 255):
    open(name, 'w').write(repr(name))
"""

    async def use(sandbox):
        names = await sandbox.list("/work")
        return names, [await sandbox.read(f"/work/{name}") for name in names]

    names, contents = with_files(name, code, use)
    expected = sorted(["two\nlines", "\x1b[31m", " ", "-rf", os.fsdecode(b"\xff\xfe"), "\r", "ü", "a" * 255])
    assert names == expected
    assert [eval(text) for text in contents] == [os.fsencode(name) for name in names]


@every_backend
def test_a_listing_is_the_first_names_only(name):
    code = "for n in range(2000): open(f'{n:05}', 'w').close()"

    async def use(sandbox):
        return await sandbox.list("/work", limit=3), len(await sandbox.list("/work"))

    assert with_files(name, code, use) == (["00000", "00001", "00002"], 1000)


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


@every_isolated_backend
def test_the_program_owns_what_is_written_from_outside(name):
    async def use(sandbox):
        await sandbox.write("a/b/file", b"x")
        await sandbox.write("/tmp/file", b"x")
        return await sandbox.exec(["sh", "-c", "echo y >> a/b/file && rm -r a && echo z > /tmp/file && umask && ls"])

    assert in_sandbox(name, use).stdout == b"0022\n"


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
