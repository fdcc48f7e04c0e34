"""Removes duplicates from a sequence of document parts, stage by stage; each stage is a map over independent items.

Every item is a function of the documents and the settings, and its file is named by them: workers may be as many as one
likes, on as many machines as share the folder, and may be killed; the result is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import functools
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from k2jax.data.duplicates import keeping, proposals, verification
from k2jax.data.duplicates.attributes import write_attributes
from k2jax.data.duplicates.part_files import PAIR, REMOVAL, key_of, save
from k2jax.data.duplicates.settings import DuplicateSettings
from k2jax.data.duplicates.signatures import VERSION, DocumentPart, sign_part, signed_name
from k2jax.data.duplicates.signed_parts import SignedParts, signed_parts
from k2jax.errors import UserError

Item, Result = TypeVar("Item"), TypeVar("Result")
Run = Callable[[Callable[[Item], Result], Iterable[Item]], Iterable[Result]]
"""Applies a function to items and gives the results in their order, as ``map`` does; functions can be pickled."""
Progress = Callable[[str, int, int, int], None]
"""Receives a stage's name, how many of its items are done, how many there are, and documents of those that are done."""
STAGES = ("sign", "copies", "propose", "collect", "read again", "verify", "follow", "write")
ROUNDS = 2
"""How often kept documents are compared with the keepers of removed ones that they are like."""
_COLLECTED = 1 << 16  # documents whose pairs are one item of verification


@dataclasses.dataclass(frozen=True, kw_only=True)
class DuplicateReport:
    """What was found and where it is.

    Attributes:
        documents: how many there are.
        removed: numbers of removed documents by the names of their kinds.
        copied: documents that are exact copies, whatever removed them.
        proposed: pairs that were verified.
        verified: pairs that are duplicates.
        signed: the documents by position.
        folder: of the removals.
    """

    documents: int
    removed: dict[str, int]
    copied: int
    proposed: int
    verified: int
    signed: SignedParts
    folder: Path

    @property
    def kept(self) -> int:
        """Number of documents that are kept."""
        return self.documents - sum(self.removed.values())

    def removals(self, part: int) -> np.ndarray:
        """Removals of a part in ``part_files.REMOVAL``; ``position`` and ``keeper`` are numbers among all documents."""
        return np.load(self.folder / f"removed-{part}.npy")

    def indices(self, part: int) -> list[int]:
        """Numbers of the removed documents within a part, ascending."""
        return (self.removals(part)["position"] - self.signed.starts[part]).tolist()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """How items are computed, and where they lie."""

    folder: Path
    settings: DuplicateSettings
    run: Run
    progress: Progress

    def all(
        self, stage: str, function: Callable[[Item], Result], items: Sequence[Item], documents: int | None = None
    ) -> list[Result]:
        """Results of all items of a stage, of so many documents; None: each result says of how many it is."""
        results: list[Result] = []
        done = 0
        for result in self.run(function, items):
            results.append(result)
            if documents is None:
                done += sum(count for count, _ in result["blocks"])
            else:
                done = documents * len(results) // len(items)
            self.progress(stage, len(results), len(items), done)
        return results


def remove_duplicates(
    parts: Sequence[DocumentPart],
    folder: Path,
    settings: DuplicateSettings,
    run: Run = map,
    *,
    attributes: Path,
    progress: Progress = lambda *_: None,
) -> DuplicateReport:
    """Finds the duplicates among all documents of all parts, and writes which are removed in favour of which.

    Args:
        parts: the documents, in the order in which they are given.
        folder: for work files; what is there already is not computed again. It may be deleted afterwards.
        settings: what counts as a duplicate.
        run: computes the items of a stage.
        attributes: folder that receives ``duplicates/NAME.jsonl.gz`` for each part, see ``write_attributes``.
        progress: receives what is done.

    Raises:
        UserError: two parts have one name, rensa is not installed, or a part cannot be read.
    """
    names = Counter(part.name for part in parts)
    if twice := [name for name, count in names.items() if count > 1]:
        raise UserError(f"two files have the name {twice[0]}, under which attributes are written: rename one")
    signed_folder = folder / "signed"
    # The settings of the bands name the signed parts, all others the folder of a run.
    keys = tuple(signed_name(part, settings) for part in parts)
    work = _Work(
        folder=folder / key_of("run", VERSION, dataclasses.asdict(settings), keys),
        settings=settings,
        run=run,
        progress=progress,
    )
    work.all("sign", functools.partial(sign_part, folder=signed_folder, settings=settings), parts)
    signed = signed_parts(signed_folder, keys, settings.bands)
    copies = _copies(work, signed)
    pairs, proposed = _proposed(work, signed)
    sets = functools.partial(
        verification.write_sets,
        signed=signed,
        files=[path.with_name(path.name.replace("pairs", "documents")) for path in pairs],
        folder=work.folder,
    )
    work.all("read again", sets, list(enumerate(parts)), len(signed))
    removals, verified = _decided(work, signed, pairs)
    write = functools.partial(
        _write_part, names=[part.name for part in parts], signed=signed, work=work.folder, files=(copies, removals),
        attributes=attributes,
    )  # fmt: skip
    counts = sum(work.all("write", write, range(len(parts)), len(signed)), Counter())
    return DuplicateReport(
        documents=len(signed),
        removed={name: counts[kind] for kind, name in verification.KINDS.items()},
        copied=sum(len(np.load(path, mmap_mode="r")) for path in copies),
        proposed=proposed,
        verified=verified,
        signed=signed,
        folder=work.folder,
    )


def _copies(work: _Work, signed: SignedParts) -> list[Path]:
    """Files of the exact copies; also writes which documents are some."""
    ranges = proposals.ranges_of(len(signed))
    find = functools.partial(proposals.propose_copies, signed=signed, ranges=ranges, folder=work.folder)
    work.all("copies", find, range(ranges), len(signed))
    paths = [work.folder / f"copies-{number}.npy" for number in range(ranges)]
    is_copy = np.zeros(len(signed), bool)
    for path in paths:
        is_copy[np.load(path, mmap_mode="r")["late"]] = True
    save(work.folder / "copied.npy", is_copy)
    return paths


def _proposed(work: _Work, signed: SignedParts) -> tuple[list[Path], int]:
    """Files of the proposed pairs, by ranges of their later documents, and how many pairs there are."""
    ranges = proposals.ranges_of(signed.compared)
    items = [(band, number) for band in range(work.settings.bands) for number in range(ranges)]
    common = {"signed": signed, "folder": work.folder}
    propose = functools.partial(proposals.propose_pairs, ranges=ranges, settings=work.settings, **common)
    work.all("propose", propose, items, len(signed))
    files = [work.folder / f"pairs-{band}-{number}.npy" for band, number in items]
    ends = [*range(_COLLECTED, len(signed), _COLLECTED), len(signed)]
    collect = functools.partial(proposals.collect_pairs, ends=ends, files=files, folder=work.folder)
    counts = work.all("collect", collect, range(len(ends)), len(signed))
    return [work.folder / f"pairs-of-{number}.npy" for number in range(len(ends))], sum(counts)


def _decided(work: _Work, signed: SignedParts, pairs: list[Path]) -> tuple[list[Path], int]:
    """Files of the removals, and the number of verified pairs.

    A document that is like removed ones alone is compared with their keepers as well: in a large bucket no band need
    have proposed that pair.
    """
    edges: list[Path] = []
    for number in range(ROUNDS + 1):
        folder = work.folder / f"round-{number}"
        verify = functools.partial(
            verification.verify_pairs, pairs=pairs, sets=work.folder, signed=signed, folder=folder,
            settings=work.settings,
        )  # fmt: skip
        found = work.all("follow" if number else "verify", verify, range(len(pairs)), len(signed))
        edges += [folder / f"edges-{item}.npy" for item in range(len(pairs))]
        if not number or sum(found):
            removals, stranded = keeping.decide(edges, len(signed), folder)
        if number == ROUNDS or not stranded or not sum(found):
            break
        following = keeping.pairs_with_keepers(stranded, removals)
        pairs = []
        for at in range(0, len(following), _COLLECTED):
            pairs.append(folder / f"following-{len(pairs)}.npy")
            save(pairs[-1], following[at : at + _COLLECTED].astype(PAIR))
    return removals, sum(len(np.load(path, mmap_mode="r")) for path in edges)


def _write_part(
    number: int,
    *,
    names: list[str],
    signed: SignedParts,
    work: Path,
    files: tuple[list[Path], list[Path]],
    attributes: Path,
) -> Counter:
    """Writes the removals and the attributes of a part; returns the number of removals of each kind."""
    begin, end = signed.starts[number : number + 2].tolist()
    rows = keeping.removals_between(begin, end, *files) if end > begin else np.empty(0, REMOVAL)
    save(work / f"removed-{number}.npy", rows)
    write_attributes(attributes, number, rows, signed, names)
    return Counter(rows["kind"].tolist())


def examples(report: DuplicateReport, parts: Sequence[DocumentPart], count: int) -> Iterator[dict[str, Any]]:
    """The first removals that are no exact copies, with the texts of both documents; fewer where there are fewer.

    Args:
        report: of the parts.
        parts: the documents.
        count: how many at most.
    """
    for number in range(len(parts)):
        rows = report.removals(number)
        for row in rows[rows["kind"] != verification.EXACT][:count]:
            places = [int(row["position"]), int(row["keeper"])]
            texts = [_text_of(report.signed, parts, place) for place in places]
            yield {"kind": verification.KINDS[int(row["kind"])], "score": float(row["score"]), "texts": texts}
            count -= 1
        if count <= 0:
            return


def _text_of(signed: SignedParts, parts: Sequence[DocumentPart], position: int) -> tuple[str, str]:
    part = int(signed.part_of(np.array([position]))[0])
    wanted = position - int(signed.starts[part])
    return next(document for number, document in enumerate(parts[part].read()) if number == wanted)
