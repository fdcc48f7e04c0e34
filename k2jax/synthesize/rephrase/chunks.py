"""The chunks of a long document, which are rephrased one after another."""

from __future__ import annotations

from collections.abc import Sequence


def chunked(sentences: Sequence[str], words: int) -> list[list[int]]:
    """Groups of consecutive sentences by their numbers, each of about so many words; a longer sentence stands alone.

    Groups are as equal as they can be, so that the last is no remainder.
    """
    lengths = [len(sentence.split()) for sentence in sentences]
    total = sum(lengths)
    groups, size, last = max(1, round(total / words)), 0, -1
    found: list[list[int]] = []
    for number, length in enumerate(lengths):
        place = min(groups - 1, int((size + length / 2) * groups / max(1, total)))
        if place > last:
            found.append([])
        found[-1].append(number)
        last, size = place, size + length
    return found
