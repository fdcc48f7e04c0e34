"""Tables in text: Markdown, or lines of cells with ``|`` between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import re
import unicodedata

_RULE = re.compile(r":?-+:?")
_BAR = re.compile(r"(?<!\\)\|")
_NUMBER = re.compile(r"([+-]?)([0-9]{1,3}(?:,[0-9]{3})+|0|[1-9][0-9]*)(?:\.([0-9]+))?")


def plain_cell(cell: str) -> str:
    """A cell as it is compared: without case, blanks and forms of Unicode; equal numbers are equal texts.

    ``1,000``, ``+1000`` and ``1000.0`` are ``1000``. What begins with further zeros is no number but a code.
    """
    text = unicodedata.normalize("NFC", " ".join(cell.split()).casefold())
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    fraction = (number[3] or "").rstrip("0")
    value = number[2].replace(",", "") + (f".{fraction}" if fraction else "")
    return f"-{value}" if number[1] == "-" and value != "0" else value


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |"
                     for line in lines)  # fmt: skip


def read_table(
    text: str, columns: Sequence[str], is_row: Callable[[tuple[str, ...]], bool]
) -> tuple[list[tuple[str, ...]], int]:
    r"""The rows of the tables in a text, their cells in the order of the columns.

    A line is a header where a line of hyphens follows, where each of its cells is the name of a column, or where one is
    and the line is no row of the truth. Columns are taken by the names of the header, those that it names otherwise in
    their order, and by their place where there is no header. Lines without ``|`` are not read, but in a table of
    one column. A bar in a cell is ``\|``.

    Args:
        text: an answer.
        columns: their names.
        is_row: whether plain cells, one for each column, are a row that the truth has.

    Returns:
        Rows of plain cells, missing ones empty, and the number of cells beyond the columns.
    """
    width, names = len(columns), [plain_cell(name) for name in columns]
    lines = [_cells(line, width) for line in text.splitlines() if "|" in line or (width == 1 and _is_cell(line))]
    order, rows, extra = list(range(width)), [], 0
    for number, cells in enumerate(lines):
        if _is_rule(cells):
            continue
        if _is_header(cells, lines[number + 1 : number + 2], names, is_row):
            order = _order(cells, names)
            continue
        row = [""] * width
        for place, cell in zip(order, cells, strict=False):
            if place >= 0:
                row[place] = cell
        rows.append(tuple(row))
        extra += len(cells) - sum(place >= 0 for place in order[: len(cells)])
    return rows, extra


def _is_cell(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("```")


def _cells(line: str, width: int) -> list[str]:
    cells = [plain_cell(cell.replace("\\|", "|")) for cell in _BAR.split(line)]
    if len(cells) > width and not cells[0]:
        cells = cells[1:]
    return cells[:-1] if len(cells) > width and not cells[-1] else cells


def _is_rule(cells: Sequence[str]) -> bool:
    return all(_RULE.fullmatch(cell) for cell in cells)


def _is_header(
    cells: Sequence[str],
    following: Sequence[Sequence[str]],
    names: Sequence[str],
    is_row: Callable[[tuple[str, ...]], bool],
) -> bool:
    if following and _is_rule(following[0]):
        return True
    named = [cell in names for cell in cells if cell]
    padded = tuple([*cells, *[""] * len(names)][: len(names)])
    return bool(named) and any(named) and ((all(named) and len(named) > 1) or not is_row(padded))


def _order(header: Sequence[str], names: Sequence[str]) -> list[int]:
    """For each cell of a header the number of its column; -1 for cells beyond the columns."""
    order = [names.index(cell) if cell in names and cell not in header[:place] else -1
             for place, cell in enumerate(header)]  # fmt: skip
    left = [column for column in range(len(names)) if column not in order]
    return [place if place >= 0 else (left.pop(0) if left else -1) for place in order]
