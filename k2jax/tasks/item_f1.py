"""The verifier of tables: Item-F1 over the cells that an answer fills, as WideSearch reads and compares tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.errors import UserError
from k2jax.tasks.markdown_table import plain_cell, read_table, write_table
from k2jax.trajectory import Reward

Row = tuple[str, ...]


class _Truth(NamedTuple):
    columns: list[str]
    key: list[int]  # columns that name a row
    counted: list[int]  # columns whose cells count: all but the key, or the key of a table of keys alone
    rows: list[Row]

    def key_of(self, row: Row) -> Row:
        return tuple(row[column] for column in self.key)

    def is_right(self, row: Row, other: Row) -> list[bool]:
        return [row[column] == other[column] for column in self.counted]


def _perfect(task: Task) -> str:
    truth = _truth_of(task)
    return write_table(truth.columns, [[str(cell) for cell in row] for row in task.metadata["table"]])


@judges_every_answer(_perfect, worth=None)
def item_f1(task: Task, answer: str) -> Reward:
    """Harmonic mean of the shares of stated cells that are right, and of wanted cells that are stated, in [0, 1].

    The metadata are those of WideSearch: ``table`` has the rows of the truth, ``columns`` their names (the first one
    may be left out, and is then ``name``), and ``unique_columns`` those that name a row together, by default the first.
    A cell is right in the row of its key and in its column; of several rows with one key each is compared with the one
    that it fits best, and a row too many counts as wrong. Cells of the key count for nothing by themselves, but in a
    table of keys alone. An answer is a Markdown table or lines of cells, see ``read_table``.

    Returns:
        Item-F1, with the parts ``precision``, ``recall``, ``item_f1`` (where cells of the key count, as in WideSearch),
        ``row_f1`` (of whole rows) and ``success`` (1 where the tables are equal but for the order of their rows).

    Raises:
        UserError: the table of the task is none.
    """
    truth = _truth_of(task)
    keys = {truth.key_of(row) for row in truth.rows}
    rows, extra = read_table(answer, truth.columns, lambda row: truth.key_of(row) in keys)
    pairs = _paired(truth, rows)
    right = sum(sum(truth.is_right(*pair)) for pair in pairs)
    whole = sum(all(truth.is_right(*pair)) for pair in pairs)
    width, of_key = len(truth.counted), len(truth.columns) - len(truth.counted)
    stated, total = len(rows) * width + extra, len(truth.rows) * width
    all_stated, all_total = stated + len(rows) * of_key, total + len(truth.rows) * of_key
    parts = {
        "precision": right / max(1, stated),
        "recall": right / total,
        "item_f1": 2 * (right + len(pairs) * of_key) / (all_stated + all_total),
        "row_f1": 2 * whole / (len(rows) + len(truth.rows)),
        "success": float(whole == len(rows) == len(truth.rows) and not extra),
    }
    return Reward(2 * right / (stated + total), parts)


def _truth_of(task: Task) -> _Truth:
    about = f"the table of the task {task.id!r}"
    table = task.metadata["table"]
    width = len(table[0]) if table else 0
    if not width or any(len(row) != width for row in table):
        raise UserError(f"{about} needs rows of one length, at least one cell each")
    columns = [str(name) for name in task.metadata.get("columns", [""] * (width - 1))]
    columns = ["name", *columns] if len(columns) == width - 1 else columns
    if len(columns) != width:
        raise UserError(f"{about} has {width} cells in a row and {len(columns)} columns; name each column once")
    names = [plain_cell(name) for name in columns]
    unique = [plain_cell(str(name)) for name in task.metadata.get("unique_columns", columns[:1])]
    if not unique or not set(unique) <= set(names):
        raise UserError(f"unique_columns of {about} must be among its columns {', '.join(columns)}")
    key = [names.index(name) for name in unique]
    counted = [column for column in range(width) if column not in key] or key
    return _Truth(columns, key, counted, [tuple(plain_cell(str(cell)) for cell in row) for row in table])


def _paired(truth: _Truth, rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Each row of the truth with a stated one of its key, so that as many cells are right as can be."""
    stated: dict[Row, list[Row]] = defaultdict(list)
    wanted: dict[Row, list[Row]] = defaultdict(list)
    for groups, members in ((stated, rows), (wanted, truth.rows)):
        for row in members:
            groups[truth.key_of(row)].append(row)
    pairs: list[tuple[Row, Row]] = []
    for key, members in wanted.items():
        pairs += _best(truth, members, stated.get(key, []))
    return pairs


def _best(truth: _Truth, wanted: Sequence[Row], stated: Sequence[Row]) -> list[tuple[Row, Row]]:
    if len(wanted) == 1 and stated:
        return [(wanted[0], max(stated, key=lambda row: sum(truth.is_right(wanted[0], row))))]
    if not stated:
        return []
    from scipy.optimize import linear_sum_assignment  # takes as long to import as all the rest of a process

    right_WS = np.array([[sum(truth.is_right(one, other)) for other in stated] for one in wanted])
    return [(wanted[w], stated[s]) for w, s in zip(*linear_sum_assignment(-right_WS), strict=True)]
