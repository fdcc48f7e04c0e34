"""The writer: a document's rephrasings in different styles, each written chunk by chunk with what came before in view.

A long document that is rephrased at once loses parts; a chunk does not, and what has been written before it keeps the
whole in one voice. Each chunk is compared with its source at once; where something differs the writer is told what, and
asked once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k2jax.synthesize.asking import Asker
from k2jax.synthesize.rephrase.chunks import chunked
from k2jax.synthesize.rephrase.fidelity import Infidelity, infidelities
from k2jax.synthesize.rephrase.source_texts import KNOWLEDGE
from k2jax.synthesize.stages import Made, Record
from k2jax.synthesize.tools.domain_worlds import Work
from k2jax.text.sentences import sentences_of

STYLES = (
    "an article of an encyclopedia",
    "a letter to a friend",
    "a report in a newspaper",
    "a talk to students",
    "questions and answers",
    "a story that is told aloud",
    "plain notes in short sentences",
)
PERSPECTIVES = (
    "a historian who asks what came of it",
    "a neighbour who knows those involved",
    "a curious pupil",
    "a critic who takes nothing for granted",
    "somebody who explains it to a newcomer",
)
NOTES = (
    "the learning notes of a student who says why each step is taken",
    "a tutor's notes that warn of the usual mistakes",
    "short notes on cards to revise from",
)
"""Styles of mathematics."""
_MOST_TOLD = 5


def planned(rephrasings: int) -> Work:
    """The stage that plans so many rephrasings of a document: no two have the same style and perspective."""

    async def work(record: Record, asker: Asker) -> Made:
        first = asker.seed
        styles = STYLES if record["domain"] == KNOWLEDGE else NOTES
        made: list[Record] = []
        for number in range(rephrasings):
            style = styles[(first + number) % len(styles)]
            perspective = PERSPECTIVES[(first + number // len(styles)) % len(PERSPECTIVES)]
            plan = {"rephrasing": number, "style": style, "perspective": perspective}
            made.append({**record, "name": f"{record['id']}/{number}", **plan})
        return Made(made)

    return work


def rephrased(chunk_words: int, context_words: int) -> Work:
    """The stage that writes a rephrasing.

    Args:
        chunk_words: about how many words of the source are rephrased at a time.
        context_words: words of what has been written that the writer is shown.
    """

    async def work(record: Record, asker: Asker) -> Made:
        sentences = sentences_of(record["text"])
        groups = chunked(sentences, chunk_words)
        chunks: list[dict[str, Any]] = []
        attempts: list[dict[str, Any]] = []
        for number, group in enumerate(groups):
            written = " ".join(chunk["text"] for chunk in chunks)
            chunk = {
                "number": number,
                "of": len(groups),
                "source": " ".join(sentences[place] for place in group),
                "facts": _facts_of(record, sentences, group),
            }
            context = " ".join(written.split()[-context_words:]) if context_words else ""
            text, found = await _write(record, chunk, context, written, asker, attempts)
            if found:
                failed = {**record, "chunks": [*chunks, {**chunk, "text": text}], "attempts": attempts}
                return Made([], [(found[0].kind, failed)])
            chunks.append({**chunk, "text": text})
        return Made([{**record, "chunks": chunks, "attempts": attempts}])

    return work


def source_part(record: Mapping[str, Any], chunk: Mapping[str, Any]) -> str:
    """A chunk of the source in words, with the place that it has."""
    return f"Part {chunk['number'] + 1} of {chunk['of']} of the text:\n{chunk['source']}"


async def _write(
    record: Record,
    chunk: Mapping[str, Any],
    context: str,
    written: str,
    asker: Asker,
    attempts: list[dict[str, Any]],
) -> tuple[str, list[Infidelity]]:
    """The text of a chunk, and what is wrong with it after a second try."""
    asked = [{"role": "user", "content": _question(record, chunk, context)}]
    inputs = {**chunk, "style": record["style"], "domain": record["domain"]}
    for _ in range(2):
        reply = await asker.ask("writer", "chunk", asked, inputs=inputs)
        text = reply.text.strip()
        found = infidelities(chunk["source"], text, known=written, compares_words=record["domain"] == KNOWLEDGE)
        if reply.finish == "length":
            found.append(Infidelity("omission", "the answer is cut"))
        # What a program has planted of itself stands beside what was found, and is never used to find it.
        kinds = {"found": found[0].kind if found else "", "planted": reply.message.get("planted", "")}
        attempts.append({"chunk": chunk["number"], **kinds})
        if not found:
            break
        told = "; ".join(f"{one.kind}: {one.what}" for one in found[:_MOST_TOLD])
        repair = f"Compared with the source: {told}. Write this part again, with nothing changed, left out or added."
        asked = [*asked, {"role": "assistant", "content": reply.text}, {"role": "user", "content": repair}]
    return text, found


def _question(record: Record, chunk: Mapping[str, Any], context: str) -> str:
    if record["domain"] == KNOWLEDGE:
        wanted = f"Rephrase it as {record['style']}, from the perspective of {record['perspective']}."
    else:
        wanted = f"Write it in English as {record['style']}. Keep every equation as it stands."
    before = f"What you have written of the parts before:\n{context}\n\nGo on from there.\n\n" if context else ""
    return (
        f"{before}{source_part(record, chunk)}\n\n{wanted} Use other words and another order, but say all that the "
        "source says and nothing else: every name and number stays, in the same role. Answer with the text alone."
    )


def _facts_of(record: Record, sentences: Sequence[str], group: Sequence[int]) -> list[Any]:
    """The facts of a chunk where they are known: of the exact world each sentence is one."""
    facts = record.get("facts", [])
    return [facts[place] for place in group] if len(facts) == len(sentences) else []
