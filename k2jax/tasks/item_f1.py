"""The verifier of tables: Item-F1 over the cells that an answer fills."""

from __future__ import annotations

from k2jax.agents.task import Task
from k2jax.agents.verifier import judges_every_answer
from k2jax.trajectory import Reward


@judges_every_answer(lambda task: "\n".join("|".join(map(str, row)) for row in task.metadata["table"]), worth=None)
def item_f1(task: Task, answer: str) -> Reward:
    """Harmonic mean of the shares of stated cells that are right, and of wanted cells that are stated, in [0, 1].

    A cell is right in the row of its name and in its column. The column of names counts for nothing by itself, a row
    that comes twice counts as wrong the second time, and lines without ``|`` are not read.
    """
    wanted = {_plain(name): [_plain(cell) for cell in cells] for name, *cells in task.metadata["table"]}
    stated = right = 0
    for line in answer.splitlines():
        name, *cells = map(_plain, line.strip().strip("|").split("|"))
        if not cells or name == "name" or not name.strip("-: "):
            continue
        stated += len(cells)
        right += sum(a == b for a, b in zip(cells, wanted.pop(name, ()), strict=False))
    total = sum(len(row) - 1 for row in task.metadata["table"])
    f1 = 2 * right / (stated + total) if right else 0.0
    return Reward(f1, {"precision": right / max(1, stated), "recall": right / total})


def _plain(cell: str) -> str:
    return " ".join(cell.split()).casefold()
