"""The objects of a store that a source of text reads: those below a folder, or that fit a pattern."""

from __future__ import annotations

from collections import Counter
import fnmatch
import re

from k2jax.config.schema import SourceConfig
from k2jax.errors import UserError
from k2jax.files.dolma_lines import DOCUMENTS
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.readers import has_lines_of_json

_PATTERN = re.compile(r"[*?[]")
_UNUSUAL = "*.json that have not one object a line"


def listed_objects(name: str, source: SourceConfig, suffixes: tuple[str, ...]) -> tuple[list[ObjectPath], dict]:
    """The objects that are read, by name, and the number of others by the end of their names.

    Args:
        name: of the source.
        source: where they are: an object, a folder, or a pattern with ``*``, ``?`` and ``[]``.
        suffixes: ends of the names that are read, in capitals too.

    Raises:
        UserError: there are none, or the store failed for too long.
    """
    match = _PATTERN.search(source.path)
    if match is None:
        place, pattern = ObjectPath.parse(source.path), None
    else:
        place, pattern = ObjectPath.parse(source.path[: match.start()].rpartition("/")[0]), _translated(source.path)
    below = []
    if source.exclude and pattern is None and (below := list((place / DOCUMENTS).below())):
        place /= DOCUMENTS
    below = below or list(place.below())
    if not below and pattern is None and place.exists():
        return [place.known()], {}
    paths, left_out = [], Counter()
    for path in below:
        if pattern is not None:
            paths += [path] if pattern.fullmatch(str(path)) else []
        elif reason := _left_out(path, place, suffixes):
            left_out[reason] += 1
        else:
            paths.append(path)
    if not paths:
        beside = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise UserError(
            f"source {name!r}: {source.path} holds no objects that are read{f' (only {beside})' if beside else ''}"
        )
    return paths, dict(sorted(left_out.items()))


def _left_out(path: ObjectPath, folder: ObjectPath, suffixes: tuple[str, ...]) -> str:
    """Why an object of a folder is not read; empty where it is."""
    if any(part.startswith(".") for part in path.place[len(folder.place) + 1 :].split("/")):
        return "hidden"
    lower = path.name.lower()
    if not lower.endswith(suffixes):
        return f"*{path.suffix}" if path.suffix else "without an end of the name"
    unsure = suffixes != ("",) and re.search(r"\.json(\.[a-z0-9]+)?$", lower)
    return _UNUSUAL if unsure and not has_lines_of_json(path) else ""


def _translated(pattern: str) -> re.Pattern[str]:
    """A pattern whose ``*`` stays in its segment and whose ``**`` is any number of segments."""
    segments = pattern.split("/")
    parts = []
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "**":
            parts.append(".*" if last else "(?:[^/]+/)*")
            continue
        inner = fnmatch.translate(segment).removeprefix("(?s:").removesuffix(r")\Z").replace(".*", "[^/]*")
        parts.append(inner + ("" if last else "/"))
    return re.compile("".join(parts), re.DOTALL)
