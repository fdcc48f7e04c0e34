"""Lines of JSON that would become many times as long in memory are corrupt records; those behind them are read."""

import pytest

from k2jax.files import readers
from k2jax.files.readers import jsonl

HONEST = b'{"text": "honest"}'


def read(tmp_path, *lines):
    """Texts and reasons of a file of these lines."""
    path, reasons = tmp_path / "a.jsonl", []
    path.write_bytes(b"\n".join(lines))
    return [text for _, text in jsonl(path, "text", lambda _, why: reasons.append(why))], reasons


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (b"[],", "more than 1,000 JSON values"),
        (b'{"":{}},', "more than 1,000 JSON values"),
        (b'"\xf0\x9f\x98\x80",', "longer than 4,000 bytes, with characters beyond U+FFFF"),
        (b'"\\ud83d\\ude00",', "longer than 4,000 bytes, with characters beyond U+FFFF"),
    ],
)
def test_a_line_that_grows_in_memory_is_a_corrupt_record(part, words, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MOST_VALUES", 1_000)
    monkeypatch.setattr(readers, "LARGEST_WIDE", 4_000)
    count = 700 if b'"' in part and b"{" not in part else 2_000
    line = b'{"text": "x", "more": [' + part * count + b"0]}"
    texts, reasons = read(tmp_path, line, HONEST)
    assert texts == ["honest"] and reasons == [words]


def test_long_lines_that_do_not_grow_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MOST_VALUES", 1_000)
    monkeypatch.setattr(readers, "LARGEST_WIDE", 4_000)
    lines = [b'{"text": "' + part * 3_000 + b'"}' for part in (b"[],", "\u6708".encode())]
    texts, reasons = read(tmp_path, *lines)
    assert [len(text) for text in texts] == [9_000, 3_000] and not reasons
