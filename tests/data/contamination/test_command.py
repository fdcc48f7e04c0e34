"""``python -m k2jax.data contamination`` on files, and what evaluation sets are read from."""

import gzip
import json
import random

import pyarrow
import pyarrow.parquet
import pytest

from k2jax.cli import parse
from k2jax.data.__main__ import define, main
from k2jax.data.contamination.evaluation_items import read_items
from k2jax.data.contamination.marking import character_span
from tests.data.duplicates.made import vocabulary
from tests.refusal import refused

WORDS = vocabulary(12)


def asked(capsys, *arguments) -> str:
    values, positional = parse(["data", "contamination", *arguments], define, "", ("COMMAND", "NAME"), 1)
    assert main(values, *positional) == 0
    return capsys.readouterr().out


def text_of(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


@pytest.fixture
def folder(tmp_path):
    """Two files of documents; the evaluation sets lie beside them, as JSON lines and as Parquet."""
    questions = [text_of(seed, 40) for seed in range(10)]
    lines = [{"question": question, "answer": text_of(50 + n, 3), "id": n} for n, question in enumerate(questions)]
    (tmp_path / "maths.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"question": "so?"}]))
    table = pyarrow.Table.from_pylist([{"prompt": text_of(100 + n, 30)} for n in range(5)])
    pyarrow.parquet.write_table(table, tmp_path / "code.parquet")
    texts = [text_of(200 + n, 120) for n in range(12)]
    texts[4] = f"{text_of(300, 60)}\u2026 \u00c9t\u00e9! **{questions[2].upper()}**, {text_of(301, 60)}"
    texts[9] += "\n" + text_of(103, 30).replace(" ", "\n")
    texts[10] = texts[4]
    documents = tmp_path / "documents"
    documents.mkdir()
    for name, begin in (("a", 0), ("b", 6)):
        records = [{"id": f"d{begin + n}", "text": text} for n, text in enumerate(texts[begin : begin + 6])]
        (documents / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path, texts, questions


def lines_of(folder) -> list[dict]:
    files = sorted((folder / "attributes/contamination").glob("*.jsonl.gz"))
    assert [file.name for file in files] == ["a.jsonl.gz", "b.jsonl.gz"]
    return [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]


def test_documents_that_hold_items_are_marked_where_they_do(folder, capsys):
    root, texts, questions = folder
    arguments = [
        f"--documents={root}/documents",
        f"--against={root}/maths.jsonl,{root}/code.parquet",
        f"--attributes={root}/attributes",
        f"--cache_dir={root}/cache",
        "--workers=1",
    ]
    said = asked(capsys, *arguments)
    lines = lines_of(root)
    assert [line["id"] for line in lines] == [f"d{n}" for n in range(12)]
    assert [n for n, line in enumerate(lines) if line["attributes"]] == [4, 9, 10]
    [[begin, end, score]] = lines[4]["attributes"]["contamination__maths"]
    assert texts[4][begin:end] == questions[2].upper() and score == pytest.approx(1)
    assert lines[4]["matches"] == [{"item": "maths/2", "score": pytest.approx(1), "answered": False}]
    assert list(lines[9]["attributes"]) == ["contamination__code"]
    assert "3 of 12 documents hold an item" in said and "1 questions have fewer than 8 words" in said
    assert " ".join(said.split()).count("maths 11 1 9.09 % 2") == 1
    before = [file.read_bytes() for file in sorted((root / "attributes/contamination").iterdir())]
    stored = {path: path.stat().st_mtime_ns for path in (root / "cache/contamination").iterdir()}
    assert asked(capsys, *arguments).count("hold an item") == 1
    assert {path: path.stat().st_mtime_ns for path in stored} == stored, "nothing is looked for twice"
    assert before == [file.read_bytes() for file in sorted((root / "attributes/contamination").iterdir())]


def test_a_dataset_of_tasks_is_an_evaluation_set():
    items = read_items("characters kinds=add3 count=5")
    assert len(items) == 5 and {item.set for item in items} == {"characters"}
    assert all(item.question for item in items)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--documents=x", "--attributes=y"], "--against is required"),
        (["--documents=x", "--attributes=y", "--against=/nowhere.jsonl"], "there are no documents in /nowhere.jsonl"),
        (["--documents=x", "--attributes=y", "--against=z", "--overlap=2"], "overlap is 2"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message, capsys):
    with refused(message):
        asked(capsys, *arguments)


def test_a_set_without_questions_is_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"other": "words"}\n')
    with refused("has no questions in the fields question, prompt"):
        read_items(str(tmp_path / "x.jsonl"))


@pytest.mark.parametrize(
    ("text", "begin", "end", "span"),
    [
        ("one, two;  three! four", 1, 3, "two;  three"),
        ("one, two;  three! four", 3, 4, "four"),
        ("\u00ab\ufb01ne\u00bb caf\u00e9s, \u4f60\u597d (x_1).", 0, 2, "\ufb01ne\u00bb caf\u00e9s"),
        ("\u00ab\ufb01ne\u00bb caf\u00e9s, \u4f60\u597d (x_1).", 2, 4, "\u4f60\u597d"),
    ],
)
def test_words_are_found_again_among_characters(text, begin, end, span):
    assert text[slice(*character_span(text, begin, end))] == span
