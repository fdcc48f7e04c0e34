"""Texts of web archives (WARC, and WET with texts), by fastwarc and resiliparse (extra ``warc``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import importlib
from pathlib import Path
import re
from typing import Any

from k2jax.errors import UserError
from k2jax.files.content import stream_of_file
from k2jax.files.readers import LARGEST_RECORD, first_line

WEB_ARCHIVE = re.compile(r"\.(warc|wet)(\.|$)", re.IGNORECASE)
"""In the names of archives."""
_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = "text/plain"
_FOUND = 200  # status of an answer that has what was asked for


def warc(path: Path, report: Callable[[str, str], None]) -> Iterator[tuple[str, str]]:
    """Reads one document for each text of an archive: converted ones as they are, and the main content of pages.

    Archives may be compressed; bytes count what they grow to. Answers of another status than 200, requests and other
    contents are passed over. Behind a damaged place nothing more of an archive can be read.

    Args:
        path: the archive.
        report: receives the place and the reason of what cannot be used.

    Raises:
        UserError: the libraries are not installed.
    """
    library = _library("fastwarc.warc")
    kinds, place = library.WarcRecordType, 0
    wanted = kinds.conversion | kinds.response | kinds.resource
    try:
        with stream_of_file(path) as file:  # the library itself takes a compressed record that is broken off for an end
            for record in library.ArchiveIterator(_Pieces(file), record_types=wanted, parse_http=True):
                place = record.stream_pos
                where = f"{path}, record at byte {place}"
                text = _text(record, record.record_type == kinds.response, where, report)
                if text is not None:
                    yield f"{path}:{record.headers.get('WARC-Target-URI') or record.record_id}", text
    except (OSError, ValueError, RuntimeError) as error:
        report(
            f"{path}, behind byte {place}", f"cannot be read: {getattr(error, 'strerror', None) or first_line(error)}"
        )


class _Pieces:
    """A stream that gives what it has: a reader that fills its buffer would lose what precedes a damaged place."""

    def __init__(self, file: Any):
        self._file, self.tell, self.seek, self.close = file, file.tell, file.seek, file.close

    def read(self, size: int = -1) -> bytes:
        return self._file.read1(size)


def _text(record: Any, is_answer: bool, where: str, report: Callable[[str, str], None]) -> str | None:
    """The text of a record; None where it has none, or none that can be used."""
    if record.headers.get("Content-Length") is None:
        return report(where, "broken off in its header")
    headers = record.http_headers if is_answer else None
    if is_answer and (headers is None or headers.status_code != _FOUND):
        return None
    kind = record.http_content_type if is_answer else record.headers.get("Content-Type") or ""
    kind = (kind or "").partition(";")[0].strip().lower()
    if kind not in (*_HTML, _PLAIN):
        return None
    if record.content_length > LARGEST_RECORD:
        return report(where, f"longer than {LARGEST_RECORD:,} bytes")
    body = record.reader.read(LARGEST_RECORD + 1)
    if len(body) > LARGEST_RECORD:
        return report(where, f"it grows to more than {LARGEST_RECORD:,} bytes")
    if len(body) < record.content_length:
        return report(where, f"broken off: {len(body):,} of {record.content_length:,} bytes")
    if kind in _HTML:
        encodings = _library("resiliparse.parse.encoding")
        charset = record.http_charset if is_answer else None
        page = encodings.bytes_to_str(body, charset or encodings.detect_encoding(body))
        return _library("resiliparse.extract.html2text").extract_plain_text(page, main_content=True)
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        return report(where, f"not UTF-8 at byte {error.start} of the text")


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UserError(f'web archives need {package}, which is not installed: pip install "k2jax[warc]"') from None
