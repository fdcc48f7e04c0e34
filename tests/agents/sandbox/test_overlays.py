"""Images that programs write to: what lasts, what nobody else sees, and what no program can put in the way."""

import asyncio
import os
from pathlib import Path
import shutil
import socket
import tempfile

import pytest

from k2jax.agents.sandbox import Limits, MountedPath, SandboxSpec
from k2jax.agents.sandbox.mount_namespace import NOBODY
from k2jax.agents.sandbox.types import SandboxError
from k2jax.errors import UserError
from tests.agents.sandbox.backends import new_backend
from tests.agents.sandbox.made_images import PASSWD, copy_with_libraries, give
from tests.agents.sandbox.other_user import run_as_another_user
from tests.agents.sandbox.test_images import LOCAL, ran

PROGRAMS = (
    "sh",
    "cat",
    "ls",
    "rm",
    "mv",
    "chmod",
    "ln",
    "mkdir",
    "rmdir",
    "id",
    "head",
    "chown",
    "stat",
    "mkfifo",
    "timeout",
)
SYSTEM = SandboxSpec(image="system")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of the image ``system``, whose files belong to the user of sandboxes, as ``image pull`` makes them."""
    folder = tmp_path_factory.mktemp("images")
    system = folder / "system"
    for place in ("usr/bin", "etc", "opt/old/deep", "root", "home/app"):
        (system / place).mkdir(parents=True)
    (system / "opt/word").write_text("of the image")
    (system / "opt/old/deep/word").write_text("deep")
    (system / "etc/passwd").write_text(PASSWD)
    (system / "link").symlink_to("/opt")
    for program in PROGRAMS:
        copy_with_libraries(Path(shutil.which(program)), f"/usr/bin/{program}", system)
    (system / "bin").symlink_to("usr/bin")
    give(system, NOBODY)
    return folder


def on_image(name, images, use, spec=SYSTEM):
    """Opens a sandbox on an image and gives it to a coroutine function."""

    async def run():
        backend = new_backend(name, str(images))
        try:
            async with await backend.open(spec) as sandbox:
                return await use(sandbox)
        finally:
            backend.close()

    return asyncio.run(run())


async def said(sandbox, script, **options):
    """What a script prints, which must end well."""
    result = await sandbox.exec(["sh", "-c", script], **options)
    assert result.code == 0, result
    return result.stdout.decode()


@LOCAL
def test_what_is_written_lasts_for_the_sandbox_and_changes_no_image(name, images):
    async def use(sandbox):
        await said(sandbox, "echo new > /opt/new; echo more >> /opt/word; rm -r /opt/old; mkdir /opt/old /srv")
        assert await said(sandbox, "ls /opt; ls /opt/old; cat /opt/word") == "new\nold\nword\nof the imagemore\n"
        async with await sandbox._backend.open(SYSTEM) as other:
            assert await said(other, "ls /opt; cat /opt/word /opt/old/deep/word") == "old\nword\nof the imagedeep"

    on_image(name, images, use)
    assert (images / "system/opt/old/deep/word").read_text() == "deep" and not (images / "system/srv").exists()


@LOCAL
def test_a_snapshot_has_what_was_written_changed_and_deleted(name, images):
    async def use(sandbox):
        await said(
            sandbox,
            "echo more >> /opt/word; rm -r /opt/old /etc/passwd; mkdir /opt/old; echo x > /work/a; ln -s a /work/b",
        )
        async with await sandbox.fork() as other, await other.fork() as third:
            await said(sandbox, "echo late > /opt/word")
            for each in (other, third):
                assert await said(each, "ls /opt /opt/old /etc /work; cat /opt/word /work/b") == (
                    "/etc:\n\n/opt:\nold\nword\n\n/opt/old:\n\n/work:\na\nb\nof the imagemore\nx\n"
                )
            await said(third, "echo y > /opt/old/y")

    on_image(name, images, use)


@LOCAL
def test_programs_run_as_the_images_user_in_its_folder_and_as_whom_a_spec_names(name, images):
    spec = {"user": "app", "workdir": "/srv/new/app"}
    script = "id -u; id -g; echo $HOME; pwd; stat -c %u /opt/word; echo x > y; stat -c %u y; chown root /opt/word 2>&1"
    with_root = ran(name, images, script.replace("; chown root /opt/word 2>&1", ""), SYSTEM).stdout.decode()
    assert with_root == "0\n0\n/root\n/work\n0\n0\n"
    result = ran(name, images, script, SandboxSpec(image="system", **spec)).stdout.decode()
    assert result.startswith("1000\n1000\n/home/app\n/srv/new/app\n1000\n1000\n") and "chown" in result
    assert ran(name, images, "id -u; echo $HOME", SandboxSpec(image="system", user="7:8")).stdout == b"7\n/\n"
    for user, reason in {"nobody": "no user 'nobody' in /etc/passwd", "9999999999": "no user: numbers"}.items():
        with pytest.raises(UserError, match=reason):
            ran(name, images, ":", SandboxSpec(image="system", user=user))
    with pytest.raises(UserError, match="'root' needs an image"):
        ran(name, images, ":", SandboxSpec(user="root"))


@LOCAL
def test_files_of_an_image_are_read_and_written_from_outside_without_its_links(name, images):
    async def use(sandbox):
        await sandbox.write("/opt/made/here", b"outside")
        await sandbox.write("relative", b"beside")
        assert await said(sandbox, "cat /opt/made/here /opt/relative; stat -c %u /opt/made") == "outsidebeside0\n"
        assert await sandbox.read("/opt/word") == b"of the image"
        assert await sandbox.list("/opt") == ["made", "old", "relative", "word"]
        await said(sandbox, "ln -s /etc /opt/out; rm /opt/word; ln -s /etc/passwd /opt/word; mkfifo /opt/pipe")
        for path in ("/link/word", "/opt/out/passwd", "/opt/word", "/opt/pipe", "/../etc/passwd"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)

    on_image(name, images, use, SandboxSpec(image="system", workdir="/opt"))


IN_THE_WAY = """
for folder in $1 /work /tmp /proc /dev; do
  mv $folder /other; rmdir $folder; rm -rf $folder; ln -sfT /oldroot/etc $folder
done 2>/dev/null
ls -d /other 2>/dev/null
mkdir /more; mv /more /k2jax/tools/more 2>/dev/null
echo x > /k2jax/tools/made 2>/dev/null
"""


@LOCAL
@pytest.mark.parametrize("place", ["/k2jax/tools", "/opt/deep/tools", "/opt/word"])
def test_nothing_is_put_in_the_way_of_what_a_sandbox_shows(name, images, place, tmp_path):
    """The next command would otherwise be shown what this one chose, or a folder of the host."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/word").write_text("of the host")
    source = tmp_path / "tools"
    if place == "/opt/word":
        source /= "word"
    os.chmod(tmp_path, 0o755)
    second = f"{os.path.dirname(place)}/second"
    shown = (MountedPath(str(source), place), MountedPath(str(tmp_path / "tools"), second))
    pinned = "/k2jax" if place.startswith("/k2jax") else "/opt"
    file = place if source.is_file() else f"{place}/word"

    async def use(sandbox):
        result = await sandbox.exec(["sh", "-c", IN_THE_WAY, "sh", pinned])
        assert result.stdout == b"", result
        assert await said(sandbox, f"cat {file} {second}/word; ls -d /work /tmp /proc/self/fd /dev/null") == (
            "of the hostof the host/dev/null\n/proc/self/fd\n/tmp\n/work\n"
        )
        assert (await sandbox.exec(["sh", "-c", f"echo x > {file}"])).code
        await said(sandbox, "echo x > /opt/beside")

    on_image(name, images, use, SandboxSpec(image="system", read_only=shown))
    assert not (images / "system/k2jax").exists() and os.listdir(tmp_path / "tools") == ["word"]


@LOCAL
def test_what_is_written_to_an_image_counts_as_disk_and_as_files(name, images):
    limits = Limits(disk=1 << 20, files=100)

    async def use(sandbox):
        result = await sandbox.exec(["sh", "-c", "for i in 1 2; do head -c 900000 /dev/zero > /opt/large$i; done"])
        assert b"No space" in result.stderr
        await said(sandbox, "rm /opt/large*")
        result = await sandbox.exec(
            ["sh", "-c", "i=0; while echo x > /opt/$i; do i=$((i+1)); done 2>/dev/null; echo $i"]
        )
        assert 60 <= int(result.stdout) <= 140

    on_image(name, images, use, SandboxSpec(image="system", limits=limits))


@LOCAL
def test_pipes_and_sockets_of_an_image_reach_nobody_else(name, images, tmp_path):
    """Each sandbox has a pipe of its own, and a socket of the host has no listener inside."""
    shutil.copytree(images / "system", tmp_path / "images/system", symlinks=True)
    system = tmp_path / "images/system"
    os.mkfifo(system / "opt/pipe")
    os.chmod(system / "opt/pipe", 0o666)
    reader = os.open(system / "opt/pipe", os.O_RDONLY | os.O_NONBLOCK)
    here = os.open(system / "opt", os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/socket")
            os.chmod(system / "opt/socket", 0o777)
            server.listen()
            server.settimeout(0.5)

            async def use(sandbox):
                await sandbox.exec(["timeout", "0.5", "sh", "-c", "echo secret > /opt/pipe"])
                return await said(sandbox, "ls /opt")

            assert on_image(name, tmp_path / "images", use) == "old\npipe\nsocket\nword\n"
            assert os.read(reader, 10) == b""
    finally:
        os.close(reader)
        os.close(here)


@LOCAL
def test_nothing_is_shown_behind_a_link_nor_in_a_folder_of_the_kernel(name, images, tmp_path):
    """A program could put something else in the place of the link, for the next command."""
    (tmp_path / "x").write_text("x")
    for place in ("/link", "/link/deep/x"):
        with pytest.raises(UserError, match=f"{place} is behind a link of the image"):
            ran(name, images, ":", SandboxSpec(image="system", read_only=(MountedPath(str(tmp_path / "x"), place),)))
    for workdir in ("relative", "/proc/1", "/dev/x", "/a\0b", "/\udc80", "/" + "x" * 5000):
        with pytest.raises(UserError, match="is no absolute path of an image's own"):
            ran(name, images, ":", SandboxSpec(image="system", workdir=workdir))


@LOCAL
def test_the_folder_of_commands_may_lie_in_the_sandboxs_own(name, images):
    for workdir in ("/work/a/b", "/tmp/a", "/link/made", "/srv/../srv/x"):
        result = ran(name, images, "echo x > file && cat file", SandboxSpec(image="system", workdir=workdir))
        assert result.stdout == b"x\n", (workdir, result)


@LOCAL
@pytest.mark.skipif(os.geteuid() != 0, reason="another user has no rights to lose")
def test_files_are_read_from_outside_with_the_rights_of_the_sandboxs_user(name, images, tmp_path):
    """A model names the path, and what is shown may hold files that only this user reads."""
    os.chmod(tmp_path, 0o755)
    (tmp_path / "shown/closed").mkdir(parents=True)
    (tmp_path / "shown/secret").write_text("secret")
    (tmp_path / "shown/closed").chmod(0o700)
    (tmp_path / "shown/secret").chmod(0o600)
    (tmp_path / "shown/open").write_text("open")

    async def use(sandbox):
        assert await sandbox.read("/k2jax/shown/open") == b"open"
        for function, path in ((sandbox.read, "secret"), (sandbox.list, "closed")):
            with pytest.raises(SandboxError, match="Permission denied"):
                await function(f"/k2jax/shown/{path}")
        for path in ("/proc/x", "/dev/x", "//proc/x"):
            with pytest.raises(SandboxError, match="is the kernel's"):
                await sandbox.write(path, b"")

    shown = (MountedPath(str(tmp_path / "shown"), "/k2jax/shown"),)
    on_image(name, images, use, SandboxSpec(image="system", read_only=shown))


@LOCAL
def test_a_snapshot_has_files_that_are_closed_to_their_owner(name, images):
    async def use(sandbox):
        await said(sandbox, "mkdir /opt/closed; echo x > /opt/closed/x; echo y > /opt/y; chmod 000 /opt/closed /opt/y")
        async with await sandbox.fork() as other:
            await said(other, "chmod 700 /opt/closed /opt/y")
            assert await said(other, "cat /opt/closed/x /opt/y") == "x\ny\n"

    on_image(name, images, use)


AS_ANOTHER_USER = """
import asyncio, sys
from k2jax.agents.sandbox import MountedPath, SandboxSpec
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.sandbox.nsjail import NsjailBackend
async def main():
    backend = {"bubblewrap": BubblewrapBackend, "nsjail": NsjailBackend}[sys.argv[1]](images=sys.argv[2])
    spec = SandboxSpec(image="system", read_only=(MountedPath(sys.argv[2] + "/shown", "/k2jax/shown"),))
    async with await backend.open(spec) as sandbox:
        script = "echo new > /opt/new; rm -r /opt/old; mv /k2jax /opt/a; mv /work /opt/b; ln -sf /etc /k2jax"
        await sandbox.exec(["sh", "-c", script])
        async with await sandbox.fork() as other:
            print((await other.exec(["sh", "-c", "ls /opt; id -u; cat /k2jax/shown/word; ls -d /work"])).stdout)
asyncio.run(main())
"""


@LOCAL
def test_another_user_than_root_has_the_same(name, images):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # which that user can reach
        os.chmod(folder, 0o755)
        shutil.copytree(images, f"{folder}/images", symlinks=True)
        os.makedirs(f"{folder}/images/shown")
        with open(f"{folder}/images/shown/word", "w") as file:
            file.write("of the host")
        give(f"{folder}/images", 12345)
        printed = run_as_another_user(AS_ANOTHER_USER, name.partition(" ")[0], f"{folder}/images")
    assert printed.strip() == r"b'new\nword\n0\nof the host/work\n'", printed
