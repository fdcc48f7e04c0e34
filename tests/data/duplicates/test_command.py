"""``python -m k2jax.data duplicates`` on files, and the documents of files."""

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from k2jax.cli import parse
from k2jax.data.__main__ import define, main
from k2jax.data.document_files import StageLines, file_parts
from tests.data.duplicates.test_rule import corpus
from tests.refusal import refused


def asked(capsys, *arguments) -> tuple[int, str]:
    values, positional = parse(["data", "duplicates", *arguments], define, "", ("COMMAND", "NAME"), 1)
    code = main(values, *positional)
    return code, capsys.readouterr().out


def record(number: int, text: str) -> dict:
    return {"id": f"doc-{number}", "text": text, "source": "made"}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A compressed file, one in a folder below it and one of Parquet; the first has two lines without a text."""
    texts = corpus(3, 60)
    records = [record(number, text) for number, text in enumerate(texts)]
    documents = tmp_path / "documents"
    (documents / "more").mkdir(parents=True)
    lines = [json.dumps(each) for each in records[:20]] + ['{"id": "none"}', "{broken"]
    (documents / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (documents / "more" / "b.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records[20:40]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records[40:]), documents / "z.parquet")
    return documents


def test_files_become_attributes_beside_them(folder, tmp_path, capsys):
    arguments = [f"--documents={folder}", f"--attributes={tmp_path}/attributes", f"--cache_dir={tmp_path}/cache"]
    code, said = asked(capsys, *arguments, "--workers=1")
    assert code == 0
    lines = {}
    for name in ("a", "more/b", "z"):
        content = gzip.decompress((tmp_path / f"attributes/duplicates/{name}.jsonl.gz").read_bytes())
        lines[name] = [json.loads(line) for line in content.splitlines()]
    assert [len(each) for each in lines.values()] == [22, 20, 20]
    assert [line["id"] for line in lines["more/b"]] == [f"doc-{number}" for number in range(20, 40)]
    assert [line["id"] for line in lines["a"]][20:] == ["none", f"{folder}/a.jsonl.gz:22"]
    removed = sum("keeper" in line for of_file in lines.values() for line in of_file)
    assert f" kept {62 - removed} " in " ".join(said.split())
    assert "no field 'text'" in said and "not JSON" in said and "records have no text" in said
    assert "documents/s" in said and "--- near" in said
    assert "sign: 3 of 3" in said
    stored = list((tmp_path / "cache/duplicates/signed").iterdir())
    assert len(stored) == 3
    before = {path: path.stat().st_mtime_ns for path in stored}
    asked(capsys, *arguments, "--workers=1", "--threshold=0.81", "--numbers=0", "--contained=0")
    assert {path: path.stat().st_mtime_ns for path in before} == before, (
        "documents of the same bands are not signed again"
    )


def test_a_pattern_names_files_from_its_folder(folder, tmp_path):
    names = [part.name for part in file_parts(f"{folder}/**/*.jsonl*", "text")]
    assert names == ["a.jsonl.gz", "more/b.jsonl"]
    assert [part.name for part in file_parts(f"{folder.parent}/*/mo*/*.jsonl", "text")] == ["documents/more/b.jsonl"]
    assert [part.name for part in file_parts(str(folder / "z.parquet"), "text")] == ["z.parquet"]
    keys = {part.key for part in file_parts(str(folder), "text")} | {part.key for part in file_parts(str(folder), "x")}
    assert len(keys) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attributes=x"], "--documents is required"),
        (["--documents=x"], "--attributes is required"),
        (["--documents=/nowhere/*.jsonl", "--attributes=x"], "there are no documents in /nowhere"),
        (["--documents=x", "--attributes=y", "--threshold=0.2"], "0.5 to 1"),
        (["name", "--documents=x", "--attributes=y"], "duplicates takes no name"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message, capsys):
    with refused(message):
        asked(capsys, *arguments)


def test_a_missing_package_is_named(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rensa", None)
    with refused(r'near duplicates need rensa, which is not installed: pip install "k2jax\[prepare\]"'):
        asked(capsys, f"--documents={folder}", f"--attributes={tmp_path}", f"--cache_dir={tmp_path}", "--workers=1")


def test_a_stage_says_its_rate_and_the_time_left():
    now, lines = [0.0], []
    stages = StageLines(lines.append, lambda: now[0])
    for done in range(1, 6):
        now[0] += 4
        stages("sign", done, 5, 1000 * done)
    now[0] += 2
    stages("copies", 1, 1, 4000)
    assert lines == [
        "sign: 2 of 5, 250 documents/s, 12.0 s left",
        "sign: 4 of 5, 250 documents/s, 4.0 s left",
        "sign: 5 of 5, 250 documents/s in 20.0 s",
        "copies: 1 of 1, 2,000 documents/s in 2.0 s",
    ]
