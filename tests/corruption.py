"""Damage to the files of a folder, the same at every call: what disks, copies and hands do to a cache or a checkpoint.

``cases(folder)`` lists what can happen to it and ``apply(case, folder)`` does one of them to a copy.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
import random


@dataclasses.dataclass(frozen=True)
class Case:
    """One damage.

    Attributes:
        kind: ``flip`` a bit, ``truncate``, ``delete``, or ``exchange`` two files' contents.
        file: path of the damaged file in the folder.
        at: the bit to flip, or the length that is left [bytes].
        other: the file to exchange it with.
    """

    kind: str
    file: str
    at: int = 0
    other: str = ""

    def __str__(self) -> str:
        detail = {"flip": f" bit {self.at}", "truncate": f" to {self.at}", "exchange": f" with {self.other}"}
        return f"{self.kind} {self.file}{detail.get(self.kind, '')}"


def cases(folder: Path, *, flips: int = 2, seed: int = 0) -> list[Case]:
    """Lists the damages of every file below a folder.

    Args:
        folder: the folder, which is only read.
        flips: bits that are flipped in each file, besides its first and its last one.
        seed: seed of their choice.

    Returns:
        For each file: flips, truncations to nothing, to half and by one byte, deletion, and an exchange with the next
        file of the same suffix and with the next one of another, where their contents differ.
    """
    generator = random.Random(seed)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    listed = []
    for i, name in enumerate(names):
        size = (folder / name).stat().st_size
        bits = {0, 8 * size - 1, *(generator.randrange(8 * size) for _ in range(flips))} if size else ()
        listed += [Case("flip", name, bit) for bit in sorted(bits)]
        listed += [Case("truncate", name, length) for length in sorted({0, size // 2, size - 1}) if 0 <= length < size]
        listed.append(Case("delete", name))
        others = [other for other in names[i + 1 :] if (folder / other).read_bytes() != (folder / name).read_bytes()]
        same = [other for other in others if Path(other).suffix == Path(name).suffix]
        different = [other for other in others if Path(other).suffix != Path(name).suffix]
        listed += [Case("exchange", name, other=other) for other in (*same[:1], *different[:1])]
    return listed


def apply(case: Case, folder: Path) -> None:
    """Damages a folder in place."""
    file = folder / case.file
    if case.kind == "delete":
        file.unlink()
        return
    content = file.read_bytes()
    if case.kind == "flip":
        byte, bit = divmod(case.at, 8)
        content = content[:byte] + bytes([content[byte] ^ 1 << bit]) + content[byte + 1 :]
    elif case.kind == "truncate":
        content = content[: case.at]
    else:
        other = folder / case.other
        exchanged, content = content, other.read_bytes()
        other.write_bytes(exchanged)
    file.write_bytes(content)
