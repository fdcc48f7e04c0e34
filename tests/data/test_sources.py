import contextlib
import dataclasses
import json
from pathlib import Path
import sys
import types

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.config.schema import SourceConfig
from k2jax.data.sources import CorruptRecords, describe, documents, files
from k2jax.files import readers
from k2jax.files.parquet_pages import page_sizes
from k2jax.files.readers import huggingface
from tests.data.corpora import jsonl_file, text_folder, write_records
from tests.data.images.counting import HITS
from tests.refusal import refused

COLUMNS = {"text": "string", "answer": "string", "image": "image"}


def read(source, on_corrupt="skip"):
    """(texts, reports) of a source."""
    report = CorruptRecords(on_corrupt)
    return [text for _, text in documents("s", source, report)], report.shown


def refuses(source, message, on_corrupt="skip"):
    with refused(message) as error:
        read(source, on_corrupt)
    return str(error.value)


def test_the_standard_library_without_its_tests():
    found = [part.path for part in files("s", SourceConfig())]
    relative = [path.relative_to(found[0].parent).as_posix() for path in found]
    assert relative == sorted(relative)
    assert {"argparse.py", "json/decoder.py", "collections/__init__.py"} <= set(relative)
    assert not [r for r in relative if {"test", "tests", "idle_test", "site-packages"} & set(r.split("/"))]
    texts, reports = read(SourceConfig(max_documents=20))
    assert len(texts) == 20 and not reports and all(texts)


def test_text_from_a_folder_a_file_and_a_glob(tmp_path):
    folder = tmp_path / "corpus"
    text_folder(folder, ["one\r\n", "two é", "", "four"])
    (folder / "sub").mkdir()
    (folder / "sub" / "last.md").write_text("five")
    (folder / ".git").mkdir()
    (folder / ".git" / "hidden").write_text("no")
    assert read(SourceConfig(kind="text", path=str(folder))) == (["one\r\n", "two é", "four", "five"], [])
    assert read(SourceConfig(kind="text", path=str(folder / "0001.txt"))) == (["two é"], [])
    assert read(SourceConfig(kind="text", path=f"{folder}/000[03].txt")) == (["one\r\n", "four"], [])
    assert read(SourceConfig(kind="text", path=f"{folder}/**/*.md")) == (["five"], [])
    assert read(SourceConfig(kind="text", path=str(folder), max_documents=2))[0] == ["one\r\n", "two é"]


def test_a_text_file_that_is_not_utf8_is_reported_with_its_position(tmp_path):
    source = text_folder(tmp_path, ["good", b"two\nlines \xff", "better"])
    texts, reports = read(source)
    assert texts == ["good", "better"]
    assert reports == [f"{tmp_path}/0001.txt, line 2, byte 10: not UTF-8"]
    refuses(source, r"corrupt record in .*0001.txt, line 2, byte 10", "fail")


BAD_LINES = [
    (b'{"text": "a', "not JSON: Invalid control character at column 12"),
    (b'{"text": "\xff"}', "not UTF-8 at byte 10"),
    (b'["text"]', "a JSON list, not an object"),
    (b'{"body": "a"}', "no field 'text', only 'body'"),
    (b'{"text": 5}', "field 'text' is int, not a string"),
    (b'{"text": null}', "field 'text' is null"),
    (b'{"text": "\\ud800"}', "half a surrogate"),
    (b"[" * 100_000, "not usable JSON"),
]


@pytest.mark.parametrize(("line", "why"), BAD_LINES)
def test_a_bad_line_of_json_is_reported_with_its_position(tmp_path, line, why):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "\xc3\xa9"}\n\n' + line + b'\n{"text": "after", "more": 1}')
    source = SourceConfig(kind="jsonl", path=str(path))
    texts, (report,) = read(source)
    assert texts == ["é", "after"]
    assert report.startswith(f"{path}, line 3, byte 16: ") and why in report
    assert refuses(source, "corrupt record", "fail").startswith(f"corrupt record in {path}, line 3, byte 16: ")


def test_jsonl_folders_and_fields(tmp_path):
    for name, text in (("b.jsonl", "two"), ("a.jsonl", "one"), ("notes.txt", "no")):
        write_records(tmp_path / name, [{"body": text}])
    assert read(SourceConfig(kind="jsonl", path=str(tmp_path), field="body")) == (["one", "two"], [])


def parquet_file(path, texts, **options):
    pq.write_table(pa.table({"text": texts, "n": list(range(len(texts)))}), path, **options)
    return SourceConfig(kind="parquet", path=str(path))


def test_parquet_rows(tmp_path):
    source = parquet_file(tmp_path / "x.parquet", ["a", None, "é", "", "d"], row_group_size=2)
    texts, reports = read(source)
    assert texts == ["a", "é", "d"]
    assert reports == [f"{tmp_path}/x.parquet, row 1: field 'text' is null, not a string"]
    refuses(source, "x.parquet, row 1", "fail")


def test_parquet_text_that_is_not_utf8(tmp_path):
    raw = pa.array([b"good", b"\xff\xfe"], pa.binary())
    text = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    texts, reports = read(parquet_file(tmp_path / "x.parquet", text))
    assert texts == ["good"]
    assert reports == [f"{tmp_path}/x.parquet, row 1: not UTF-8 at byte 0 of the text"]


def test_a_broken_row_group_costs_its_rows_only(tmp_path):
    path = tmp_path / "x.parquet"
    rows = [f"text {i}" * 20 for i in range(8)] + [None]
    source = parquet_file(path, rows, row_group_size=3, compression="zstd")
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    texts, reports = read(source)
    assert texts == [f"text {i}" * 20 for i in (0, 1, 2, 6, 7)]
    assert reports[0].startswith(f"{path}, rows 3 to 5: row group 1 is broken: ")
    assert reports[1].startswith(f"{path}, row 8: field 'text' is null")


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_parquet_files_of_every_layout_are_read_whole(tmp_path, compression, version, dictionary):
    texts = [f"{number % 90} {'x' * (number % 700)}" for number in range(5000)]
    layout = {"compression": compression, "data_page_version": version, "use_dictionary": dictionary}
    source = parquet_file(tmp_path / "x.parquet", texts, data_page_size=4096, row_group_size=2000, **layout)
    assert read(source) == (texts, [])


def test_a_few_bytes_of_parquet_that_would_become_gigabytes_are_a_corrupt_record_and_are_not_decompressed(tmp_path):
    """One cell of 80 MB, alone or behind others, in 3 kB; and one long value in every row, in 500 bytes."""
    pool, path = pa.default_memory_pool(), tmp_path / "x.parquet"
    for rows in (["x" * 80_000_000], [*["y"] * 2000, "x" * 70_000_000]):
        pq.write_table(pa.table({"text": rows}), path, compression="zstd")
        rows.clear()
        before = pool.bytes_allocated()
        with pytest.raises(ValueError, match="would become a page of"):
            list(readers.parquet(path, "text", _raise))
        assert path.stat().st_size < 20_000 and pool.bytes_allocated() - before < 10**6
    pq.write_table(pa.table({"text": pa.array(["x" * 2_000_000] * 50).dictionary_encode()}), path, compression="zstd")
    rows = readers.parquet(path, "text", print)
    assert next(rows) and pool.bytes_allocated() - before < 1.2 * readers.LARGEST_RECORD
    assert path.stat().st_size < 1000 and sum(len(text) for _, text in rows) == 49 * 2_000_000


def _raise(where, why):
    raise ValueError(why)


def test_pages_of_parquet_are_bounded_by_what_they_say_themselves_and_not_by_the_footer(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a" * 1000], "other": [["b"]], "n": [1.5]}), path, compression="gzip")
    group = pq.ParquetFile(path).metadata.row_group(0)
    pages = page_sizes(path, group, ("text", "other", "n"))
    assert len(pages) >= 3 and max(page.size for page in pages) >= 1000 > sum(page.stored for page in pages) > 0
    assert page_sizes(path, group, ("n",)) == pages[-len(page_sizes(path, group, ("n",))) :]
    data = bytearray(path.read_bytes())
    for place in range(4, 60):  # a header is broken in every way, and the reader ends
        broken = bytearray(data)
        broken[place : place + 8] = b"\xff" * 8
        path.write_bytes(broken)
        with contextlib.suppress(ValueError):
            page_sizes(path, group, ("text",))


def test_a_line_of_json_that_is_too_long_is_a_corrupt_record_and_the_next_one_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LARGEST_RECORD", 100)
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(('{"text": "a"}', f'{{"text": "{"x" * 5000}"}}', '{"text": "b"}', "y" * 200)))
    texts, reports = read(SourceConfig(kind="jsonl", path=str(path)))
    where = [f"{path}, line 2, byte 14", f"{path}, line 4, byte 5041"]
    assert texts == ["a", "b"] and reports == [f"{each}: longer than 100 bytes" for each in where]


def test_a_truncated_or_foreign_parquet_file_is_one_corrupt_record(tmp_path):
    parquet_file(tmp_path / "b.parquet", ["kept"])
    (tmp_path / "a.parquet").write_bytes((tmp_path / "b.parquet").read_bytes()[:-40])
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "c.parquet")
    texts, reports = read(SourceConfig(kind="parquet", path=str(tmp_path)))
    assert texts == ["kept"]
    assert reports[0].startswith(f"{tmp_path}/a.parquet: not readable as parquet: ")
    assert reports[1] == f"{tmp_path}/c.parquet: no column 'text', only body"


def test_a_hugging_face_data_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "d").mkdir()
    jsonl_file(tmp_path / "d" / "train.jsonl", ["one", "", "two é"])
    source = SourceConfig(kind="huggingface", path=str(tmp_path / "d"))
    assert read(source) == (["one", "two é"], [])
    wrong = refuses(dataclasses.replace(source, split="nowhere"), "cannot load the data set .*, split nowhere: ")
    assert "train" in wrong
    refuses(dataclasses.replace(source, field="body"), "split train, row 0: no field 'body', only 'text'")


def test_a_connection_that_breaks_off_is_never_the_end_of_the_corpus(monkeypatch):
    def stream(path, subset, split, streaming):
        assert (path, subset, split, streaming) == ("org/name", "small", "train", True)
        yield {"text": "one"}
        raise ConnectionError("reset\nby peer")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=stream))
    source = SourceConfig(kind="huggingface", path="org/name", subset="small")
    refuses(source, r"data set org/name \(small\), split train broke off at row 1: reset$")


def test_columns_of_a_hugging_face_data_set_are_not_opened(tmp_path, monkeypatch, port):
    """The paths and URLs in them are data."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows, reasons = tmp_path / "rows", []
    rows.mkdir()
    types = [f"  - {{name: {name}, dtype: {kind}}}" for name, kind in COLUMNS.items()]
    (rows / "README.md").write_text("\n".join(["---", "dataset_info:", "  features:", *types, "---\n"]))
    url = f"http://127.0.0.1:{port}"
    for split, numbers in (("train", (0, 1)), ("test", (2,))):
        records = [{"text": str(n), "answer": "1", "image": f"{url}/{n}.png"} for n in numbers]
        write_records(rows / f"{split}.jsonl", records)

    def column(field):
        report = lambda where, why: reasons.append(why)  # noqa: E731
        return [text for _, text in huggingface(str(rows), "", "train", field, report)]

    assert (column("text"), column("image"), column("none")) == (["0", "1"], [], [])
    assert reasons == 2 * ["field 'image' is dict, not a string"] + 2 * [
        "no field 'none', only 'text', 'answer', 'image'"
    ]
    tasks = load_tasks("math", (f"hub={rows}", "question=text", "answer=answer"))
    assert [task.id for task in tasks] == ["1", "2"] and not HITS


@pytest.mark.parametrize(("kind", "package"), [("parquet", "pyarrow"), ("huggingface", "datasets")])
def test_a_missing_package_names_its_extra(tmp_path, monkeypatch, kind, package):
    (tmp_path / "x.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    refuses(SourceConfig(kind=kind, path=str(tmp_path)), rf'needs {package}, .*pip install "k2jax\[data\]"')


def test_sources_that_are_not_there(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text("")
    refuses(SourceConfig(kind="text", path=str(tmp_path / "no")), "'s': .*/no does not exist")
    refuses(SourceConfig(kind="text", path=str(tmp_path / "*.rst")), r"\*.rst does not exist and matches no files")
    refuses(SourceConfig(kind="text", path=str(tmp_path / "empty")), "empty holds no files")
    refuses(SourceConfig(kind="jsonl", path=str(tmp_path)), r"holds no \*.jsonl files")
    refuses(SourceConfig(kind="text"), r"set data.sources.s.path")
    refuses(SourceConfig(kind="huggingface"), r"set data.sources.s.path")
    refuses(SourceConfig(kind="text", path=str(tmp_path / "blank.txt")), "has no documents in .*blank.txt: nothing")
    bad = text_folder(tmp_path / "bad", [b"\xff", b"\xfe"])
    refuses(bad, r"has no documents .*: 2 records were skipped, the first in .*0000.txt, line 1, byte 0: not UTF-8")


def test_only_the_first_skipped_records_are_printed_and_all_are_counted(tmp_path):
    lines = []
    report = CorruptRecords("skip", lines.append)
    source = text_folder(tmp_path, [b"\xff"] * 150 + ["good"])
    assert len(list(documents("s", source, report))) == 1
    assert (report.count, len(report.shown), len(lines)) == (150, 100, 11)


def test_a_description_changes_with_files_and_settings(tmp_path):
    source = text_folder(tmp_path, ["one", "two"])
    before = describe("s", source)
    assert before == describe("s", source) == json.loads(json.dumps(before))
    assert before != describe("s", dataclasses.replace(source, max_documents=1))
    assert before == describe("s", dataclasses.replace(source, weight=3.0, max_epochs=1.0))
    Path(tmp_path / "0000.txt").write_text("three")
    assert before != describe("s", source)
