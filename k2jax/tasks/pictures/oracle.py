"""The teacher of questions about pictures in a sandbox: it looks through calls of Python alone.

Each step is a cell that is really run. The colours of the picture are listed, the one that is asked for is binarised,
connected parts are counted and cropped, and what fills its box by half is a triangle. The question, the values
of the four colours and what the cells print decide the answer, so that a wrong reading of pixels is a wrong answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
import itertools
import os
import random
import re
from typing import Any, NamedTuple

from k2jax.agents.environment import EnvironmentMaker, Message
from k2jax.agents.registry import toolsets, verifiers
from k2jax.agents.scripted import Script, called, play, said, scripted
from k2jax.agents.task import Task
from k2jax.drawings.canvas import COLOURS, SHAPES
from k2jax.errors import UserError
from k2jax.tasks.generated import check_share
from k2jax.tasks.pictures.tools import PICTURE, kind_of, question_of
from k2jax.tasks.pictures.verifier import TRUTH

_NEAR = 40
"""Largest difference in a channel of two colours that are taken for one; those of backgrounds are farther from all."""
_LEAST_FULL = {"square": 0.9, "circle": 0.65, "triangle": 0.0}
"""Least share of its box that a shape fills: all of it, pi / 4, or a half, but for pixels of its edge."""
_LOOK = f"""\
import numpy as np
from PIL import Image, ImageDraw

image = Image.open("{PICTURE}").convert("RGB")
for number, colour in sorted(image.getcolors(image.width * image.height), reverse=True):
    print(number, colour)"""
_CROP = """\
part = np.asarray(image.crop({box}), int)
print((np.abs(part - {colour}).max(-1) <= {near}).sum())"""
_BINARISE = """\
def components(mask):
    rest = Image.fromarray(np.uint8(mask) * 255).copy()
    while rest.getbbox():
        before = np.array(rest)
        y, x = np.argwhere(before)[0]
        ImageDraw.floodfill(rest, (int(x), int(y)), 0)
        yield Image.fromarray(before - np.array(rest)).getbbox()

for name, colour in {colours}.items():
    mask = np.abs(np.asarray(image, int) - colour).max(-1) <= {near}
    for left, top, right, bottom in components(mask):
        part = mask[top:bottom, left:right]
        print(name, left, top, right, bottom, part.sum(), round(part.mean(), 2))"""
_LOCATE = """\
for box in {boxes}:
    print([round(1000 * edge / side) for edge, side in zip(box, image.size * 2)])"""
_DESCRIBE = """\
cell = image.width // {across}, image.height // {down}
shapes = {shapes}
for name, box in sorted(shapes, key=lambda shape: (shape[1][1] // cell[1], shape[1][0] // cell[0])):
    print(name, [round(1000 * edge / side) for edge, side in zip(box, image.size * 2)])"""


def picture_demonstrations(tasks: Iterable[Task], direct: float = 0.0, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Conversations ``{"messages": [user, assistant, tool, ..., assistant], "tools": [...]}`` with right answers.

    The calls of a conversation are carried out in a sandbox of its own, by ``bubblewrap``; what the verifier gives less
    than 1 is left out.

    Args:
        tasks: of the dataset ``picture_tools``.
        direct: share of answers without a call, which are right too; 0 is a clean teacher, who always looks.
        seed: of the choice of styles.

    Raises:
        UserError: ``direct`` is no share, or a sandbox cannot be had or failed.
    """
    check_share("direct answers", direct)
    rng, maker, remaining = random.Random(seed), EnvironmentMaker(), iter(tasks)
    while batch := list(itertools.islice(remaining, 2 * (os.cpu_count() or 1))):
        looks = {task.id for task in batch if rng.random() >= direct}
        episodes = asyncio.run(_episodes([task for task in batch if task.id in looks], maker))
        for task in batch:
            messages = episodes[task.id] if task.id in looks else [*task.instruction, said(_direct(task))]
            if verifiers.get(task.verifier)(task, messages[-1]["content"]).value == 1:
                tools = [tool for text in task.tools for tool in toolsets.make(text).tools]
                yield {"messages": messages, "tools": tools}


async def _episodes(tasks: Sequence[Task], maker: EnvironmentMaker) -> dict[str, list[Message]]:
    """The conversations of solutions by the names of their tasks."""
    episodes = await asyncio.gather(*(play(task, maker.make(task), solve) for task in tasks))
    for episode in episodes:
        if episode.status == "masked":
            raise UserError(
                f"the sandbox of the task {episode.task!r} failed: {episode.error}; see what this machine lacks by "
                "python -m k2jax.sandbox check"
            )
    return {episode.task: [node.message for node in episode.nodes] for episode in episodes}


def _direct(task: Task) -> str:
    """The answer, of whoever does not look."""
    truth = task.metadata[TRUTH]
    return "".join(map(_written, truth)) if isinstance(truth, list) else str(truth)


def _written(box: Sequence[int]) -> str:
    return f"[{','.join(map(str, box))}]"


class _Part(NamedTuple):
    """A connected part of one colour."""

    colour: str
    shape: str
    box: tuple[int, ...]
    area: int


def _solution(task: Task) -> Script:
    """The calls of a solution, each after what the one before has printed, and the answer."""
    question, kind = question_of(task), kind_of(task)
    colour, shape = re.search(rf"\b({'|'.join(COLOURS)}|there)(?: ({'|'.join(SHAPES)})s)?", question).groups()
    [listed] = yield called("python", "I list the colours of the picture.", code=_LOOK)
    colours = _colours(listed, COLOURS if kind == "describe" else (colour,))
    if kind == "crop":
        box = tuple(map(int, re.findall(r"(?:column|row) (\d+)", question)))
        code = _CROP.format(box=box, colour=colours.get(colour), near=_NEAR)
        [number] = yield called("python", f"I crop the part and count what is {colour}.", code=code)
        yield said(number)
        return
    code = _BINARISE.format(colours=colours, near=_NEAR)
    [printed] = yield called("python", "I binarise by colour and measure what is connected.", code=code)
    parts = [part for part in _parts(printed) if shape in (None, part.shape)]
    if kind == "count":
        yield said(str(len(parts)))
        return
    words = "I add up." if kind == "area" else "I express the boxes in thousandths."
    [result] = yield called("python", words, code=_final_cell(kind, question, parts))
    yield said(re.sub(r" (?=[0-9\[])", "", result.replace("\n", "")))


solve = scripted(_solution)
"""The policy of the clean teacher."""


def _colours(listed: str, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Colours of a picture by the names that are asked for; those that it has not are left out."""
    seen = [tuple(map(int, channels)) for channels in re.findall(r"\((\d+), (\d+), (\d+)\)", listed)]
    near = {name: [colour for colour in seen if _distance(colour, COLOURS[name]) <= _NEAR] for name in names}
    return {name: found[0] for name, found in near.items() if found}


def _distance(one: Sequence[int], other: Sequence[int]) -> int:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _parts(printed: str) -> Iterator[_Part]:
    """What the binarising cell prints, line by line; nothing where it has failed."""
    for colour, numbers, full in re.findall(r"^(\w+)((?: \d+){5}) ([\d.]+)$", printed, re.MULTILINE):
        *box, area = map(int, numbers.split())
        shape = next(shape for shape, least in _LEAST_FULL.items() if float(full) >= least)
        yield _Part(colour, shape, tuple(box), area)


def _final_cell(kind: str, question: str, parts: Sequence[_Part]) -> str:
    """The cell that makes the answer of what was measured."""
    if kind == "area":
        return " + ".join(str(part.area) for part in parts) or "0"
    if kind == "locate":
        return _LOCATE.format(boxes=[part.box for part in parts])
    across, down = re.search(r"grid of (\d+) x (\d+)", question).groups()
    shapes = [(f"{part.colour} {part.shape}", part.box) for part in parts]
    return _DESCRIBE.format(across=across, down=down, shapes=shapes)
