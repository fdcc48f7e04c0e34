"""Where an object lies, and what is known of its content."""

from __future__ import annotations

import dataclasses
import re

EXTRAS = {"s3": ("s3fs", "k2jax[s3]"), "gs": ("gcsfs", "k2jax[gcs]"), "az": ("adlfs", "adlfs")}
"""Package that a scheme needs, and what pip is asked for to install it."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def parts_of_url(text: str) -> tuple[str, str]:
    """Scheme of a URL, and bucket and key; both empty where it is none."""
    match = _URL.match(text)
    return (match[1].lower(), match[2].rstrip("/")) if match else ("", "")


def is_object_url(text: str) -> bool:
    """Whether a text is a URL of an object store that is read here."""
    return parts_of_url(text)[0] in EXTRAS


@dataclasses.dataclass(frozen=True)
class ObjectAddress:
    """An object, or a folder of them.

    Attributes:
        scheme: of its URL.
        place: bucket and key.
        size: of the object [bytes]; None where the store was not asked yet.
        version: what changes with the content.
    """

    scheme: str
    place: str
    size: int | None = dataclasses.field(default=None, compare=False)
    version: str = dataclasses.field(default="", compare=False)

    def __str__(self) -> str:
        """The URL."""
        return f"{self.scheme}://{self.place}"
