"""Images with repositories of six shapes, and the rows of tasks on them, as tests make them.

Every repository has a future: the commit with the solution and the tests, a branch, a tag and a remote that name it, a
stash, and objects that nothing names.
"""

import atexit
import functools
import hashlib
import importlib.util
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile
import zipfile

from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.sandbox.mount_namespace import NOBODY
from tests.agents.sandbox.made_images import PASSWD, give

PROGRAMS = (
    *("git", "sh", "bash", "env", "cat", "cp", "mv", "rm", "ln", "ls", "mkdir", "mktemp", "chmod", "cut", "wc"),
    *(
        "head",
        "tail",
        "sort",
        "tr",
        "grep",
        "sed",
        "find",
        "echo",
        "printf",
        "true",
        "false",
        "seq",
        "sleep",
        "touch",
        "yes",
    ),
)
PREFIX = "opt/miniconda3/envs/testbed"
LEFT_OUT = ("site-packages", "test", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo", "lib-dynload")
FUTURE = {}
"""Ids of objects that no agent may find, by the names of images."""
BROKEN = "#!/bin/sh\necho 'ImportError: no module named site' >&2\nexit 1\n"
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(folder, *words, stdin=None):
    """The output of git in a folder."""
    command = ["git", "-c", "init.defaultBranch=main", *AUTHOR, "-c", "safe.directory=*", *words]
    result = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout if words[0] == "diff" else result.stdout.strip()


@functools.cache
def folder_of_images():
    """Where all images are."""
    folder = tempfile.mkdtemp(prefix="k2jax-swe-images-")
    atexit.register(shutil.rmtree, folder)
    return folder


@functools.cache
def system(kind):
    """The root file system of a kind of image: ``shell``, or ``full`` with Python and Node."""
    root = Path(folder_of_images(), f"base-{kind}")
    if kind == "full":
        copy_links(system("shell"), root)
        add_python(root)
        add_programs(root, [node] if (node := shutil.which("node")) else [])
    else:
        for place in ("usr/bin", "etc", "root", "var/tmp"):
            (root / place).mkdir(parents=True)
        (root / "etc/passwd").write_text(PASSWD)
        add_programs(root, [shutil.which(program) for program in PROGRAMS])
        (root / "bin").symlink_to("usr/bin")
    give(root, NOBODY)
    return root


def copy_links(source, target):
    """Copies a folder; its files are links to the same ones, which nobody writes to."""
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    for folder, _, _ in os.walk(target) if os.geteuid() == 0 else ():
        os.chown(folder, NOBODY, NOBODY)


def add_programs(root, programs):
    """Copies programs to ``/usr/bin``, and what they are linked to."""
    for program in programs:
        shutil.copy(program, root / "usr/bin")
    add_libraries(root, programs)


def add_libraries(root, programs):
    """Copies what programs are linked to."""
    words = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout.split() if programs else ()
    for linked in {word for word in words if word.startswith("/") and not word.endswith(":")}:
        if not (root / linked.lstrip("/")).exists():
            shutil.copy(Path(linked).resolve(), _made((root / linked.lstrip("/")).parent) / Path(linked).name)


def add_python(root):
    """This Python and pytest in a prefix like that of conda, beside a system Python that does not start."""
    python = Path(host_python().executable).resolve()
    shutil.copy(python, _made(root / PREFIX / "bin") / "python")
    name = f"python{'.'.join(python.name.removeprefix('python').split('.')[:2])}"
    source, library = Path(json.__file__).parents[1], root / PREFIX / "lib" / name
    library.mkdir(parents=True)
    (library / "os.py").write_bytes((source / "os.py").read_bytes())  # by which Python finds its prefix
    shutil.copytree(source / "lib-dynload", library / "lib-dynload")
    add_libraries(root, [python, *(source / "lib-dynload").glob("*.so")])
    with zipfile.ZipFile(root / PREFIX / "lib" / f"{name.replace('.', '')}.zip", "w") as archive:
        for part in source.iterdir():
            if part.name not in LEFT_OUT:
                for path in part.rglob("*.py") if part.is_dir() else (part,) if part.suffix == ".py" else ():
                    place = path.relative_to(source).as_posix()
                    compiled = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
                    ready = compiled.exists() and path.name != "__main__.py"
                    archive.write(*((compiled, f"{place}c") if ready else (path, place)))
    for package in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        folder = Path(importlib.util.find_spec(package).origin).parent
        shutil.copytree(folder, library / package, ignore=_unused)  # Debian's Python reads no folder site-packages
    shutil.copy(importlib.util.find_spec("py").origin, library)
    described = _made(library / "pluggy-1.0.dist-info")
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: pluggy\nVersion: 1.0\n")
    (root / "usr/bin/python3").write_text(BROKEN)
    (root / "usr/bin/python3").chmod(0o755)


def _unused(folder, names):
    """Which files of a package of pytest's are left out: most lexers."""
    names = set(names) if folder.endswith(("pygments/lexers", "pygments/styles")) else set()
    return {name for name in names if not name.startswith(("__", "_mapping", "python", "diff", "default", "_"))}


def _made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(folder, files):
    """Writes files by their paths; those that begin with ``#!`` can be run, and None deletes one."""
    for path, text in files.items():
        if text is None:
            (folder / path).unlink()
            continue
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        if text.startswith("#!"):
            (folder / path).chmod(0o755)


def commit(folder, files, subject):
    """Commits files; returns its id."""
    write(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", subject)
    return git(folder, "rev-parse", "HEAD")


def make_image(name, kind, place, shape, setup=None, extra=None, workdir=""):
    """An image with the repository of a shape at a place.

    Args:
        name: of the image.
        kind: see ``system``.
        place: of the repository.
        shape: see ``SHAPES``.
        setup: files that a last commit on the base has, as images of SWE-bench have one.
        extra: files of the image outside of the repository.
        workdir: folder of the image's record.

    Returns:
        The fields of a row that follow from the repository.
    """
    top = Path(folder_of_images())
    digest = hashlib.sha256(name.encode()).hexdigest()
    root = top / "sha256" / digest if workdir else top / name
    copy_links(system(kind), root)
    repository = root / place.lstrip("/")
    repository.mkdir(parents=True)
    git(repository, "init", "-q")
    old = commit(repository, {"README": "old\n"}, "before")
    git(repository, "tag", "-a", "-m", "1.0", "v1.0", old)
    base = commit(repository, shape["base"], "base")
    solved = commit(repository, shape["fix"], "the solution")
    tested = commit(repository, shape["tests"], "its tests")
    patches = {"patch": git(repository, "diff", "--binary", base, solved)}
    patches |= {"test_patch": git(repository, "diff", solved, tested)}
    git(repository, "tag", "v2.0")
    git(repository, "branch", "future")
    git(repository, "update-ref", "refs/remotes/origin/main", tested)
    git(repository, "remote", "add", "origin", "https://host.invalid/it.git")
    git(repository, "reset", "-q", "--hard", base)
    write(repository, {"README": "stashed\n"})
    git(repository, "stash")
    git(repository, "hash-object", "-w", "--stdin", stdin="nothing names this text\n")
    FUTURE[name] = (solved, tested, git(repository, "rev-parse", f"{tested}^{{tree}}"))
    if setup:
        commit(repository, setup, "SWE-bench")
    write(root, extra or {})
    give(repository, NOBODY)
    if workdir:
        record = {"config": {"env": {}, "user": "", "workdir": workdir}}
        root.with_name(f"{digest}.json").write_text(json.dumps(record))
        _made((top / name).parent)
        (top / name).symlink_to(root)
    names = {key: json.dumps(shape[key]) for key in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    return {
        "instance_id": name.replace("/", "__").replace(":", "-"),
        "image_name": f"docker.io/{name}",
        "base_commit": base,
        "problem_statement": f"Something is wrong in {name}.",
        **patches,
        **names,
        **shape.get("fields", {}),
    }
