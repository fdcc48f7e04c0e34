"""Git repositories that mean harm, and what a program that obeyed one of them would leave behind."""

import hashlib
import os
from pathlib import Path
import shutil
import socket
import subprocess
import zlib

HOOKS = ("post-index-change", "reference-transaction", "pre-auto-gc", "post-checkout", "fsmonitor-watchman", "update")
_IDENTITY = ("-c", "user.name=a", "-c", "user.email=b@c", "-c", "commit.gpgsign=false")
_PARTIAL = (
    "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n"
    '[remote "origin"]\n\turl = {url}\n\tpromisor = true\n\tpartialclonefilter = blob:none\n\tuploadpack = {command}\n'
    '[protocol]\n\tallow = always\n[protocol "ext"]\n\tallow = always\n'
)


def git(repository, *words, stdin=b""):
    """Output of git with this user's own rights, for repositories that are still harmless."""
    command = ["git", *_IDENTITY, "-C", repository, *words]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout.decode().strip()


def make_repository(folder):
    """A repository of two commits; returns the ids of both."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    commits = []
    for number in range(2):
        (folder / "file.txt").write_text(f"version {number}\n" * 20)
        (folder / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"commit {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def lose_blob(repository):
    """Deletes an object of the first commit, as in a partial clone."""
    blob = git(repository, "rev-parse", "HEAD~1:file.txt")
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()


def _partial(url="/nowhere"):
    def make(repository, command):
        lose_blob(repository)
        configure(repository, _PARTIAL.format(url=url.format(command=command), command=command))

    return make


def _promisor_pack(repository, command):
    git(repository, "repack", "-adq")
    for pack in (repository / ".git/objects/pack").glob("*.pack"):
        pack.with_suffix(".promisor").write_text("")
    kept = git(repository, "rev-list", "--objects", "HEAD").splitlines()[:1]
    name = git(repository, "pack-objects", ".git/objects/pack/pack", "-q", stdin="\n".join(kept).encode())
    for path in (repository / ".git/objects/pack").iterdir():
        if name not in path.name:
            path.unlink()
    (repository / f".git/objects/pack/pack-{name}.promisor").write_text("")
    configure(repository, _PARTIAL.format(url="/nowhere", command=command))


def _include(repository, command):
    lose_blob(repository)
    (repository / "more").write_text(_PARTIAL.format(url="/nowhere", command=command))
    configure(repository, f"[include]\n\tpath = {repository}/more\n")


def _worktree_config(repository, command):
    lose_blob(repository)
    configure(repository, "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig = true\n")
    (repository / ".git/config.worktree").write_text(_PARTIAL.format(url="/nowhere", command=command))


def _hooks(repository, command):
    configure(repository, f"[core]\n\thooksPath = {repository}/.git/hooks\n")
    (repository / ".git/hooks").mkdir(exist_ok=True)
    for name in HOOKS:
        hook = repository / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\n{command}\n")
        hook.chmod(0o755)


def _settings(text, ruin=False):
    def make(repository, command):
        if ruin:
            lose_blob(repository)
        configure(repository, text.replace("COMMAND", command))

    return make


def configure(repository, text):
    """Adds to a repository's configuration."""
    with open(repository / ".git/config", "a") as file:
        file.write(text)


COMMANDS = {
    "a partial clone": _partial(),
    "a partial clone over ssh": _partial("ssh://host/x"),
    "a partial clone over a program": _partial("ext::{command}"),
    "a pack of promises": _promisor_pack,
    "an included configuration": _include,
    "a work tree's configuration": _worktree_config,
    "hooks": _hooks,
    "fsmonitor": _settings('[core]\n\tfsmonitor = "COMMAND"\n'),
    "filters": _settings(
        '[filter "evil"]\n\tclean = "COMMAND"\n\tsmudge = "COMMAND"\n\tprocess = "COMMAND"\n\trequired = true\n'
        '[diff "evil"]\n\ttextconv = "COMMAND"\n\tcommand = "COMMAND"\n[merge "evil"]\n\tdriver = "COMMAND"\n'
    ),
    "ssh": _settings(
        '[core]\n\tsshCommand = "COMMAND"\n[remote "origin"]\n\turl = ssh://h/x\n\tpromisor = true\n', ruin=True
    ),
    "an alias": _settings('[alias]\n\tpack-objects = "!COMMAND"\n\trev-list = "!COMMAND"\n'),
    "pagers and editors": _settings(
        '[core]\n\tpager = "COMMAND"\n\teditor = "COMMAND"\n\taskPass = "COMMAND"\n\tgitProxy = "COMMAND"\n'
        "[pager]\n\tpack-objects = true\n"
    ),
    "signatures": _settings('[gpg]\n\tprogram = "COMMAND"\n[log]\n\tshowSignature = true\n'),
    "a hook of pack-objects": _settings('[uploadpack]\n\tpackObjectsHook = "COMMAND"\n'),
    "credentials": _settings('[credential]\n\thelper = "!COMMAND"\n'),
}
"""Ways to have a command run by whoever uses git in a repository; each is a function of its folder and the command."""


def loose_object(repository, kind, body):
    """Writes any object, right or wrong; returns its id."""
    data = f"{kind} {len(body)}\0".encode() + body
    name = hashlib.sha1(data).hexdigest()
    path = repository / ".git/objects" / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(data, 1))
    return name


def _link(path, target):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    path.symlink_to(target)


def _alternates(inner, private):
    (inner / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")


def _nested_alternates(inner, private):
    between = inner.parent / "between/objects/info"
    between.mkdir(parents=True)
    (between / "alternates").write_text(f"{private}/.git/objects\n")
    (inner / ".git/objects/info/alternates").write_text("../../../between/objects\n")


def _git_file(text):
    def make(inner, private):
        shutil.rmtree(inner / ".git")
        (inner / ".git").write_text(text.format(private=private))

    return make


def _commondir(inner, private):
    (inner / ".git/commondir").write_text(f"{private}/.git\n")


def _linked(place):
    def make(inner, private):
        git(private, "repack", "-adq")
        _link(inner / ".git" / place, private / ".git" / place)

    return make


def _linked_pack(inner, private):
    git(private, "repack", "-adq")
    for path in (private / ".git/objects/pack").iterdir():
        (inner / ".git/objects/pack" / path.name).symlink_to(path)


def _linked_fan_out(inner, private):
    for path in (private / ".git/objects").iterdir():
        if len(path.name) == 2:
            _link(inner / ".git/objects" / path.name, path)


def _linked_objects(inner, private):
    for path in (private / ".git/objects").glob("??/*"):
        place = inner / ".git/objects" / path.parent.name
        place.mkdir(exist_ok=True)
        _link(place / path.name, path)


def _git_link(inner, private):
    _link(inner / ".git", private / ".git")


def _parent_of(inner, private):
    """A folder without a repository in it, in one that git would find."""
    shutil.move(private / ".git", inner.parent / ".git")
    shutil.rmtree(inner / ".git")


LEAKS = {
    "alternates": _alternates,
    "alternates of alternates": _nested_alternates,
    "a .git file": _git_file("gitdir: {private}/.git\n"),
    "a relative .git file": _git_file("gitdir: ../../private/.git\n"),
    "commondir": _commondir,
    "a linked .git": _git_link,
    "linked objects": _linked("objects"),
    "a linked folder of packs": _linked("objects/pack"),
    "linked packs": _linked_pack,
    "linked folders of objects": _linked_fan_out,
    "linked loose objects": _linked_objects,
    "a repository around the folder": _parent_of,
}
"""Ways to have the history of another repository packed; each is a function of the folders of both."""


def plant(path, kind):
    """Puts something at a place that is no regular file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            here = os.open(path.parent, os.O_RDONLY)  # the path may be longer than such an address
            try:
                server.bind(f"/proc/self/fd/{here}/{path.name}")
            finally:
                os.close(here)
    elif kind == "terminal":
        path.symlink_to("/dev/tty")
    else:
        Path(path).mkdir()
