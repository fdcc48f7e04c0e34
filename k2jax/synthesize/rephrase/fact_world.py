"""An exact world of facts: people of whom all is known, and worked problems, drawn by a seed.

A document is a list of facts, each of which is a sentence. Whatever is written of a document can be checked against its
facts, and what a model has learnt of it can be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import itertools
import random
from typing import Any, NamedTuple

Fact = Mapping[str, Any]
"""A JSON object: ``form`` of the fact, ``subject`` and the values of its form."""
TOWNS = (
    "Kelmar", "Tarnow", "Vessby", "Oldrun", "Pirano", "Marvik", "Sollen", "Brenta",
    "Quarry", "Lunden", "Ashmoor", "Dorvale",
)  # fmt: skip
COMPANIES = (
    "Harrow", "Nexby", "Ostrand", "Pelican", "Corvin", "Tessel", "Umbra", "Wexley",
    "Galten", "Ironby", "Jarrow", "Lindquist",
)  # fmt: skip
JOBS = (
    "glassblower", "surveyor", "translator", "gardener", "welder", "librarian", "chemist", "tailor",
    "printer", "architect", "baker", "pilot",
)  # fmt: skip
INSTRUMENTS = ("cello", "trumpet", "harp", "flute", "organ", "banjo", "violin", "tuba", "zither", "oboe")
SUBJECTS = ("botany", "astronomy", "history", "geology", "logic", "anatomy", "music", "economics", "painting", "law")
ANIMALS = ("goats", "pigeons", "geese", "horses", "rabbits", "hives", "turtles", "parrots")
_FIRST = ("Or", "Ka", "Te", "Mi", "Va", "Lu", "Da", "Ne", "Ro", "Is", "Be", "Jo")
_FIRST_ENDS = ("la", "ren", "mis", "dor", "vin", "na", "rik", "tha")
_LAST = ("Ven", "Hal", "Bro", "Sten", "Mor", "Cal", "Wyn", "Gro", "Fal", "Dun", "Tor", "Pem")
_LAST_ENDS = ("ner", "stad", "wick", "lund", "bury", "row", "field", "gate")


class QuestionForm(NamedTuple):
    """A question about facts of one form.

    Attributes:
        text: with the place ``{subject}``.
        value: whose value is the answer.
    """

    text: str
    value: str


QUESTIONS = {
    "born": QuestionForm("In which town was {subject} born?", "town"),
    "works": QuestionForm("For which company does {subject} work?", "company"),
    "trade": QuestionForm("What is the trade of {subject}?", "job"),
    "plays": QuestionForm("Which instrument does {subject} play?", "instrument"),
    "studied": QuestionForm("What did {subject} study?", "field"),
    "keeps": QuestionForm("Which animals does {subject} keep?", "animals"),
}
"""By the form of the fact."""
ANSWERS = {
    "born": TOWNS, "works": COMPANIES, "trade": JOBS, "plays": INSTRUMENTS, "studied": SUBJECTS, "keeps": ANIMALS,
}  # fmt: skip
"""All that may be the answer, by the form of the fact."""


def person_names(count: int, rng: random.Random) -> list[str]:
    """So many different full names; none shares both its words' beginnings with another."""
    firsts = [a + b for a, b in itertools.product(_FIRST, _FIRST_ENDS)]
    lasts = [a + b for a, b in itertools.product(_LAST, _LAST_ENDS)]
    names: dict[str, None] = {}
    while len(names) < count:
        names[f"{rng.choice(firsts)} {rng.choice(lasts)}"] = None
    return list(names)


def person_facts(subject: str, rng: random.Random) -> list[Fact]:
    """All that is known of a person, in a fixed order."""
    return [
        {"form": "born", "subject": subject, "town": rng.choice(TOWNS), "year": rng.randint(1880, 1960)},
        {"form": "studied", "subject": subject, "field": rng.choice(SUBJECTS)},
        {"form": "trade", "subject": subject, "job": rng.choice(JOBS)},
        {"form": "works", "subject": subject, "company": rng.choice(COMPANIES), "year": rng.randint(1961, 1999)},
        {"form": "plays", "subject": subject, "instrument": rng.choice(INSTRUMENTS)},
        {"form": "keeps", "subject": subject, "animals": rng.choice(ANIMALS), "count": rng.randint(3, 98)},
    ]


def problem_facts(rng: random.Random) -> list[Fact]:
    """The steps of a linear equation's solution: each is what is done and the equation that it leads to."""
    factor, root, shift = rng.randint(2, 9), rng.randint(2, 19), rng.randint(2, 40)
    right = factor * root + shift
    return [
        {"form": "given", "equation": f"{factor}x + {shift} = {right}"},
        {"form": "subtract", "number": shift, "equation": f"{factor}x = {right - shift}"},
        {"form": "divide", "number": factor, "equation": f"x = {root}"},
        {"form": "proof", "equation": f"{factor} * {root} + {shift} = {right}"},
    ]


def questions_of(facts: Sequence[Fact]) -> list[dict[str, str]]:
    """Closed-book questions about facts, each with ``form``, ``question`` and ``answer``."""
    asked = []
    for fact in facts:
        if (form := QUESTIONS.get(fact["form"])) is not None:
            text = form.text.format(subject=fact["subject"])
            asked.append({"form": fact["form"], "question": text, "answer": fact[form.value]})
    return asked
