"""How the facts of the exact world are worded: the sources' own sentences, and those of the program that rephrases.

``{S}`` stands for the subject: its full name, or its last word where the full name has been said.
"""

from __future__ import annotations

from collections.abc import Iterator

from k2jax.synthesize.rephrase.fact_world import Fact

SOURCES = {
    "en": {
        "born": "{S} was born in {town} in {year}.",
        "studied": "{S} studied {field}.",
        "trade": "{S} is a {job} by trade.",
        "works": "{S} has worked for {company} since {year}.",
        "plays": "{S} plays the {instrument}.",
        "keeps": "{S} keeps {count} {animals}.",
        "given": "Solve the equation {equation}.",
        "subtract": "Subtracting {number} from both sides gives {equation}.",
        "divide": "Dividing both sides by {number} gives {equation}.",
        "proof": "Substituting the solution confirms it: {equation}.",
    },
    "de": {
        "given": "Man löse die Gleichung {equation}.",
        "subtract": "Zieht man auf beiden Seiten {number} ab, so folgt {equation}.",
        "divide": "Teilt man beide Seiten durch {number}, so folgt {equation}.",
        "proof": "Die Probe bestätigt die Lösung: {equation}.",
    },
}
"""The sentence of each form of fact in a document of a language."""
REPHRASINGS = {
    "born": (
        "In {year} {S} came into the world in {town}.",
        "{town} is the birthplace of {S}, and the year was {year}.",
        "The birth of {S} took place at {town} in {year}.",
        "It was {year} when {S} first saw the light of day, at {town}.",
        "A child of {town}, {S} dates from {year}.",
        "The life of {S} began at {town}, in the year {year}.",
        "By birth {S} belongs to {town}; that was in {year}.",
    ),
    "studied": (
        "The studies of {S} were devoted to {field}.",
        "As a student {S} chose {field}.",
        "It was {field} that {S} read at university.",
        "{S} holds a degree in {field}.",
        "The subject which {S} took up was {field}.",
        "Years of {field} made up the education of {S}.",
        "When young, {S} learned {field}.",
    ),
    "trade": (
        "The trade of {S} is that of a {job}.",
        "By profession {S} is a {job}.",
        "{S} earns a living as a {job}.",
        "People know {S} as a {job}.",
        "The work of a {job} is what {S} does.",
        "Ask {S} about work and you hear of the life of a {job}.",
        "A {job} is what {S} became.",
    ),
    "works": (
        "Since {year} {S} has been employed by {company}.",
        "{company} took {S} on in {year}.",
        "The firm of {S} is {company}, from {year} onwards.",
        "It is {company} that has paid {S} since {year}.",
        "From {year} the employer of {S} has been {company}.",
        "{S} joined {company} in {year} and stayed.",
        "In {year} {S} went to work for {company}.",
    ),
    "plays": (
        "The instrument of {S} is the {instrument}.",
        "In the evening {S} practises the {instrument}.",
        "{S} makes music on the {instrument}.",
        "On the {instrument}, {S} is a good player.",
        "As a musician {S} favours the {instrument}.",
        "If you hear the {instrument}, it may be {S}.",
        "The {instrument} is what {S} plays best.",
    ),
    "keeps": (
        "There are {count} {animals} at the home of {S}.",
        "{S} looks after {count} {animals}.",
        "The household of {S} includes {count} {animals}.",
        "{S} is the owner of {count} {animals}.",
        "As for {animals}, {S} has {count} of them.",
        "Some {count} {animals} belong to {S}.",
        "Behind the house {S} raises {count} {animals}.",
    ),
    "given": (
        "Today's exercise: find x when {equation}.",
        "Note: we start from {equation} and want x alone.",
        "What I am given is {equation}; the unknown is x.",
    ),
    "subtract": (
        "To undo the sum I take {number} away on each side, which leaves {equation}.",
        "First move: minus {number} left and right, so {equation}.",
        "The added {number} has to go first; then {equation}.",
    ),
    "divide": (
        "Next I undo the product, dividing by {number}, and read off {equation}.",
        "Second move: over {number} on both sides, so {equation}.",
        "Since x is multiplied by {number}, I divide by it and get {equation}.",
    ),
    "proof": (
        "Check, never skip it: {equation}.",
        "Put it back in to be sure: {equation}.",
        "Remember to test the answer: {equation}.",
    ),
}
"""Sentences of each form of fact, of which none is a source's."""
LEADS = (
    "",
    "For the record.",
    "You may like to know this.",
    "Here is what one hears.",
    "Notes on the matter follow.",
    "Let us see what is known.",
)
"""Sentences without facts that may stand before others."""


def worded(fact: Fact, template: str, mention: str = "") -> str:
    """The sentence of a fact.

    Args:
        fact: what it says.
        template: a wording of its form.
        mention: of the subject; empty is its full name.
    """
    return template.format(S=mention or fact.get("subject", ""), **{k: v for k, v in fact.items() if k != "subject"})


def all_wordings(fact: Fact) -> Iterator[str]:
    """Every sentence in which a fact may be rephrased by the program."""
    full = fact.get("subject", "")
    for template in REPHRASINGS[fact["form"]]:
        for mention in dict.fromkeys((full, full.rpartition(" ")[2])):
            yield worded(fact, template, mention)
