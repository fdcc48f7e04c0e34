"""Programs that play the models of rephrasing: a writer that words facts anew, and a judge that knows its wordings.

They work on the exact world alone. The writer plants infidelities at a rate that the config names, and says so beside
its text; the judge reads the text and not that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
import random
from typing import Any

from k2jax.errors import UserError
from k2jax.synthesize.questions import AskedModel, ModelQuestion, ProgramModel
from k2jax.synthesize.rephrase import fact_world
from k2jax.synthesize.rephrase.fact_world import Fact
from k2jax.synthesize.rephrase.source_texts import KNOWLEDGE
from k2jax.synthesize.rephrase.wordings import LEADS, REPHRASINGS, all_wordings, worded
from k2jax.synthesize.settings import SynthesisConfig
from k2jax.synthesize.stages import seed_of

_NAMES = {"town": fact_world.TOWNS, "company": fact_world.COMPANIES}
_WORDS = {"job": fact_world.JOBS, "instrument": fact_world.INSTRUMENTS, "animals": fact_world.ANIMALS}
PLANTED = ("changed name", "changed number", "changed word", "omission", "mixed up")


def rephrase_programs(config: SynthesisConfig) -> Mapping[str, AskedModel]:
    """The programs by role."""
    rate = config.rephrase.infidelities
    name = f"wordings with infidelities {rate}"
    return {
        "writer": ProgramModel(name, lambda question, seed: _write(question, seed, rate)),
        "judge": ProgramModel("known wordings", lambda question, _: {"content": json.dumps(_judge(question.inputs))}),
    }


def _write(question: ModelQuestion, seed: int, rate: float) -> Mapping[str, Any]:
    """A chunk in other words, and what was planted in it."""
    facts = _known(question.inputs)
    rng = random.Random(seed_of("wording", seed))
    kind = rng.choice(PLANTED) if rng.random() < rate else ""
    if kind:
        facts, kind = planted(facts, kind, rng)
    facts = list(facts)
    if question.inputs["domain"] == KNOWLEDGE:
        rng.shuffle(facts)
    lead, seen, sentences = rng.choice(LEADS), set(), []
    for fact in facts:
        subject = fact.get("subject", "")
        mention = subject.rpartition(" ")[2] if subject in seen and rng.random() < 0.5 else subject
        seen.add(subject)
        sentences.append(worded(fact, rng.choice(REPHRASINGS[fact["form"]]), mention))
    return {"content": " ".join([lead, *sentences]).strip(), "planted": kind}


def planted(facts: Sequence[Fact], kind: str, rng: random.Random) -> tuple[list[Fact], str]:
    """Facts of which one is not as it was, and the kind of what was changed: another where this one is not possible."""
    changed = [dict(fact) for fact in facts]
    years = [fact for fact in changed if "year" in fact]
    pools = {"changed name": _NAMES, "changed word": _WORDS}.get(kind, {})
    if drawn := [(fact, key) for fact in changed for key in pools if key in fact]:
        fact, key = rng.choice(drawn)
        fact[key] = rng.choice([value for value in pools[key] if all(value != one.get(key) for one in facts)])
        return changed, kind
    if kind == "mixed up" and len({fact["year"] for fact in years}) > 1:
        one, other = rng.sample(years, 2)
        if one["year"] != other["year"]:
            one["year"], other["year"] = other["year"], one["year"]
            return changed, kind
    if kind == "omission" and len(changed) > 1:
        changed.pop(rng.randrange(len(changed)))
        return changed, kind
    _change_number(changed, rng)
    return changed, "changed number"


def _change_number(facts: list[dict[str, Any]], rng: random.Random) -> None:
    """Changes a year, a count or the last number of an equation."""
    fact = rng.choice([fact for fact in facts if set(fact) & {"year", "count", "equation"}] or facts)
    if "equation" in fact:
        left, _, right = fact["equation"].rpartition(" ")
        fact["equation"] = f"{left} {int(right) + rng.randint(1, 9)}"
    for key in ("year", "count"):
        if key in fact:
            fact[key] += rng.randint(1, 9)


def _judge(inputs: Mapping[str, Any]) -> dict[str, list[str]]:
    """What is left of a text without the wordings of its facts, and the facts of which it has no wording."""
    text, missing = inputs["text"], []
    for fact in _known(inputs):
        wording = max((one for one in all_wordings(fact) if one in text), key=len, default=None)
        if wording is None:
            missing.append(inputs["source"] if not fact.get("subject") else f"{fact['form']} of {fact['subject']}")
        else:
            text = text.replace(wording, "", 1)
    for lead in LEADS[1:]:
        text = text.replace(lead, "", 1)
    return {"unsupported": [text.strip()] if text.strip() else [], "missing": missing}


def _known(inputs: Mapping[str, Any]) -> Sequence[Fact]:
    if not inputs["facts"]:
        raise UserError(
            "no program rephrases a text whose facts are unknown; name servers as config.models.writer and "
            "config.models.judge, or leave config.rephrase.path empty"
        )
    return inputs["facts"]
