"""Git repositories of data: nothing that they say is run, nothing outside the chosen folder is read, nothing waits."""

import asyncio
from itertools import product
import os
import shutil
import subprocess
import time

import pytest

from k2jax.agents.environments import git_history, git_objects
from k2jax.agents.environments.git_history import Packs, packed_history
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.errors import UserError
from tests.agents.hostile_git import COMMANDS, LEAKS, git, loose_object, make_repository, plant

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("git") / "template"
    return folder, make_repository(folder)


@pytest.fixture
def repository(template, tmp_path):
    """A copy of the harmless repository in a folder of data, and its commits."""
    folder, commits = template
    shutil.copytree(folder, tmp_path / "data/repository")
    return tmp_path / "data/repository", commits


def history(repository, base, folder=None):
    """The pack of a repository's history, without what is kept."""
    return Packs().find(str(repository), base, str(folder or repository.parent)).after(b"")


def commits_of(pack, folder):
    """Ids of the commits that a pack holds."""
    subprocess.run(["git", "init", "-q", "--bare", folder], check=True)
    git(folder, "index-pack", "--stdin", stdin=bytes(pack))
    listed = git(folder, "cat-file", "--batch-check=%(objecttype) %(objectname)", "--batch-all-objects").splitlines()
    return {line.split()[1] for line in listed if line.startswith("commit ")}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_repository_has_a_command_run(name, repository, tmp_path):
    folder, commits = repository
    marker, script = tmp_path / "marker", tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {marker}\nexit 1\n")
    script.chmod(0o755)
    COMMANDS[name](folder, str(script))
    whole = subprocess.run(["git", "rev-list", "--objects", "--missing=print", commits[1]], cwd=folder, text=True,
                           capture_output=True, env={"PATH": os.environ["PATH"], "GIT_NO_LAZY_FETCH": "1"})  # fmt: skip
    marker.unlink(missing_ok=True)  # by the line above, in versions of git that fetch anyway
    if "\n?" in whole.stdout or whole.returncode:
        with pytest.raises(UserError, match="cannot read the commit"):
            history(folder, commits[1])
    else:
        assert commits_of(history(folder, commits[1]), tmp_path / "bare") == set(commits)
    assert not marker.exists()


def test_a_partial_clone_is_named_as_such(repository):
    COMMANDS["a pack of promises"](repository[0], "false")
    with pytest.raises(UserError, match="it is a partial clone: clone it without --filter"):
        history(*repository[:1], repository[1][1])


@pytest.mark.parametrize("name", LEAKS)
def test_no_history_is_read_from_outside_the_chosen_folder(name, template, repository, tmp_path):
    private = tmp_path / "private"
    shutil.copytree(template[0], private)
    (private / "file.txt").write_text("secret")
    git(private, "commit", "-q", "-am", "secret")
    secret = git(private, "rev-parse", "HEAD")
    LEAKS[name](repository[0], private)
    with pytest.raises(UserError, match=r"leads out of|does not exist below|is no git repository"):
        history(repository[0], secret)
    if name != "a repository around the folder":
        assert history(repository[0], secret, tmp_path)  # where all of it is in the folder, it may


@pytest.mark.parametrize(
    "path", ["..", ".", "", "/", "../private", "repository/../../private", "x\0y", "repository/.."]
)
def test_a_repository_is_below_the_folder(path, template, repository, tmp_path):
    shutil.copytree(template[0], tmp_path / "private")
    with pytest.raises(UserError, match=r"repository (is|must be)"):
        Packs().find(path, template[1][0], str(tmp_path / "data"))


@pytest.mark.parametrize("base", ["--all", "main", "HEAD", "", "abc", "{0}\n--all", "{1}\n--not\n{0}", "{0} ", "^{0}",
                                  "{0}..{1}", "{0}^@", "{0}\n", "--stdin", "-h", "{0}\0"])  # fmt: skip
def test_a_base_is_one_full_id(base, repository):
    folder, commits = repository
    with pytest.raises(UserError, match="a base commit must be a full id of 40"):
        history(folder, base.format(*commits))
    with pytest.raises(UserError, match="SHA-256 are not supported"):
        history(folder, "0" * 64)


def test_what_is_no_commit_is_refused(repository):
    folder, _ = repository
    for name in ("HEAD:file.txt", "HEAD^{tree}"):
        with pytest.raises(UserError, match="cannot read the commit"):
            history(folder, git(folder, "rev-parse", name))
    with pytest.raises(UserError, match="cannot read the commit"):
        history(folder, "0" * 40)


WHAT = ("pipe", "socket", "terminal", "folder")
HONEST = (("folder", "objects"), ("folder", "objects/pack"))
PLACES = ("objects/info/alternates", "shallow", "commondir", "objects/pack/x.idx", "objects/pack", "objects", "LOOSE")


@pytest.mark.parametrize(("what", "place"), [each for each in product(WHAT, PLACES) if each not in HONEST])
def test_nothing_but_regular_files_is_opened(what, place, repository):
    folder, commits = repository
    place = f"objects/{commits[0][:2]}/{commits[0][2:]}" if place == "LOOSE" else place
    plant(folder / ".git" / place, what)
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"is no regular file|is no folder|leads out|cannot read"):
        history(folder, commits[1])
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("what", ["pipe", "socket", "terminal"])
def test_what_git_would_open_and_this_does_not_may_be_anything(what, repository, tmp_path):
    folder, commits = repository
    for place in ("config", "HEAD", "index", "packed-refs", "info/attributes", "info/grafts", "objects/info/packs"):
        plant(folder / ".git" / place, what)
    for place in ("objects/info/commit-graph", "objects/pack/multi-pack-index", "refs/heads/main"):
        plant(folder / ".git" / place, what)
    assert commits_of(history(folder, commits[1]), tmp_path / "bare") == set(commits)
    shutil.rmtree(folder / ".git")
    plant(folder / ".git", what)
    with pytest.raises(UserError, match=r"is no regular file|leads out"):
        history(folder, commits[1])


def test_replacements_grafts_and_damaged_helpers_change_nothing(repository, tmp_path):
    folder, commits = repository
    git(folder, "checkout", "-q", "--orphan", "other")
    git(folder, "commit", "-q", "-m", "another history")
    other = git(folder, "rev-parse", "HEAD")
    git(folder, "replace", commits[0], other)
    git(folder, "repack", "-adq", "--write-bitmap-index")
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/grafts").write_text(f"{commits[0]} {other}\n")
    packs = folder / ".git/objects/pack"
    for pack in packs.glob("*.pack"):
        for ending in (".bitmap", ".rev", ".mtimes"):
            pack.with_suffix(ending).unlink(missing_ok=True)
            pack.with_suffix(ending).write_bytes(b"BITM\0\1" + os.urandom(200))
    (packs / "multi-pack-index").write_bytes(b"MIDX\1\1" + os.urandom(200))
    (folder / ".git/objects/info").mkdir(exist_ok=True)
    (folder / ".git/objects/info/commit-graph").write_bytes(b"CGPH\1\1" + os.urandom(200))
    assert commits_of(history(folder, commits[1]), tmp_path / "bare") == set(commits)


@pytest.mark.parametrize("data", [b"", b"\xfftOc\0\0\0\2" + bytes(1024), b"x" * 2000], ids=["empty", "zeros", "text"])
def test_damaged_packs_are_errors_of_one_line(data, repository):
    folder, commits = repository
    git(folder, "repack", "-adq")
    for index in (folder / ".git/objects/pack").glob("*.idx"):
        index.chmod(0o644)
        index.write_bytes(data)
    with pytest.raises(UserError, match="cannot read the commit") as caught:
        history(folder, commits[1])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_lists_of_others_are_checked_and_bounded(repository):
    folder, commits = repository
    for place, text in (
        ("shallow", f"{commits[0]}\n--all\n"),
        ("shallow", "x" * (1 << 21)),
        ("objects/info/alternates", "\0"),
        ("objects/info/alternates", "\n".join(f"../x{number}" for number in range(20))),
        ("objects/info/alternates", '"quoted"'),
    ):
        path = folder / ".git" / place
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        for number in range(20):
            (folder / f".git/x{number}").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=r"no list of ids|has more than|null|16 folders|does not exist"):
            history(folder, commits[1])
        path.unlink()


def test_folders_with_many_packs_are_refused_before_anything_is_made_of_them(repository, monkeypatch):
    folder, commits = repository
    git(folder, "repack", "-adq")
    assert history(folder, commits[1])
    monkeypatch.setattr(git_objects, "_MOST_PACK_FILES", 1)
    with pytest.raises(UserError, match="more than 1 files of packs"):
        history(folder, commits[0])


def test_all_kinds_of_honest_repositories_can_be_read(repository, tmp_path):
    folder, commits = repository
    data = folder.parent
    git(folder, "worktree", "add", "-q", str(data / "linked"), commits[0])
    git(data, "clone", "-q", "--bare", "repository", "bare.git")
    git(data, "clone", "-q", "--shared", "repository", "shared")
    git(data, "clone", "-q", "--shared", "shared", "twice")
    git(data, "clone", "-q", "--depth=1", f"file://{folder}", "shallow")
    make_repository(data / "outer")
    git(data / "outer", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(folder), "inner")
    assert (data / "outer/inner/.git").is_file() and (data / "linked/.git").is_file()
    (data / "relative").symlink_to("bare.git")
    for name in ("repository", "linked", "bare.git", "shared", "twice", "outer/inner", "relative"):
        found = commits_of(history(data / name, commits[1], data), tmp_path / name)
        assert found == set(commits), name
    pack = Packs().find("shallow", commits[1], str(data))
    assert commits_of(pack.after(b""), tmp_path / "s") == {commits[1]} and pack.shallow == (commits[1],)


def stand_in(monkeypatch, tmp_path, script):
    """Puts a script in the place of git, which it runs when its limits are set."""
    path = tmp_path / "git"
    path.write_text(f"#!/bin/sh\nread base\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(git_history.shutil, "which", lambda name: str(path))


def test_git_has_limits_of_time_memory_and_output(repository, monkeypatch, tmp_path):
    folder, commits = repository
    stand_in(monkeypatch, tmp_path, "ulimit -v >&2; ulimit -c >&2; echo $(ulimit -v) >&2; exit 1")
    with pytest.raises(UserError, match="2097152"):
        history(folder, commits[1])
    stand_in(monkeypatch, tmp_path, "env | tr '\\n' ' ' >&2; exit 1")
    monkeypatch.setenv("SECRET_KEY", "of this machine")
    monkeypatch.setattr(git_history, "abbreviate", str)
    with pytest.raises(UserError, match="GIT_NO_LAZY_FETCH=1") as caught:
        history(folder, commits[1])
    assert "SECRET" not in str(caught.value)
    stand_in(monkeypatch, tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    monkeypatch.setattr(git_history, "TIMEOUT", 0.3)
    with pytest.raises(EnvironmentFailedError, match=r"took more than 0\.3 s"):
        history(folder, commits[1])
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")


def test_a_history_that_is_too_large_is_refused_and_what_git_says_is_cut(repository, monkeypatch, tmp_path):
    folder, commits = repository
    monkeypatch.setattr(git_history, "LARGEST_PACK", 1 << 20)
    for script in ("exec yes", "yes | head -c 1048576"):
        stand_in(monkeypatch, tmp_path, script)
        with pytest.raises(UserError, match="more than 1 MiB; name a shallow clone"):
            history(folder, commits[1])
    stand_in(monkeypatch, tmp_path, "yes error | head -c 900000 >&2; echo end >&2; exit 3")
    with pytest.raises(UserError, match="'end'"):
        history(folder, commits[1])


def test_a_file_that_inflates_without_end_is_packed_within_the_limits(repository, monkeypatch):
    folder, _ = repository
    blob = loose_object(folder, "blob", bytes(64 << 20))
    tree = git(folder, "mktree", stdin=f"100644 blob {blob}\tzeros\n".encode())
    commit = git(folder, "commit-tree", tree, "-m", "zeros")
    monkeypatch.setattr(git_history, "LARGEST_PACK", 32 << 10)
    with pytest.raises(UserError, match="has more than"):
        history(folder, commit)


def test_what_is_kept_is_bounded_in_bytes_and_closed(repository, monkeypatch):
    folder, commits = repository
    packs, before = Packs(), len(os.listdir("/proc/self/fd"))
    first = packs.find(str(folder), commits[1], str(folder.parent))
    assert packs.find(str(folder), commits[1], str(folder.parent)) is first
    monkeypatch.setattr(git_history, "KEPT", first.size)
    second = packs.find(str(folder), commits[0], str(folder.parent))
    assert packs.find(str(folder), commits[1], str(folder.parent)) is not first
    assert len(os.listdir("/proc/self/fd")) == before + 3
    assert first.after(b"head")[:8] == b"headPACK" and second.size < first.size
    del first, second, packs
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_kept_history_is_no_way_around_the_folder(repository, tmp_path):
    folder, commits = repository
    packs = Packs()
    packs.find(str(folder), commits[1], str(tmp_path))
    (tmp_path / "else").mkdir()
    with pytest.raises(UserError, match="leads out of"):
        packs.find(str(folder), commits[1], str(tmp_path / "else"))


async def test_the_event_loop_goes_on_while_git_works(repository, monkeypatch, tmp_path):
    folder, commits = repository
    stand_in(monkeypatch, tmp_path, "sleep 0.5; exit 1")

    packing = asyncio.ensure_future(packed_history(str(folder), commits[1], str(folder.parent)))
    turns = 0
    while not packing.done():
        await asyncio.sleep(0.01)
        turns += 1
    with pytest.raises(UserError):
        await packing
    assert turns > 10
