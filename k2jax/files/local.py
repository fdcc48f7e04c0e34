"""Names of files and folders: local ones, where an object store is mounted, or where ``check_place`` is asked, URLs."""

from __future__ import annotations

import re

from k2jax.errors import UserError, abbreviate
from k2jax.files.objects.object_address import is_object_url

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(/?)")
_MOUNTS = {"gs": "gcsfuse, as k2jax.launch does on every host", "s3": "mount-s3"}


def check_local(text: str, name: str) -> None:
    """Checks that a name is not a URL, which would be the name of a local folder ``gs:``.

    Args:
        text: the name.
        name: of the flag or key that has it, for the message.

    Raises:
        UserError: it is one; it says what to do instead.
    """
    match = _URL.match(text)
    if match is None or (not match[2] and match[1].lower() not in (*_MOUNTS, "file")):
        return
    scheme = match[1].lower()
    if scheme == "file":
        remedy = "leave file: away"
    else:
        remedy = f"mount it ({_MOUNTS[scheme]}) and name" if scheme in _MOUNTS else "copy or mount it, and name"
        remedy += " the local folder"
    raise UserError(f"{name} {abbreviate(text, 200)} is a URL, and local files and folders are read here: {remedy}")


def check_place(text: str, name: str) -> None:
    """As ``check_local``, of a name that may be a ``file://``, or a URL of a store that is read here."""
    if not is_object_url(text) and not text.lower().startswith("file:///"):
        check_local(text, name)
