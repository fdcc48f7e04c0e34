"""Scripted policies of the search world: they know what to look for, and read the values from the documents.

The serial one makes a call a turn; the parallel one looks up all rows of a table, or pages of a document, at once. They
bound what is achievable.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
import re

from k2jax.agents.environment import Message
from k2jax.agents.scaffolds.scripted import Script, called, called_all, said, scripted
from k2jax.agents.task import Task
from k2jax.tasks.search_world.dataset import arrivals
from k2jax.tasks.search_world.world import SENTENCES

_PART = re.compile(r"\n\[part \d+ of (\d+)\]$")


def _serial(task: Task) -> Script:
    if "counted" in task.metadata:
        return _count(task)
    if "downloads" in task.metadata:
        return _download(task)
    return _fill(task) if "table" in task.metadata else _follow(task)


def _follow(task: Task) -> Script:
    name = task.metadata["start"]
    for link in task.metadata["links"]:
        name = value_of(link, name, (yield from _read(name)))
    value = value_of(task.metadata["fact"], name, (yield from _read(name)))
    yield said(f"Answer: {value}")


def _fill(task: Task) -> Script:
    texts = []
    for name, *_ in task.metadata["table"]:
        texts.append((yield from _read(name)))
    yield said(_table(task, texts))


def _count(task: Task, at_once: bool = False) -> Script:
    counted = task.metadata["counted"]
    (results,) = yield called("search", query=counted["title"])
    address = _address(counted["title"], results)
    (shown,) = yield called("browse", address=address)
    text = yield from (_whole_at_once if at_once else _whole)(address, shown)
    yield said(f"Answer: {arrivals(text, counted['profession'], counted['year'])}")


def _download(task: Task) -> Script:
    rows = []
    for name, _ in task.metadata["table"]:
        (results,) = yield called("search", query=name)
        (told,) = yield called("download", address=_address(name, results))
        rows.append(f"{name} | {_receipt(told)}")
    yield said("\n".join(rows))


def _receipt(told: str) -> str:
    return told.rpartition(" ")[2]


def _parallel(task: Task) -> Script:
    if "counted" in task.metadata:
        yield from _count(task, at_once=True)
        return
    if "table" not in task.metadata:
        yield from _follow(task)
        return
    names = [name for name, *_ in task.metadata["table"]]
    found = yield called_all([("search", {"query": name}) for name in names])
    addresses = [_address(name, results) for name, results in zip(names, found, strict=True)]
    if "downloads" in task.metadata:
        told = yield called_all([("download", {"address": address}) for address in addresses])
        yield said("\n".join(f"{name} | {_receipt(text)}" for name, text in zip(names, told, strict=True)))
        return
    shown = yield called_all([("browse", {"address": address}) for address in addresses])
    texts = []
    for address, text in zip(addresses, shown, strict=True):
        texts.append((yield from _whole(address, text)))
    yield said(_table(task, texts))


def _read(name: str) -> Generator[Message, list[str], str]:
    """The text of an entity's document, by a search and as many pages as it has."""
    (results,) = yield called("search", query=name)
    address = _address(name, results)
    (shown,) = yield called("browse", address=address)
    return (yield from _whole(address, shown))


def _whole(address: str, shown: str) -> Generator[Message, list[str], str]:
    """The text of a document of which the first part was shown, without its title."""
    end = _PART.search(shown)
    text = _PART.sub("", shown).partition("\n")[2]
    for part in range(2, int(end[1]) + 1 if end else 2):
        (shown,) = yield called("browse", address=address, part=part)
        text += _PART.sub("", shown).partition("\n")[2]
    return text


def _whole_at_once(address: str, shown: str) -> Generator[Message, list[str], str]:
    """The same, but the pages after the first are asked for in one message."""
    end = _PART.search(shown)
    parts = range(2, int(end[1]) + 1 if end else 2)
    others = (yield called_all([("browse", {"address": address, "part": part}) for part in parts])) if parts else []
    return "".join(_PART.sub("", page).partition("\n")[2] for page in (shown, *others))


def _address(name: str, results: str) -> str:
    """The address of the result with a title."""
    for line in results.splitlines():
        address, title, *_ = line.split(" | ")
        if title == name:
            return address
    return ""


def value_of(attribute: str, name: str, text: str) -> str:
    """What a document states about an attribute of an entity; empty where it does not."""
    before, after = SENTENCES[attribute].format(name=name, value="\0").split("\0")
    found = re.search(re.escape(before) + r"([^.]+)" + re.escape(after), text)
    return found[1] if found else ""


def _table(task: Task, texts: Sequence[str]) -> str:
    names, columns = [row[0] for row in task.metadata["table"]], task.metadata["columns"]
    rows = [[name, *(value_of(c, name, text) for c in columns)] for name, text in zip(names, texts, strict=True)]
    return "\n".join(" | ".join(row) for row in rows)


serial = scripted(_serial)
"""A call a turn."""
parallel = scripted(_parallel)
"""All rows of a table, or pages of a document, at once; a chain cannot be shortened."""
