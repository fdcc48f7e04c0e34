"""Closed-book questions about the exact world of facts: texts to learn from, and how many answers a model knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from k2jax.files.atomic import write_json_lines
from k2jax.synthesize.pipeline import Machines, Synthesis
from k2jax.synthesize.rephrase.fact_world import ANSWERS, QUESTIONS, questions_of
from k2jax.synthesize.rephrase.source_texts import exact_people
from k2jax.synthesize.settings import RephraseConfig, SynthesisConfig

PEOPLE = "people"
Question = Mapping[str, str]


def write_people(folder: Path, documents: int, rephrasings: int, seed: int) -> None:
    """Writes texts about one person each and rephrasings of them by ``k2jax.synthesize``, once.

    Args:
        folder: gets ``raw.jsonl`` and ``rephrasings/NN.jsonl``.
        documents: people.
        rephrasings: of each text, without infidelities.
        seed: of all that is drawn.
    """
    if (folder / "manifest.json").exists():
        return
    sizes = RephraseConfig(
        documents=documents, people=1, problems=0, rephrasings=rephrasings, infidelities=0.0, near=1.0, chunk_words=200
    )
    config = SynthesisConfig(pipeline="rephrase", seed=seed, rephrase=sizes)
    asyncio.run(Synthesis(folder, config, Machines(workers=1)).run())


def questions_about(documents: int, seed: int) -> list[Question]:
    """The questions about the people of ``write_people``."""
    return [question for record in exact_people(documents, 1, seed) for question in questions_of(record["facts"])]


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """Writes questions with their answers as texts to train on; each is a document."""
    if not path.exists():
        write_json_lines(path, [{"text": f"{asked(one)} {one['answer']}."} for one in questions])


def asked(question: Question) -> str:
    """The text of a question, behind which the answer stands."""
    return f"Question: {question['question']} Answer:"


def known_answers(checkpoint: Path, questions: Sequence[Question], length: int) -> dict[str, float]:
    """The share of questions whose right answer is the likeliest of all answers of its kind, and by kind.

    Args:
        checkpoint: a workdir.
        questions: of ``questions_about``.
        length: tokens of the longest question with an answer.
    """
    from k2jax.evaluate.models import ModelChoice, open_engine_client

    right: dict[str, list[bool]] = {}
    with open_engine_client(ModelChoice(model=str(checkpoint), slots=16, max_length=length)) as (client, tokenizer):

        async def likelihood(question: Question, answer: str) -> float:
            prompt = tokenizer.encode_document(asked(question))
            whole = tokenizer.encode_document(f"{asked(question)} {answer}.")
            start = next(n for n, (one, other) in enumerate(zip([*prompt, -1], whole, strict=False)) if one != other)
            return float((await client.score(whole, start)).sum(dtype=np.float64))

        async def all_likelihoods() -> list[tuple[str, list[float], int]]:
            found = []
            for question in questions:
                answers = ANSWERS[question["form"]]
                scores = await asyncio.gather(*(likelihood(question, answer) for answer in answers))
                found.append((question["form"], list(scores), answers.index(question["answer"])))
            return found

        for form, scores, place in asyncio.run(all_likelihoods()):
            right.setdefault(form, []).append(int(np.argmax(scores)) == place)
    every = [one for each in right.values() for one in each]
    return {"known": float(np.mean(every)), **{f"known/{form}": float(np.mean(each)) for form, each in right.items()}}


def chance() -> float:
    """The share that guessing knows."""
    return float(np.mean([1 / len(ANSWERS[form]) for form in QUESTIONS]))
