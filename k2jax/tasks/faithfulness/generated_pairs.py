"""Sources with claims that they support or not, drawn by a seed from topics of which some are held out.

A topic is a list of relations between names and numbers, each in several wordings. A source states some of them in one
wording, a claim one or two of them in another. What makes a claim unsupported is one of ``KINDS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import random
from typing import Any, NamedTuple

from k2jax.tasks.faithfulness.topics import HELD_OUT, TOPICS, Relation
from k2jax.text.common_words import COMMON_WORDS

KINDS = ("name", "number", "mixed", "negated", "unsaid", "swapped", "relation")
"""A changed name or number; a value of something else in the source; the opposite; something of which the source says
nothing; two that have changed roles; another relation between the same."""
_SENTENCES = (4, 8)
_SYLLABLES = {
    "train": (("Ka", "Mo", "Re", "Ti", "Su", "Al", "Be", "No"), ("ran", "lia", "mund", "ster", "vik", "dora", "nell")),
    "held_out": (
        ("Zo", "Qua", "Fi", "Hu", "Pri", "Ysa", "Gwe", "Ul"),
        ("brock", "thea", "zar", "mont", "fried", "quin"),
    ),
}


class ClaimPair(NamedTuple):
    """A source and a claim.

    Attributes:
        source: some sentences.
        claim: a sentence.
        supported: whether the source supports it.
        kind: of ``KINDS`` where it does not; else empty.
        topic: of the source.
    """

    source: str
    claim: str
    supported: bool
    kind: str = ""
    topic: str = ""


class StatedFact(NamedTuple):
    """A relation of a source with its values.

    Attributes:
        relation: what is said.
        values: by slot.
        negated: whether the source denies it.
    """

    relation: Relation
    values: Mapping[str, Any]
    negated: bool = False

    def worded(self, number: int) -> str:
        """One of its wordings."""
        wordings = self.relation.denied if self.negated else self.relation.wordings
        return wordings[number % len(wordings)].format(**self.values)


class ClaimDrawer:
    """Draws sources and claims.

    Args:
        seed: of what is drawn.
        held_out: whether topics, wordings and names are those that no training has.
    """

    def __init__(self, seed: int, held_out: bool = False):
        self._rng = random.Random(f"claims {seed} {held_out}")
        self._topics = HELD_OUT if held_out else TOPICS
        firsts, lasts = _SYLLABLES["held_out" if held_out else "train"]
        self._names = [first + last for first in firsts for last in lasts]

    def source(self) -> tuple[str, list[StatedFact], str]:
        """A topic, facts of it, and the text that states them."""
        rng, name = self._rng, self._rng.choice(list(self._topics))
        topic = self._topics[name]
        pool = rng.sample(self._names, 12)
        facts: dict[tuple[str, str], StatedFact] = {}
        while len(facts) < rng.randint(*_SENTENCES):
            relation = rng.choice(topic)
            fact = StatedFact(relation, self._values(relation, pool), rng.random() < 0.12)
            facts.setdefault((relation.name, fact.values["a"]), fact)
        stated = list(facts.values())
        return name, stated, " ".join(fact.worded(0) for fact in stated)

    def pair(self) -> ClaimPair:
        """A source with a claim, supported in half of the cases."""
        is_supported = self._rng.random() < 0.5
        while True:
            topic, facts, source = self.source()
            if is_supported:
                return ClaimPair(source, self._claim([self._rng.choice(facts)], facts), True, topic=topic)
            kind = self._rng.choice(KINDS)
            changed = self._changed(kind, self._rng.choice(facts), facts)
            if changed is not None:
                return ClaimPair(source, self._claim([changed], facts), False, kind, topic)

    def pairs(self, count: int) -> list[ClaimPair]:
        """So many."""
        return [self.pair() for _ in range(count)]

    def claim(self, fact: StatedFact) -> str:
        """A fact in another wording than its source's."""
        others = len(fact.relation.denied if fact.negated else fact.relation.wordings) - 1
        return fact.worded(1 + self._rng.randrange(others))

    def _claim(self, facts: list[StatedFact], stated: Sequence[StatedFact]) -> str:
        """The claim of a fact, with a supported one beside it in some cases."""
        if self._rng.random() < 0.25:
            facts = [*facts, self._rng.choice(stated)]
            self._rng.shuffle(facts)
        first, *others = (self.claim(fact).rstrip(".") for fact in facts)
        return ", and ".join([first, *map(_continued, others)]) + "."

    def _changed(self, kind: str, fact: StatedFact, facts: Sequence[StatedFact]) -> StatedFact | None:
        """The fact made unsupported; None where it cannot be."""
        rng, values = self._rng, dict(fact.values)
        named = [slot for slot in values if slot in ("a", "b")]
        if kind == "negated":
            return fact._replace(negated=not fact.negated)
        if fact.negated:
            return None
        if kind == "name":
            used = {value for one in facts for value in one.values.values()}
            values[rng.choice(named)] = rng.choice([name for name in self._names if name not in used])
        elif kind == "number" and "n" in values:
            values["n"] += rng.choice((-1, 1)) * rng.randint(1, 9)
        elif kind == "mixed":
            slot = rng.choice(list(values))
            others = {one.values[slot] for one in facts if slot in one.values} - set(values.values())
            if not others:
                return None
            values[slot] = rng.choice(sorted(others))
        elif kind == "unsaid":
            topic = next(topic for topic in self._topics.values() if fact.relation in topic)
            pool = [value for one in facts for slot, value in one.values.items() if slot in ("a", "b")]
            relation = rng.choice(topic)
            values = self._values(relation, list(dict.fromkeys(pool)))
            fact = StatedFact(relation, values)
        elif kind == "swapped" and "b" in values:
            values["a"], values["b"] = values["b"], values["a"]
        elif kind == "relation":
            topic = next(topic for topic in self._topics.values() if fact.relation in topic)
            same = [one for one in topic if one.slots == fact.relation.slots and one != fact.relation]
            if not same:
                return None
            fact = StatedFact(rng.choice(same), values)
        else:
            return None
        changed = fact._replace(values=values)
        is_stated = any(one.relation == changed.relation and dict(one.values) == values for one in facts)
        return None if is_stated or len(set(values.values())) < len(values) else changed

    def _values(self, relation: Relation, pool: Sequence[str]) -> dict[str, Any]:
        names = self._rng.sample(list(pool), 2) if len(pool) > 1 else [*pool, self._rng.choice(self._names)]
        values: dict[str, Any] = dict(zip("ab", names, strict=True))
        values["n"] = self._rng.randint(10, 990)
        return {slot: values[slot] for slot in relation.slots}


def _continued(text: str) -> str:
    """A clause behind another one: a word that has its capital for its place alone loses it."""
    return text[0].lower() + text[1:] if text.split()[0].lower() in COMMON_WORDS else text
