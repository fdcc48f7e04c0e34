"""One table tells what a file is, to readers of data and to readers of what must be text."""

import bz2
import gzip
import lzma

import pytest

from k2jax.errors import UserError
from k2jax.files.content import text_of_file
from k2jax.files.magic import COMPRESSED, kind_of
from k2jax.files.whole import read_whole

TEXT = b'{"text": "hello"}\n'
CONTENTS = {
    "gzip": gzip.compress(TEXT),
    "bzip2": bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
    "UTF-16": TEXT.decode().encode("utf-16"),
    "UTF-32": TEXT.decode().encode("utf-32"),
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\n",
    "a web page": b"\n <!DOCTYPE html>",
    "zip": b"PK\x03\x04" + bytes(60),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_of_another_kind_is_no_text_and_its_kind_is_named(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(CONTENTS[name])
    with pytest.raises(UserError, match=name):
        read_whole(path, 1 << 20)


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz"])
def test_data_are_read_as_their_first_bytes_say(name, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(CONTENTS[name])
    assert text_of_file(path) == TEXT and kind_of(CONTENTS[name]).end in COMPRESSED


def test_a_text_is_of_no_kind(tmp_path):
    (tmp_path / "a").write_bytes(TEXT)
    assert read_whole(tmp_path / "a", 100) == text_of_file(tmp_path / "a") == TEXT and kind_of(b"") is None
