"""Readers of web archives, tar files of samples and dolma's folders: texts in order, damage with its place."""

import dataclasses
import gzip
import io
import json
import tarfile

import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data.sources import CorruptRecords, describe, documents
from k2jax.files import readers, text_tars, web_archives
from k2jax.files.content import FileRange
from k2jax.files.dolma_lines import attribute_files, dolma, exclusion
from k2jax.files.text_tars import text_tar
from k2jax.files.web_archives import warc
from tests.refusal import refused

PAGE = "<html><body><nav>menu</nav><p>A <b>wörld</b> of pages</p><script>x()</script></body></html>"


def record(kind, address, body, content_type):
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {address}\r\nWARC-Record-ID: <urn:uuid:{address}>\r\n"
    head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body + b"\r\n\r\n"


def answer(status, content_type, body):
    return f"HTTP/1.1 {status} x\r\nContent-Type: {content_type}\r\n\r\n".encode() + body


def page(status=200, charset="utf-8"):
    return answer(status, f"text/html; charset={charset}", PAGE.encode(charset))


RECORDS = [
    record("warcinfo", "http://info", b"software: x", "application/warc-fields"),
    record("conversion", "http://a", "plain täxt".encode(), "text/plain"),
    record("response", "http://b", page(), "application/http; msgtype=response"),
    record("response", "http://c", page(404), "application/http; msgtype=response"),
    record("response", "http://d", page(charset="latin-1"), "application/http; msgtype=response"),
    record("response", "http://e", answer(200, "image/png", b"\x89PNG"), "application/http; msgtype=response"),
    record("conversion", "http://f", b"\xfc", "text/plain"),
    record("conversion", "http://g", b"the last", "text/plain"),
]
TEXTS = ["plain täxt", "A wörld of pages", "A wörld of pages", "the last"]


def read(reader, path, *arguments):
    found, reported = [], []
    found.extend(reader(path, *arguments, lambda *line: reported.append(": ".join(line))))
    return [text for _, text in found], [line.replace(str(path), "F") for line in reported], found


@pytest.mark.parametrize("compressed", [False, True])
def test_texts_and_pages_of_web_archives(compressed, tmp_path):
    path = tmp_path / "a.warc"
    parts = [gzip.compress(each) if compressed else each for each in RECORDS]
    path.write_bytes(b"".join(parts))
    texts, reported, found = read(warc, path)
    assert texts == TEXTS
    offset = sum(map(len, RECORDS[:6]))
    assert reported == [f"F, record at byte {offset}: not UTF-8 at byte 0 of the text"]
    assert found[0][0] == f"{path}:http://a"
    for cut in (len(parts[-1]) // 2, 8 + 10 * compressed):
        path.write_bytes(b"".join(parts)[:-cut])
        texts, reported, _ = read(warc, path)
        assert texts == TEXTS[:3] and len(reported) == 2
        assert "broken off" in reported[1] or "cannot be read" in reported[1]
    path.write_bytes(b"".join(parts[:2]) + b"\x1f\x8b" + b"garbage" * 9)
    texts, reported, _ = read(warc, path)
    assert texts == TEXTS[:1] and len(reported) == 1 and ": cannot be read: " in reported[0]
    path.write_bytes(b"")
    assert read(warc, path)[:2] == ([], [])


def test_a_record_that_is_or_says_it_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(web_archives, "LARGEST_RECORD", 100)
    path = tmp_path / "a.warc.gz"
    large = record("conversion", "http://x", b"x" * 101, "text/plain")
    path.write_bytes(b"".join(map(gzip.compress, [large, RECORDS[1]])))
    assert read(warc, path)[:2] == (["plain täxt"], ["F, record at byte 0: longer than 100 bytes"])


def tar(members, mode="w"):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:
        for name, body in members:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return content.getvalue()


MEMBERS = [
    ("s/1.txt", "öne".encode()),
    ("s/1.jpg", b"\xff\xd8"),
    ("s/2.json", b'{"text": "two"}'),
    ("s/3.txt", b"\xff"),
    ("s/4.json", b"{"),
    ("s/5.json", b'{"other": 1}'),
    ("s/6.TXT", b"six"),
]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_texts_of_tar_files(mode, tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    path.write_bytes(tar(MEMBERS, mode))
    texts, reported, found = read(text_tar, path, "text")
    assert texts == ["öne", "two", "six"] and found[1][0] == f"{path}:s/2.json"
    assert [line.split(":")[0] for line in reported] == [f"F, member at byte {1024 * place}" for place in (3, 4, 5)]
    assert reported[0].endswith("not UTF-8 at byte 0 of the text") and "not usable JSON" in reported[1]
    whole = path.read_bytes()
    path.write_bytes(whole[: 1024 * 2 + 600 if mode == "w" else len(whole) // 2])
    texts, reported, _ = read(text_tar, path, "text")
    assert texts == ["öne", "two"][: len(texts)] and len(reported) == 1 and "cannot be read" in reported[0]
    path.write_bytes(b"not a tar" * 100)
    texts, reported, _ = read(text_tar, path, "text")
    assert texts == [] and len(reported) == 1
    monkeypatch.setattr(text_tars, "LARGEST_RECORD", 3)
    path.write_bytes(tar([("1.txt", b"long"), ("2.txt", b"two")], mode))
    assert read(text_tar, path, "text")[:2] == (["two"], ["F, member at byte 0: longer than 3 bytes"])


def write_lines(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in values)
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


def read_dolma(path, exclude):
    part = FileRange(path, attributes=attribute_files([path], exclude)[0])
    texts, reported, found = read(dolma, part, "text", exclude)
    return texts, [line.replace(str(path), "F") for line in reported], found


def test_dolmas_documents_without_those_that_attributes_exclude(tmp_path):
    texts = [{"id": f"d{number}", "text": f"text {number}", "source": "s"} for number in range(5)]
    for name in ("x.jsonl.gz", "sub/y.jsonl"):
        write_lines(tmp_path / "documents" / name, texts)
        spans = [[], [[0, 6, 0.4]], [[0, 6, 0.9]], [[0, 3, 0.1], [3, 6, 0.6]], []]
        marks = [{"id": f"d{n}", "attributes": {"near": each, "other": 3}} for n, each in enumerate(spans)]
        write_lines(tmp_path / "attributes/dups" / name, marks)
    path = tmp_path / "documents/x.jsonl.gz"
    texts_of = {
        (): [0, 1, 2, 3, 4],
        ("dups/near",): [0, 4],
        ("dups/near>=0.5",): [0, 1, 4],
        ("dups/near >= 0.9", "dups/missing"): [0, 1, 3, 4],
        ("dups/other",): [0, 1, 2, 3, 4],
    }
    for exclude, kept in texts_of.items():
        texts, reported, found = read_dolma(path, exclude)
        assert texts == [f"text {number}" for number in kept] and not reported
        assert [name for name, _ in found] == [f"d{number}" for number in kept]
    source = SourceConfig(kind="jsonl", path=str(tmp_path), exclude=("dups/near",))
    assert [name for name, _ in documents("s", source, CorruptRecords())] == ["d0", "d4", "d0", "d4"]
    before = describe("s", source)
    write_lines(
        tmp_path / "attributes/dups/x.jsonl.gz", [{"id": "d0", "attributes": {}}, {"id": "d7", "attributes": {}}, 3]
    )
    assert describe("s", source) != before, "other attributes, other documents"
    texts, reported, _ = read_dolma(path, ("dups/near",))
    assert texts == ["text 0"] and len(reported) == 4
    assert "line 2" in reported[0] and reported[0].endswith("is of the document 'd7'")
    assert "line 3" in reported[1] and "no object with attributes" in reported[1]
    assert reported[2].endswith("its attributes end before it")
    with refused("has no attributes in .*attributes/none/sub/y.jsonl: write them, or take them out of exclude"):
        describe("s", dataclasses.replace(source, exclude=("none/a",)))
    (tmp_path / "loose.jsonl").write_bytes(b'{"id": "d0", "text": "a"}')
    with refused("exclude reads attributes beside a folder 'documents', and .*loose.jsonl is in none"):
        describe("s", dataclasses.replace(source, path=str(tmp_path / "loose.jsonl")))
    for wrong in ("near", "/near", "dups/", "dups/near>=x", "../near"):
        with refused("write TAGGER/ATTRIBUTE or TAGGER/ATTRIBUTE>=0.5"):
            exclusion(wrong)


def test_kinds_of_archives_are_known_by_their_names(tmp_path):
    (tmp_path / "b.WARC.gz").write_bytes(b"".join(map(gzip.compress, RECORDS)))
    (tmp_path / "a.tgz").write_bytes(tar(MEMBERS, "w:gz"))
    (tmp_path / "c.txt").write_bytes(b"left out")
    source = SourceConfig(kind="archive", path=str(tmp_path))
    assert [text for _, text in documents("s", source, CorruptRecords())] == ["öne", "two", "six", *TEXTS]


def test_datatroves_lines_are_read_as_any(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    write_lines(path, [{"text": "one", "id": "1", "metadata": {"url": "x"}}])
    assert read(readers.jsonl, path, "text")[0] == ["one"]
