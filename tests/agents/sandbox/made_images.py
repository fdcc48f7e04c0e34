"""Images that tests make: programs of the host and what they are linked to, in a folder of their own."""

import atexit
import functools
import os
from pathlib import Path
import shutil
import subprocess
import tempfile

from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.sandbox.mount_namespace import NOBODY

IMAGE = "system"
PROGRAMS = (
    *("sh", "bash", "env", "cat", "cp", "mv", "rm", "ln", "ls", "mkdir", "rmdir", "mknod", "mkfifo", "chmod", "chown"),
    *("head", "tail", "wc", "sort", "tr", "cut", "dd", "df", "du", "echo", "printf", "true", "false", "yes", "seq"),
    *(
        "sleep",
        "timeout",
        "nice",
        "nohup",
        "setsid",
        "kill",
        "id",
        "whoami",
        "stat",
        "touch",
        "truncate",
        "tee",
        "test",
    ),
    *(
        "find",
        "grep",
        "sed",
        "tar",
        "mount",
        "umount",
        "unshare",
        "nsenter",
        "chroot",
        "script",
        "ulimit",
        "od",
        "sync",
    ),
    *("readlink", "realpath", "dirname", "basename", "pwd", "date", "uname", "hostname", "expr", "fallocate", "ps"),
)
PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"


def copy_with_libraries(source, place, image):
    """Copies a program and what it is linked to into an image."""
    files = {place: Path(source)} | {name: Path(name) for name in libraries(source)}
    for target, file in files.items():
        copy = image / target.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.resolve(), copy)


def libraries(program):
    """What a program is linked to."""
    listing = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [word for word in listing.split() if word.startswith("/") and not word.endswith(":")]


def give(folder, user):
    """Gives all in a folder to a user, where this one is root."""
    for above, folders, files in os.walk(folder) if os.geteuid() == 0 else ():
        for place in (above, *(os.path.join(above, each) for each in (*folders, *files))):
            os.chown(place, user, user, follow_symlinks=False)


@functools.cache
def host_image():
    """A folder of the image ``IMAGE``, in which the host's Python can be shown."""
    folder = tempfile.mkdtemp(prefix="k2jax-images-")
    atexit.register(shutil.rmtree, folder)
    system = Path(folder, IMAGE)
    for place in ("usr/bin", "etc", "root", "var/tmp", "home/app"):
        (system / place).mkdir(parents=True)
    (system / "etc/passwd").write_text(PASSWD)
    for program in filter(shutil.which, PROGRAMS):
        copy_with_libraries(shutil.which(program), f"/usr/bin/{program}", system)
    python = Path(host_python().executable)
    linked = {name for file in python.parents[1].rglob("lib-dynload/*.so") for name in libraries(file)}
    for name in {*linked, *libraries(python)}:
        if not (copy := system / name.lstrip("/")).exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(name).resolve(), copy)
    (system / "bin").symlink_to("usr/bin")
    give(system, NOBODY)
    return folder
