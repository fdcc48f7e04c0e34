"""Texts of WebDataset archives: tar files in which the members of a sample follow each other, by the name of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import json
import lzma
from pathlib import Path
import tarfile
import zlib

from k2jax.files.readers import LARGEST_RECORD, checked_text, first_line

_TEXT, _RECORD = "txt", "json"


def text_tar(path: Path, field: str, report: Callable[[str, str], None]) -> Iterator[tuple[str, str]]:
    """Reads one document for each member ``KEY.txt``, and for each ``KEY.json`` the string at ``field``.

    Archives may be compressed. A sample that has both gives two documents. Other members are passed over.

    Args:
        path: the archive.
        field: of the objects.
        report: receives the place and the reason of what cannot be used.
    """
    place = 0
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                place = member.offset
                kind = member.name.rpartition(".")[2].lower()
                if not member.isreg() or kind not in (_TEXT, _RECORD):
                    continue
                where = f"{path}, member at byte {place}"
                if member.size > LARGEST_RECORD:
                    report(where, f"longer than {LARGEST_RECORD:,} bytes")
                    continue
                text = _text(archive.extractfile(member).read(), kind, field, where, report)  # type: ignore[union-attr]
                if text is not None:
                    yield f"{path}:{member.name}", text
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        report(f"{path}, behind byte {place}", f"cannot be read: {first_line(error)}")


def _text(content: bytes, kind: str, field: str, where: str, report: Callable[[str, str], None]) -> str | None:
    """The text of a member; None where it has none that can be used."""
    try:
        text = content.decode()
        return text if kind == _TEXT else checked_text(json.loads(text), field, where, report)
    except UnicodeDecodeError as error:
        return report(where, f"not UTF-8 at byte {error.start} of the text")
    except (ValueError, RecursionError) as error:
        return report(where, f"not usable JSON: {first_line(error)}")
