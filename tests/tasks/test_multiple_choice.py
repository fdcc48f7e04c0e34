"""Questions with choices in the forms in which benchmarks publish them, which each test writes as files."""

import csv
import json

from pyarrow import Table, parquet
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import oracles
from k2jax.errors import UserError

RECORDS = {
    "mmlu": {"question": "2+2?", "subject": "sums", "choices": ["3", "4", "5", "6"], "answer": 1},
    "mmlu_pro": {"question": "2+2?", "category": "sums", "options": ["3", "4"], "answer": "B", "answer_index": 1},
    "c_eval": {"question": "2+2?", "A": "3", "B": "4", "C": "5", "D": "6", "answer": "B"},
    "arc": {"question": "2+2?", "choices": {"text": ["3", "4"], "label": ["1", "2"]}, "answerKey": "2"},
    "hellaswag": {"ctx": "2+2?", "endings": ["3", "4", "5", "6"], "label": "1", "activity_label": "sums"},
    "gpqa": {"Question": "2+2?", "Correct Answer": "4", **{f"Incorrect Answer {n}": str(4 + n) for n in (1, 2, 3)},
             "High-level domain": "sums"},
}  # fmt: skip


def written(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("form", RECORDS)
def test_every_form_is_read_with_its_right_answer(form, tmp_path):
    [task] = load_tasks("multiple_choice", [f"path={written(tmp_path / 'q.jsonl', RECORDS[form])}"], "all")
    choices = task.metadata["choices"]
    assert choices["ABCDEFGHIJ".index(task.metadata["answer"])] == "4"
    assert task.instruction[0]["content"].startswith(f"2+2?\nA. {choices[0]}\nB. {choices[1]}")
    assert task.domain == ("sums" if form not in ("c_eval", "arc") else "multiple_choice")


def test_the_order_of_gpqas_choices_is_drawn_and_stays(tmp_path):
    records = [RECORDS["gpqa"] | {"Question": f"{number}?"} for number in range(40)]
    path = written(tmp_path / "gpqa.jsonl", *records)
    letters = [task.metadata["answer"] for task in load_tasks("multiple_choice", [f"path={path}"], "all")]
    assert set(letters) == set("ABCD")
    assert letters == [task.metadata["answer"] for task in load_tasks("multiple_choice", [f"path={path}"], "all")]


def test_a_folder_of_mmlus_own_files_with_examples(tmp_path):
    for part, rows in (("dev", [["1+1?", "1", "2", "3", "4", "B"]]), ("test", [["2+2?", "4", "4,5", "4", "6", "A"]])):
        (tmp_path / part).mkdir()
        with open(tmp_path / part / f"abstract_algebra_{part}.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)
    options = [f"path={tmp_path / 'test'}", f"examples={tmp_path / 'dev'}", "shots=1", "style=letter"]
    [task] = load_tasks("multiple_choice", options, "all")
    assert (task.id, task.domain) == ("abstract_algebra_test/1", "abstract_algebra")
    asked = task.instruction[0]["content"]
    assert asked == "1+1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: B\n\n2+2?\nA. 4\nB. 4,5\nC. 4\nD. 6\nAnswer:"
    assert task.metadata["continuations"] == [" A", " B", " C", " D"]
    with pytest.raises(UserError, match="has 1 examples of 'abstract_algebra', and not 2"):
        load_tasks("multiple_choice", [*options[:2], "shots=2"], "all")


def test_choices_by_their_text_are_not_shown(tmp_path):
    path = written(tmp_path / "q.jsonl", RECORDS["hellaswag"])
    [task] = load_tasks("multiple_choice", [f"path={path}", "style=text"], "all")
    assert task.instruction[0]["content"] == "2+2?"
    assert task.metadata["continuations"] == [" 3", " 4", " 5", " 6"]


def test_tables_of_parquet_and_csv_are_read_as_lines_of_json_are(tmp_path):
    parquet.write_table(Table.from_pylist([RECORDS["mmlu"]]), tmp_path / "q.parquet")
    with open(tmp_path / "q.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, RECORDS["c_eval"])
        writer.writeheader()
        writer.writerow(RECORDS["c_eval"])
    parquet_task, csv_task = (load_tasks("multiple_choice", [f"path={tmp_path / name}"], "all")[0]
                              for name in ("q.parquet", "q.csv"))  # fmt: skip
    assert parquet_task.instruction == csv_task.instruction
    (tmp_path / "gsm8k.csv").write_text('question,answer\n"2 apples, and 2?",2+2\\n#### 4\n')
    [problem] = load_tasks("math", [f"path={tmp_path / 'gsm8k.csv'}"], "all")
    assert problem.metadata["answer"] == "4" and "2 apples, and 2?" in problem.instruction[0]["content"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"answer": 4}, "its answer 4 is none of 4 choices"),
        ({"answer": "X"}, "its answer 'X' is none of 4 choices"),
        ({"answer": ""}, "its answer '' is none of 4 choices"),
        ({"choices": ["4"]}, "it has no 2 to 26 choices"),
        ({"choices": [4, 5]}, "a choice is no text"),
        ({"question": " "}, "its question is no text"),
    ],
)
def test_a_record_that_is_no_question_is_refused_in_one_line(change, why, tmp_path):
    path = written(tmp_path / "q.jsonl", RECORDS["mmlu"], RECORDS["mmlu"] | change)
    with pytest.raises(UserError, match=f"record 2 of .*q.jsonl is no question: {why}"):
        load_tasks("multiple_choice", [f"path={path}"], "all")


def test_broken_tables_are_refused_in_one_line(tmp_path):
    for name, content, why in (
        ("short.csv", b"question,answer\nonly one\n", "row 2 of .*short.csv has 1 cells, and not 2"),
        ("bytes.csv", b"question,answer\n\xff,1\n", "is no CSV in UTF-8"),
        ("no.parquet", b"PAR1", "not readable as parquet"),
        ("gone.csv", None, "cannot read"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"math: .*{why}"):
            load_tasks("math", [f"path={tmp_path / name}"], "all")


def test_the_oracle_earns_1_and_silence_nothing(tmp_path, check):
    path = written(tmp_path / "q.jsonl", *RECORDS.values())
    check(load_tasks("multiple_choice", [f"path={path}"], "all"), oracles.get("multiple_choice"))
