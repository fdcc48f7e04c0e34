"""Item-F1, Row-F1 and success of tables, against every pairing of rows."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.registry import verifiers
from k2jax.agents.task import Task
from k2jax.errors import UserError

CITIES = {"table": [["Paris", "2020", "1,000"], ["Paris", "2021", "7.50"], ["Rome", "2020", ""]],
          "columns": ["city", "year", "count"], "unique_columns": ["city", "year"]}  # fmt: skip
PERFECT = "Rome|2020|\nparis|2021|7.5\nParis | 2020 | 1000"


def reward(answer, **metadata):
    return verifiers.get("item_f1")(Task("t", "d", (), "item_f1", metadata=metadata), answer)


@pytest.mark.parametrize(
    ("metadata", "answer"),
    [
        (CITIES, PERFECT),
        (CITIES, f"| City | Year | Count |\n|:---|---|---:|\n{PERFECT}"),
        (CITIES, f"Town|When|How many\n---|---|---\n{PERFECT}\n\nThat is all."),
        (CITIES, "count | city | year\n1000|Paris|2020\n7.5|Paris|2021\n|Rome|2020"),
        (CITIES, "| How many | Year | City |\n|-|-|-|\n".replace("How many", "Count") + "|1000|2020|Paris|\n"
                 "|7.5|2021|Paris|\n||2020|Rome|"),
        ({"table": [["Paris", "2020", "A"], ["Paris", "2021", "B"]]}, "Paris|2021|B\nParis|2020|A"),
        ({"table": [["a", "1", ""]]}, "a|1|"),
        ({"table": [["a", "1", ""]]}, "|a|1||"),
        ({"table": [["a"], ["b"]]}, "b\na"),
        ({"table": [["a"], ["b"]]}, "| name |\n| --- |\n| a |\n| b |"),
        ({"table": [["a", 1000]]}, "a|1,000.0"),
        ({"table": [["name", "1"]]}, "name|1"),
        ({"table": [["name", "1"]], "columns": ["rank"]}, "name|rank\nname|1"),
        ({"table": [["p|q", "x"]]}, r"p\|q|x"),
        ({"table": [["caf\u00e9", "x"]]}, "cafe\u0301|x"),
        ({"table": [["a", "1"], ["b", "2"]]}, "City|Population\n---|---\na|1\nb|2"),
    ],
)  # fmt: skip
def test_a_perfect_table_is_worth_one_in_every_measure(metadata, answer):
    found = reward(answer, **metadata)
    assert (found.value, set(found.parts.values())) == (1.0, {1.0}), found


@pytest.mark.parametrize(
    ("answer", "value", "parts"),
    [
        ("Paris|2020|1000", 1 / 2, {"row_f1": 1 / 2, "item_f1": 1 / 2, "success": 0}),
        ("Paris|2020|9\nParis|2021|7.5\nRome|2020|", 2 / 3, {"row_f1": 2 / 3, "item_f1": 8 / 9, "success": 0}),
        (f"{PERFECT}\nOslo|2020|5", 6 / 7, {"precision": 3 / 4, "recall": 1, "row_f1": 6 / 7, "success": 0}),
        (f"{PERFECT}\nRome|2020|", 6 / 7, {"success": 0}),
        ("Paris|2020|1000|more\nParis|2021|7.5\nRome|2020|", 6 / 7, {"success": 0}),
        ("Paris|2020|01000\nParis|2021|7.5\nRome|2020|", 2 / 3, {}),
        ("Paris|2019|1000", 0, {"item_f1": 0}),
    ],
)
def test_cells_rows_and_tables_that_are_partly_right(answer, value, parts):
    found = reward(answer, **CITIES)
    assert found.value == pytest.approx(value)
    assert {name: found.parts[name] for name in parts} == pytest.approx(parts)


CELL = st.sampled_from(["x", "y", ""])
TABLES = st.lists(st.tuples(st.sampled_from("ab"), CELL, CELL), min_size=1, max_size=4)


@settings(deadline=None, max_examples=80)
@given(truth=TABLES, stated=TABLES, seed=st.integers(0, 9))
def test_rows_of_one_key_are_paired_as_well_as_possible(truth, stated, seed):
    found = reward("\n".join("|".join(["", *row, ""]) for row in stated), table=[list(row) for row in truth])
    longer, shorter = sorted((truth, stated), key=len, reverse=True)
    cells = lambda a, b: (a[0] == b[0]) * sum(x == y for x, y in zip(a[1:], b[1:], strict=True))  # noqa: E731
    best = max(sum(map(cells, shorter, order)) for order in itertools.permutations(longer, len(shorter)))
    assert found.value == pytest.approx(2 * best / (2 * len(truth) + 2 * len(stated)))
    shuffled = random.Random(seed).sample(truth, len(truth))
    again = reward("\n".join("|".join(["", *row, ""]) for row in shuffled), table=[list(row) for row in truth])
    assert again.value == again.parts["success"] == 1


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"table": []}, "rows of one length"),
        ({"table": [["a", "b"], ["c"]]}, "rows of one length"),
        ({"table": [["a", "b"]], "columns": ["x", "y", "z"]}, "2 cells in a row and 3 columns"),
        ({"table": [["a", "b"]], "columns": ["x", "y"], "unique_columns": ["w"]}, "among its columns x, y"),
    ],
)
def test_a_truth_that_is_no_table_is_refused(metadata, message):
    with pytest.raises(UserError, match=message):
        reward("a|b", **metadata)
