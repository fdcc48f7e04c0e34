"""The judge of rephrasings, chunk by chunk: it sees what names and numbers do not show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from k2jax.synthesize.asking import Asker
from k2jax.synthesize.rephrase.chunkwise import source_part
from k2jax.synthesize.stages import Made, Record
from k2jax.synthesize.tools.domain_worlds import Work
from k2jax.synthesize.tools.near_duplicates import nearest_earlier, text_vectors

_TEXTS = {"type": "array", "items": {"type": "string"}}
_SCHEMA = {
    "type": "object",
    "required": ["unsupported", "missing"],
    "properties": {"unsupported": _TEXTS, "missing": _TEXTS},
}


def judged() -> Work:
    """The stage that asks a judge about every chunk, and keeps rephrasings in which it finds nothing."""

    async def work(record: Record, asker: Asker) -> Made:
        verdicts = []
        for chunk in record["chunks"]:
            text = (
                f"{source_part(record, chunk)}\n\nA rephrasing of it:\n{chunk['text']}\n\nList the sentences of the "
                "rephrasing that the source does not support, and those of the source that the rephrasing does not "
                'say. Style and order do not matter. Answer with JSON: {"unsupported": [sentences], "missing": '
                "[sentences]}."
            )
            asked = [{"role": "user", "content": text}]
            verdicts.append(await asker.ask_object("judge", "fidelity", asked, _SCHEMA, inputs=chunk))
        judged = {**record, "verdicts": verdicts}
        if any(verdict["unsupported"] for verdict in verdicts):
            return Made([], [("the judge finds what the source does not say", judged)])
        if any(verdict["missing"] for verdict in verdicts):
            return Made([], [("the judge misses what the source says", judged)])
        return Made([judged])

    return work


def distinct_texts(near: float) -> Callable[[Sequence[Record]], Made]:
    """The stage that drops what is too close to its source or to an earlier rephrasing of it."""

    def work(records: Sequence[Record]) -> Made:
        sources = {record["id"]: record["text"] for record in records}
        texts = [*sources.values(), *(rephrased_text(record) for record in records)]
        forms = [*sources, *(record["id"] for record in records)]
        earlier = nearest_earlier(text_vectors(texts), near, forms)[len(sources) :]
        made = Made([], [])
        for other, record in zip(earlier, records, strict=True):
            if other < 0:
                made.kept.append(record)
            else:
                made.dropped.append(("copies its source" if other < len(sources) else "near-duplicate", record))
        return made

    return work


def rephrased_text(record: Record) -> str:
    """The rephrasing of a whole document."""
    return "\n\n".join(chunk["text"] for chunk in record["chunks"])
