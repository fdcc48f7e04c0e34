"""Which images a spec may name: it may be written by others, so the user says from what it may choose."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import fcntl
import os
from pathlib import Path
import re
from typing import NamedTuple

from k2jax.agents.sandbox.files import read_file
from k2jax.agents.sandbox.mounts import is_never_shown
from k2jax.agents.sandbox.types import WORK, SandboxError
from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.files.confined import LONGEST_PATH, confined, path_in_root

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}")
_LAST_USER = (1 << 32) - 2
_MOST_PASSWD = 1 << 20
_MOST_RECORD = 8 << 20
_NUMBER = re.compile(r"[0-9]{1,12}")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for in an image that does not say it, as in containers."""
_held: dict[str, int] = {}
"""Descriptors of the records of images that this process has used, by the images' folders."""
_CHOOSE = "choose with --images=..., or rl.images in a config"


def image_folder(image: str, images: str) -> str:
    """The folder of an unpacked root file system.

    Whoever can write to the folder of images while one of them is opened can put a link in its place.

    Args:
        image: its name: a path below ``images``, or ``sha256:`` and 64 hexadecimal digits for the folder of that name
            in its folder ``sha256``; whether the image has that digest is for whoever unpacked it to check.
        images: the folder of all images, which the user has chosen; empty refuses all.

    Returns:
        Its real path, which lies below the real path of ``images``.

    Raises:
        UserError: there is no such image below the folder, or the folder is one that no sandbox shows.
    """
    if not images:
        raise UserError(f"the image {abbreviate(image)} is refused, because no folder of images is chosen; {_CHOOSE}")
    root = os.path.realpath(os.path.expanduser(images))
    if is_never_shown(root):
        raise UserError(f"{images} is no folder of images: no sandbox shows what lies in it; choose another one")
    digest = _DIGEST.fullmatch(image)
    real = confined(f"sha256/{digest[1]}" if digest else image, root, "image")
    if not any(_is_folder(os.path.join(real, name)) for name in ("usr", "bin")):
        raise UserError(f"the image {abbreviate(image)} is no folder of an unpacked root file system, with usr or bin")
    return real


def hold_image(root: str) -> None:
    """Keeps an image from being deleted while this process lives, and notes that it is used.

    Args:
        root: what ``image_folder`` has returned; an image that was unpacked otherwise has no record to hold.

    Raises:
        UserError: it is being deleted.
    """
    if root in _held or not os.path.isfile(f"{root}.json"):
        return
    descriptor = os.open(f"{root}.json", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        is_there = os.fstat(descriptor).st_nlink > 0
    except BlockingIOError:
        is_there = False
    if not is_there:
        os.close(descriptor)
        raise UserError(f"the image in {root} is being deleted; fetch it again")
    with contextlib.suppress(PermissionError):  # it is another user's
        os.utime(descriptor)
    _held[root] = descriptor


def check_places(shown: Mapping[str, str], root: str) -> None:
    """Refuses to show something behind a link of an image, which a program could replace for the next command.

    Args:
        shown: paths of the host by their places inside.
        root: what ``image_folder`` has returned.

    Raises:
        UserError: it names the place.
    """
    top = Path(root)
    for place in shown:
        if path_in_root(top, place) != top / place.lstrip("/"):
            raise UserError(f"{place} is behind a link of the image; show {shown[place]} at another place")


class ImageSettings(NamedTuple):
    """How programs on an image are started where a spec says nothing else.

    Attributes:
        env: variables.
        user: number of their user.
        workdir: their folder.
    """

    env: dict[str, str]
    user: int
    workdir: str


def image_settings(root: str, user: str, workdir: str) -> ImageSettings:
    """What an image wants for its programs, from the record that ``python -m k2jax.sandbox image`` writes.

    Args:
        root: what ``image_folder`` has returned; an image that was unpacked otherwise has no record, and as in
            containers its programs run as root.
        user: of the spec.
        workdir: of the spec.

    Raises:
        UserError: the record is damaged, or the image has no such user.
    """
    env, own_user, own_workdir = _recorded(root)
    number, home = _user(root, user or own_user or "0")
    folder = workdir or own_workdir or WORK
    top = folder.split("/")[1:2]
    if (
        not folder.startswith("/")
        or len(folder) > LONGEST_PATH
        or not folder.isprintable()
        or top in (["proc"], ["dev"])
    ):
        raise UserError(
            f"the working folder {abbreviate(folder)} is no absolute path of an image's own; name another one"
        )
    variables = {"PATH": _PATH, "HOME": home} | env
    return ImageSettings(
        {name: value for name, value in variables.items() if _is_variable(name, value)}, number, folder
    )


def _is_variable(name: str, value: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name + value


def _recorded(root: str) -> tuple[dict[str, str], str, str]:
    """Variables, user and folder of an image's record."""
    path = f"{root}.json"
    if os.path.basename(os.path.dirname(root)) != "sha256" or not os.path.isfile(path):
        return {}, "", ""
    try:
        with open(path, "rb") as file:
            config = parse_bounded_json(file.read(_MOST_RECORD))["config"]
        env = {str(name): str(value) for name, value in config["env"].items()}
        return env, str(config["user"]), str(config["workdir"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path} is damaged; delete it and fetch the image again") from None


def _user(root: str, user: str) -> tuple[int, str]:
    """The number of a user, and its home folder; a group behind it is left out, since all files are the user's."""
    name = user.partition(":")[0]
    entries = [line.split(":") for line in _passwd(root).splitlines()]
    for entry in (entry for entry in entries if len(entry) >= 6 and _NUMBER.fullmatch(entry[2])):
        if name in (entry[0], entry[2]):
            return _number(entry[2], user), entry[5] or "/"
    if not _NUMBER.fullmatch(name):
        raise UserError(f"the image has no user {abbreviate(name)} in /etc/passwd; name another one, or a number")
    return _number(name, user), "/"


def _number(digits: str, user: str) -> int:
    if int(digits) > _LAST_USER:
        raise UserError(f"{abbreviate(user)} is no user: numbers end at {_LAST_USER}")
    return int(digits)


def _passwd(root: str) -> str:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return read_file(folder, "etc/passwd", _MOST_PASSWD).decode(errors="replace")
    except SandboxError:  # an image need not have it
        return ""
    finally:
        os.close(folder)


def image_name(image: str, images: str) -> str:
    """The name of an image in a registry, or of a template.

    Args:
        image: the name.
        images: what it must be or begin with, up to one of the marks ``/:@``; empty refuses all.

    Raises:
        UserError: it is no such name.
    """
    if not images:
        raise UserError(f"the image {abbreviate(image)} is refused, because no beginning of names is chosen; {_CHOOSE}")
    beginnings = (images,) if images[-1] in "/:@" else tuple(images + mark for mark in "/:@")
    if not _REFERENCE.fullmatch(image) or ".." in image or not (image == images or image.startswith(beginnings)):
        raise UserError(f"the image {abbreviate(image)} is refused: names must begin with {images}; {_CHOOSE}")
    return image


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
