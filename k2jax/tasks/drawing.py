"""Problems that are drawn at random: distinct ones of a split, of kinds that are a maker's name and a size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import random
import re
from typing import Generic, NamedTuple, TypeVar

from k2jax.agents.split import Split, split_of
from k2jax.errors import UserError, abbreviate, nearest

_TRIES = 200
"""Draws for one more distinct problem: a tenth of them at least are of the split, and mostly new."""
P = TypeVar("P")


class SizedMaker(NamedTuple, Generic[P]):
    """What makes the problems of a kind.

    Attributes:
        make: a problem of a size, with random numbers.
        smallest: size.
        largest: size.
    """

    make: Callable[[random.Random, int], P]
    smallest: int = 1
    largest: int = 99


def sized_makers(
    dataset: str, kinds: tuple[str, ...], makers: Mapping[str, SizedMaker[P]]
) -> dict[str, Callable[[random.Random], P]]:
    """What draws a problem of each kind.

    Args:
        dataset: its name, for messages.
        kinds: each the name of a maker and a size, such as ``add3``.
        makers: by name.

    Raises:
        UserError: there is no kind, or one without such a maker, without a size, or of a size out of range.
    """
    if not kinds:
        raise UserError(f"{dataset}: kinds is empty; name kinds such as {next(iter(makers))}3")
    return {kind: _drawer(dataset, kind, makers) for kind in kinds}


def _drawer(dataset: str, kind: str, makers: Mapping[str, SizedMaker[P]]) -> Callable[[random.Random], P]:
    match = re.fullmatch(r"([a-z]+)(0|[1-9][0-9]{0,8})", kind)
    if match is None or match[1] not in makers:
        name = match[1] if match else kind
        raise UserError(f"{dataset}: {abbreviate(kind)} is no kind followed by a size{nearest(name, list(makers))}")
    maker, size = makers[match[1]], int(match[2])
    if not maker.smallest <= size <= maker.largest:
        raise UserError(f"{dataset}: the size of {match[1]} is {size}; it must be {maker.smallest} to {maker.largest}")
    return lambda rng: maker.make(rng, size)


def draw_kind(makers: Mapping[str, Callable[[random.Random], P]], rng: random.Random) -> tuple[str, P]:
    """Any kind of ``sized_makers``, each with equal probability, and a problem of it."""
    kind = rng.choice(list(makers))
    return kind, makers[kind](rng)


def distinct(
    draw: Callable[[], tuple[str, P]], count: int, split: Split, *, dataset: str, things: str, remedy: str
) -> Iterator[tuple[str, P]]:
    """Problems of a split, no two of one name.

    Args:
        draw: returns any problem, after its name, which decides its split.
        count: number of problems.
        split: ``train`` or ``test``.
        dataset: its name, for the message where there are too few.
        things: what is drawn, in the plural, for the same.
        remedy: what the user should raise then.

    Raises:
        UserError: hardly any more problems are of the split.
    """
    seen: set[str] = set()
    while len(seen) < count:
        for _ in range(_TRIES):
            name, problem = draw()
            if name not in seen and split_of(name) == split:
                break
        else:
            raise UserError(
                f"{dataset}: hardly more than {len(seen)} distinct {things} are in the split {split!r}; lower count or "
                f"raise {remedy}"
            )
        seen.add(name)
        yield name, problem


def check_direct(direct: float) -> None:
    """Rejects a teacher's share of answers without working or calls that is none; raises UserError."""
    if not 0 <= direct <= 1:
        raise UserError(f"the share of direct answers is {direct}; it must be between 0 and 1")
