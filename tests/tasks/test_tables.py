"""Questions about tables: a database that reads the tables from the prompt gives the same answers."""

import sqlite3

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.tasks.answer_line import answer_line

KINDS = ("hop2", "hop3", "count", "sum", "oldest")


def answer_of_sqlite(task) -> object:
    """The answer of the task's query over the tables as they stand in the prompt."""
    database = sqlite3.connect(":memory:")
    for block in task.instruction[0]["content"].split("\n\n")[:3]:
        heading, columns, *rows = block.split("\n")
        table = heading.removeprefix("Table ")
        names = columns.split(" | ")
        numbers = ("age", "founded", "population")
        database.execute(f"CREATE TABLE {table} ({', '.join(names)})")
        for row in rows:
            cells = [int(c) if n in numbers else c for n, c in zip(names, row.split(" | "), strict=True)]
            database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(cells))})", cells)
    ((answer,),) = database.execute(task.metadata["sql"]).fetchall()
    return answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [6, 12, 40])
def test_answers_are_those_of_a_database(kind, rows):
    tasks = load_tasks("tables", (f"kinds={kind}", f"rows={rows}", "count=30"))
    answers = [answer_of_sqlite(task) for task in tasks]
    assert answers == [task.metadata["answer"] for task in tasks]
    assert len(set(answers)) > 1
    for task in tasks:
        assert answer_line(task, f"I look it up.\nAnswer: {task.metadata['answer']}").value == 1


@pytest.mark.parametrize(
    ("right", "answer", "value"),
    [
        ("Norland", "Answer: norland.", 1),
        ("Norland", "Answer: Norland and Sudria", 0),
        ("Norland", "Norland", 0),
        ("Norland", "Answer: Norland\nAnswer: Sudria", 0),
        ("Norland", "Answer: Sudria\nAnswer: Norland\n", 1),
        (12000, "Answer: 12,000", 1),
        (12000, "  Answer: 12000.0", 1),
        (12000, "Answer: 1200", 0),
        (0, "Answer:", 0),
        (0, "Answer: NaN", 0),
    ],
)
def test_the_last_marked_line_counts(right, answer, value):
    (task,) = load_tasks("tables", ("count=1",))
    task.metadata["answer"] = right
    assert answer_line(task, answer).value == value
