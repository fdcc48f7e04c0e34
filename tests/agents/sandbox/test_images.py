"""Images: which a spec may name, and that an image shows its own files and none of the host's."""

import asyncio
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile

import pytest

from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.sandbox.images import image_folder, image_name
from k2jax.agents.sandbox.types import SandboxError
from k2jax.errors import UserError
from tests.agents.sandbox.backends import KINDS, new_backend
from tests.agents.sandbox.made_images import copy_with_libraries
from tests.agents.sandbox.other_user import run_as_another_user

DIGEST = "0123456789abcdef" * 4
LOCAL = pytest.mark.parametrize("name", KINDS)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / "template"
    for name in ("usr", "etc", "opt", "root", "home/user"):
        (folder / name).mkdir(parents=True)
    (folder / "opt/word").write_text("of the image")
    (folder / "root/word").write_text("of its root")
    (folder / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    for program in ("/bin/sh", "/bin/cat", "/bin/ls"):
        copy_with_libraries(Path(program).resolve(), program, folder)
    return folder


@pytest.fixture
def images(template, tmp_path):
    """A folder of one image ``system``, beside a folder with a secret."""
    shutil.copytree(template, tmp_path / "images/system", symlinks=True)
    (tmp_path / "private/usr").mkdir(parents=True)
    (tmp_path / "private/secret").write_text("secret")
    return tmp_path / "images"


def ran(name, images, script, spec):
    """What a script does in an image."""

    async def run():
        backend = new_backend(name, str(images))
        try:
            async with await backend.open(spec) as sandbox:
                return await sandbox.exec(["/bin/sh", "-c", script])
        finally:
            backend.close()

    return asyncio.run(run())


@LOCAL
def test_an_image_takes_the_place_of_the_hosts_programs(name, images):
    script = "/bin/cat /opt/word /root/word; /bin/ls /usr /home; echo x > /opt/new"
    for image in ("system", "system///", "./system", "x/../system", str(images / "system"), f"sha256:{DIGEST}"):
        if image.startswith("sha256"):
            (images / "sha256").mkdir()
            (images / "system").rename(images / "sha256" / DIGEST)
        elif image.startswith("x"):
            (images / "x").mkdir()
        result = ran(name, images, script, SandboxSpec(image=image))
        assert result.stdout == b"of the imageof its root/home:\nuser\n\n/usr:\n", (image, result)
        assert b"Permission denied" in result.stderr  # whoever copied the image has kept its files to themselves


NAMES = ("/", "..", ".", "", "system/..", "../private", "sys\0tem", "system\0", "none", "file", "out", "root", "pipe",
         "/proc/self/root", "/proc/1/root", "/etc", "/usr", "sha256:x", f"sha256:{DIGEST}", f"sha256:../{DIGEST[3:]}",
         "system/opt", "\ud800", "x" * 5000, "docker.io/library/debian", "loop", "/dev/fd/{descriptor}")  # fmt: skip


def test_no_other_folder_of_the_host_is_an_image(images, tmp_path):
    (images / "file").write_text("x")
    (images / "out").symlink_to(tmp_path / "private")
    (images / "root").symlink_to("/")
    (images / "loop").symlink_to("loop")
    os.mkfifo(images / "pipe")
    descriptor = os.open("/", os.O_RDONLY)
    try:
        for image in NAMES:
            with pytest.raises(UserError, match=r"image (is|must be|'.*' is no folder of an unpacked)"):
                image_folder(image.format(descriptor=descriptor), str(images))
        with pytest.raises(UserError, match="no folder of images is chosen; choose with --images"):
            image_folder("/", "")
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("name", ["bubblewrap", "nsjail", "kubernetes"])
def test_without_a_folder_every_image_is_refused(name):
    made = make_backend(name)
    for image in ("/", "/usr", "debian"):
        with pytest.raises(UserError, match=r"is refused, because no .* is chosen"):
            asyncio.run(made.open(SandboxSpec(image=image)))


@pytest.mark.parametrize("folder", ["/", "/home", "/tmp", "/var/", "/proc/self/root", "/dev/shm", "/usr/..", "link"])
def test_the_folder_of_images_is_none_of_the_hosts_own(folder, tmp_path):
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(UserError, match="is no folder of images"):
        image_folder("usr", folder if folder.startswith("/") else str(tmp_path / folder))


@LOCAL
def test_links_of_an_image_lead_to_what_is_inside(name, images, tmp_path):
    system, private = images / "system", tmp_path / "private"
    shutil.rmtree(system / "etc")
    shutil.rmtree(system / "home")
    links = {"etc": private, "home": private, "all": "/", "up": "../../..", "tmp": private, "work": private,
             "dev": "/dev", "proc": "/proc/1", "sys": private, "run": private}  # fmt: skip
    for link, target in links.items():
        (system / link).symlink_to(target)
    (system / "opt/secret").symlink_to(private / "secret")
    script = f"/bin/cat /etc/secret /home/secret /opt/secret {private}/secret; /bin/ls -A /all/opt /work /tmp /etc/"
    result = ran(name, images, script, SandboxSpec(image="system"))
    assert result.stdout == b"/all/opt:\nsecret\nword\n\n/tmp:\n\n/work:\n", result
    assert result.stderr.count(b"No such file") == 5 and list(private.iterdir()) != []


@LOCAL
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices")
def test_devices_in_an_image_cannot_be_used_and_no_program_of_it_has_rights(name, images):
    try:
        os.mknod(images / "system/opt/zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this machine lets root make no devices")
    os.chmod(images / "system/opt/zero", 0o666)
    result = ran(name, images, "/bin/cat /opt/zero", SandboxSpec(image="system"))
    assert not result.stdout and b"Permission denied" in result.stderr


def test_an_image_that_loses_its_folder_fails_and_shows_nothing(images, tmp_path):
    """A link put in the place of an image between the look at it and its use can show what this user can read: the
    folder of images must not be writable for others. One that is gone is a failure."""

    async def run():
        backend = new_backend("bubblewrap", str(images))
        connect = backend._connect

        def late():
            shutil.rmtree(images / "system")
            return connect()

        backend._connect = late
        try:
            with pytest.raises(SandboxError):
                await backend.open(SandboxSpec(image="system"))
        finally:
            backend.close()

    asyncio.run(run())


def test_names_in_registries_begin_as_the_user_says():
    for image in ("registry.test/mine/a:1", f"registry.test/mine/a@sha256:{DIGEST}", "registry.test/mine"):
        assert image_name(image, "registry.test/mine") == image
    assert image_name("registry.test/mine/a", "registry.test/mine/")
    for image in (
        "registry.test/minetoo/a",
        "registry.test/a",
        "a",
        "",
        "registry.test/mine/../b",
        "/",
        "registry.test",
    ):
        with pytest.raises(UserError, match="names must begin with registry"):
            image_name(image, "registry.test/mine")
    for image in ("registry.test/mine/a b", "registry.test/mine/\n", "registry.test/mine/\0"):
        with pytest.raises(UserError, match="is refused"):
            image_name(image, "registry.test/mine/")


AS_ANOTHER_USER = """
import asyncio, sys
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.sandbox.nsjail import NsjailBackend
async def main():
    backends = {"bubblewrap": BubblewrapBackend, "nsjail": NsjailBackend}
    backend = backends[sys.argv[1]](images=sys.argv[2])
    async with await backend.open(SandboxSpec(image="system")) as sandbox:
        print((await sandbox.exec(["/bin/sh", "-c", "/bin/cat /opt/word; echo x > /opt/new; /bin/ls /"])))
asyncio.run(main())
"""


@LOCAL
def test_another_user_than_root_has_images_too(name, images):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # which that user can reach
        os.chmod(folder, 0o755)
        shutil.copytree(images, f"{folder}/images")
        printed = run_as_another_user(AS_ANOTHER_USER, name, f"{folder}/images")
    assert "code=0, stdout=b'of the image" in printed and "/opt/new: Permission denied" in printed


MOUNTED = """
import subprocess, sys
from tests.agents.sandbox.test_images import ran
from k2jax.agents.sandbox import SandboxSpec
place = sys.argv[2] + "/system/opt"
subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
open(place + "/secret", "w").write("mounted")
print(ran(sys.argv[1], sys.argv[2], "/bin/ls -A /opt; /bin/cat /opt/word", SandboxSpec(image="system")).stdout)
"""


@LOCAL
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_is_mounted_in_an_image_is_not_shown(name, images):
    command = ["unshare", "-m", sys.executable, "-c", MOUNTED, name, str(images)]
    run = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60)
    if "unshare failed" in run.stderr:
        pytest.skip("this machine lets root mount nothing")
    assert run.stdout == "b'word\\nof the image'\n", run.stderr
