"""Which paths of the host a sandbox shows, and at which places."""

import asyncio
import os

import pytest

from k2jax.agents.sandbox import MountedPath, SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.sandbox.mounts import mounts
from k2jax.errors import UserError
from tests.agents.sandbox.backends import NAMESPACES, in_sandbox


@pytest.mark.parametrize(
    "path",
    ["/", "/home", "/root/", "/tmp", "//etc", "relative", "/does/not/exist", "/dev/shm", "/proc/self", "/usr/.."],
)
def test_folders_with_the_hosts_data_are_never_shown_whole(path):
    for shown in (path, MountedPath(path, "/shown")):
        with pytest.raises(UserError, match=r"whole|its own devices|must name absolute"):
            in_sandbox("bubblewrap", None, SandboxSpec(read_only=(shown,)))


def test_what_is_mounted_is_what_was_checked_whatever_links_lead_to_it(tmp_path):
    (tmp_path / "link").symlink_to("/usr/bin")
    (tmp_path / "lib").symlink_to("/home")
    (tmp_path / "processes").symlink_to("/proc/self")
    assert mounts((MountedPath(f"{tmp_path}/link/../lib", "/s"),)) == {"/s": os.path.realpath("/usr/lib")}
    for name, reason in (("lib", "whole"), ("processes", "its own devices")):
        with pytest.raises(UserError, match=reason):
            mounts((MountedPath(f"{tmp_path}/{name}", "/s"),))


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        *((place, "has its own") for place in ("/", "/tmp", "//etc", "/dev/shm", "/tmp/x", "/work", "/usr/../work/x")),
        *((place, "in a folder of programs") for place in ("/usr/none", "/bin", "/etc/none", "/lib/x")),
        ("relative", "at an absolute path"),
        ("/s\0--bind\0/root\0/shown", "at an absolute path"),
    ],
)
def test_nothing_is_shown_in_the_place_of_what_a_sandbox_has_itself(place, reason):
    with pytest.raises(UserError, match=reason):
        in_sandbox("bubblewrap", None, SandboxSpec(read_only=(MountedPath("/usr/share", place),)))


@pytest.mark.parametrize("name", NAMESPACES)
def test_what_lies_in_the_hosts_tmp_can_be_shown_at_another_place(name, tmp_path):
    """As an environment of Python may lie there, where a sandbox has its own files."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("shown")
    (tmp_path / "other").write_text("not shown")
    paths = (MountedPath(str(tmp_path / "data"), "/data/0"), MountedPath(str(tmp_path / "data" / "file"), "/data/1"))

    async def use(sandbox):
        script = f"cat /data/0/file /data/1; ls -A /data /tmp {tmp_path}; echo x > /data/0/new; echo x > /data/1"
        return await sandbox.exec(["sh", "-c", script])

    result = in_sandbox(name, use, SandboxSpec(read_only=paths))
    assert result.stdout.decode().split() == ["shownshown/data:", "0", "1", "/tmp:"]
    assert result.stderr.count(b"Read-only") == 2
    assert os.listdir(tmp_path / "data") == ["file"] and (tmp_path / "data" / "file").read_text() == "shown"


def test_paths_that_hide_one_another_are_refused():
    bin_, more = MountedPath("/usr/bin", "/shown"), MountedPath("/usr/lib", "/shown/more")
    with pytest.raises(UserError, match="/usr/bin and /usr/lib cannot both be shown at /shown"):
        mounts((bin_, MountedPath("/usr/lib", "/shown/")))
    for paths in ((bin_, more), (more, bin_)):
        with pytest.raises(UserError, match="/usr/lib cannot be shown at /shown/more, in what /usr/bin is shown at"):
            mounts(paths)


def test_a_file_may_be_shown_in_the_place_of_one_that_is_shown(tmp_path):
    for name in ("shown/deep/file", "shown/other", "copy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "shown/link").symlink_to("other")
    copy = str(tmp_path / "copy")
    paths = (MountedPath(copy, "/shown/deep/file"), MountedPath(str(tmp_path / "shown"), "/shown"))

    async def use(sandbox):
        return await sandbox.exec(["sh", "-c", "cat /shown/deep/file /shown/other; echo x > /shown/deep/file"])

    result = in_sandbox("bubblewrap", use, SandboxSpec(read_only=paths))
    assert result.stdout == b"copyshown/other" and b"Read-only" in result.stderr
    assert mounts((MountedPath(copy, "/usr/bin/env"), "/usr/bin"))["/usr/bin/env"] == copy
    for source, inside in ((copy, "none"), (copy, "deep"), (copy, "link"), (str(tmp_path / "shown/deep"), "deep/file")):
        with pytest.raises(UserError, match=f"cannot be shown at /shown/{inside}, in what"):
            mounts((MountedPath(source, f"/shown/{inside}"), paths[1]))


def test_of_paths_in_one_another_the_outer_one_is_mounted_first():
    assert list(mounts(("/usr/share/doc", "/usr/share"))) == ["/usr/share", "/usr/share/doc"]


def test_without_a_sandbox_files_have_their_own_places_alone():
    with pytest.raises(UserError, match="their own places alone"):
        asyncio.run(make_backend("unsafe").open(SandboxSpec(read_only=(MountedPath("/usr/bin", "/shown"),))))
