"""Worlds under random calls: what must hold after each of them, replays, and how often calls fail."""

import contextlib
import copy
import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.toolsets.types import ToolError
from k2jax.errors import UserError
from k2jax.tasks.worlds.failures import FailureRates
from k2jax.tasks.worlds.grammar import SETTINGS, draw_task, generated_world
from k2jax.tasks.worlds.world import SimulatedWorld, WorldFaultError, replayed
from k2jax.tasks.worlds.world_spec import read_world

PLACES = [(category, setting) for category, settings_ in SETTINGS.items() for setting in settings_]
RATES = FailureRates(unavailable=0.05, permission=0.04, timeout=0.06, partial=0.1, stale=0.08, edge=0.07)


def drawn(number):
    """A world and the first records of a task of it."""
    rng = random.Random(number)
    world = generated_world(*rng.choice(PLACES), number % 7)
    while (task := draw_task(world, rng)) is None:
        pass
    return world.spec, task.state


def some_call(rng, world):
    """A call with arguments that are valid under the tool's schema, and mostly of records that are there."""
    tool = rng.choice(world.spec.tools)
    ids = [key for rows in world.state.values() for key in rows] + ["missing9"]
    values = [value for rows in world.state.values() for row in rows.values() for value in row.values()]
    texts = ids + [value for value in values if isinstance(value, str)]
    arguments = {}
    for name, field in tool["parameters"].items():
        if field.get("optional") and rng.random() < 0.5:
            continue
        if "enum" in field:
            arguments[name] = rng.choice(field["enum"])
        elif field["type"] == "integer":
            arguments[name] = rng.randint(field.get("minimum", 0), 60)
        else:
            fitting = [key for key in ids if name.endswith("_id") or name in ("source", "target")]
            arguments[name] = rng.choice(fitting or texts)
    return tool["name"], arguments


def check_by_hand(world, first):
    """The rules of the parts, worked out from the records alone."""
    for name, rows in world.state.items():
        fields = world.spec.collections[name]["fields"]
        if "balance" in fields:
            assert sum(row["balance"] for row in rows.values()) == sum(row["balance"] for row in first[name].values())
            assert all(row["balance"] >= 0 and row["status"] in ("active", "frozen") for row in rows.values())
        if "free" in fields:
            [(bookings, refers)] = [
                (world.state[other], field)
                for other, collection in world.spec.collections.items()
                for field, kind in collection["fields"].items()
                if kind.get("refers") == name
            ]
            for key, row in rows.items():
                booked = sum(booking["places"] for booking in bookings.values() if booking[refers] == key)
                assert row["free"] + booked == row["places"], (name, key)
        if "assignee" in fields:
            [people] = [
                other for other in world.state if other != name and "skill" in world.spec.collections[other]["fields"]
            ]
            for row in rows.values():
                assert row["status"] == "open" or row["assignee"] in world.state[people]


def run_episode(number, rates=RATES, calls=25):
    spec, state = drawn(number)
    world, rng = SimulatedWorld(spec, state, rates, number), random.Random(f"calls {number}")
    for _ in range(calls):
        with contextlib.suppress(ToolError):
            world.call(*some_call(rng, world))
        check_by_hand(world, state)
        assert world.broken_rule(world.state) == ""
    again = replayed(spec, state, [(call.name, call.arguments) for call in world.log], rates=rates, seed=number)
    assert again.digest() == world.digest() and again.log == world.log
    return world


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_rules_hold_after_every_call_and_a_replay_gives_the_same_state(number):
    run_episode(number)


@pytest.mark.slow
def test_rules_hold_in_a_thousand_episodes():
    changed = sum(len(call.changed) > 0 for number in range(1000) for call in run_episode(number).log)
    assert changed > 1000  # the episodes do change their worlds


def test_failures_have_their_rates():
    draws = [RATES.draw(seed, number) for seed in range(40) for number in range(100)]
    for name, rate in vars(RATES).items():
        error = math.sqrt(rate * (1 - rate) / len(draws))
        assert abs(draws.count(name) / len(draws) - rate) <= 2 * error, name


def fate_of(rates, name, arguments, seed=0, warm=()):
    spec, state = LEDGER, {"accounts": {"a1": {"balance": 9}, "a2": {"balance": 1}}}
    world = SimulatedWorld(spec, state)
    for call in warm:
        world.call(*call)
    world._rates, world._seed = FailureRates(**rates), seed  # the earlier calls have succeeded
    try:
        text = world.call(name, arguments)
    except ToolError as error:
        text = f"error: {error}"
    return world, text


FROM = {"field": ["accounts", "a1", "balance"]}
TO = {"field": ["accounts", {"arg": "to"}, "balance"]}
MOVE = {
    "name": "move",
    "description": "",
    "parameters": {"to": {"type": "string"}, "amount": {"type": "integer"}},
    "requires": [],
    "effects": [
        {
            "set": [
                "accounts",
                "a1",
                "balance",
                {"minus": [FROM, {"arg": "amount"}]},
            ]
        },
        {"set": ["accounts", {"arg": "to"}, "balance", {"plus": [TO, {"arg": "amount"}]}]},
    ],
    "returns": {"record": ["accounts", "a1"]},
}
EMPTY = {"description": "", "parameters": {}, "requires": [], "effects": []}
LEDGER = read_world(
    {
        "name": "bank",
        "description": "",
        "policy": "",
        "collections": {"accounts": {"prefix": "a", "fields": {"balance": {"type": "integer", "minimum": 0}}}},
        "invariants": [{"name": "total", "total": [["accounts", "balance"]]}],
        "tools": [
            MOVE,
            EMPTY
            | {"name": "print", "effects": [{"set": ["accounts", "a1", "balance", 100]}], "returns": {"value": "ok"}},
            EMPTY | {"name": "show", "returns": {"find": ["accounts", {}]}},
        ],
    }
)


AGE = {"equal": [{"this": "age"}, 1]}


def test_a_tool_that_would_break_a_rule_changes_nothing():
    world = SimulatedWorld(LEDGER, {"accounts": {"a1": {"balance": 9}, "a2": {"balance": 1}}})
    with pytest.raises(WorldFaultError, match="total does not hold: 10 became 101"):
        world.call("print", {})
    with pytest.raises(WorldFaultError, match="balance cannot be -1"):
        world.call("move", {"to": "a2", "amount": 10})
    with pytest.raises(ToolError, match="accounts has no record 'a3'"):
        world.call("move", {"to": "a3", "amount": 1})
    assert world.state == {"accounts": {"a1": {"balance": 9}, "a2": {"balance": 1}}}


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        ("unavailable", (9, "error: the service is not available")),
        ("permission", (9, "error: the session has expired")),
        ("partial", (5, '{"id": "a1", "complete": false}')),
        ("stale", (5, '{"id": "a1", "balance": 9}')),
        ("edge", (5, '{"status": "ok", "warnings": [], "data": {"result": {"id": "a1", "balance": 5}}}')),
    ],
)
def test_what_an_agent_sees_of_a_failure(fate, expected):
    world, text = fate_of({fate: 1.0}, "move", {"to": "a2", "amount": 4})
    assert (world.state["accounts"]["a1"]["balance"], text[: len(expected[1])]) == expected


def test_half_of_the_calls_without_an_answer_were_carried_out():
    left = [fate_of({"timeout": 1.0}, "move", {"to": "a2", "amount": 4}, seed)[0] for seed in range(60)]
    done = sum(world.state["accounts"]["a1"]["balance"] == 5 for world in left)
    assert 18 <= done <= 42
    assert all(
        world.log[0].error
        and world.log[0].changed
        == (() if world.state["accounts"]["a1"]["balance"] == 9 else (("accounts", "a1"), ("accounts", "a2")))
        for world in left
    )


def test_a_stale_answer_is_of_the_state_before_the_last_change():
    _, text = fate_of({"stale": 1.0}, "show", {}, warm=[("move", {"to": "a2", "amount": 4})])
    assert text == '[{"id": "a1", "balance": 9}, {"id": "a2", "balance": 1}]'


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("tools", 0, "effects", 0), {"set": ["nowhere", "a1", "balance", 1]}, "the collection 'nowhere'"),
        (("tools", 0, "effects", 0), {"set": ["accounts", "a1", "colour", 1]}, "the field 'colour' of accounts"),
        (("tools", 0, "effects", 0), {"exec": "import os"}, "has {'exec': 'import os'}"),
        (("tools", 0, "returns"), {"value": {"arg": "who"}}, "names arg 'who', which is unknown"),
        (("tools", 0, "requires"), [{"condition": {"equal": [1]}, "error": ""}], "of which the parts are wrong"),
        (("tools", 0, "name"), "two words", "'two words' has no name"),
        (("tools", 1, "name"), "move", "two tools have one name"),
        (("collections", "accounts", "fields", "balance"), {"type": "date"}, "the field 'balance' of accounts"),
        (("invariants", 0), {"name": "x", "each": "accounts", "holds": AGE}, "names this 'age'"),
    ],
)
def test_a_specification_with_a_mistake_is_refused_in_one_line(place, value, message):
    values = copy.deepcopy(LEDGER.to_json())
    target = values
    for part in place[:-1]:
        target = target[part]
    target[place[-1]] = value
    with pytest.raises(UserError) as error:
        read_world(values)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_deep_expression_is_refused():
    values = LEDGER.to_json() | {"tools": [{**LEDGER.tools[2], "returns": {"value": 1}}]}
    for _ in range(3000):
        values["tools"][0]["returns"]["value"] = {"plus": [1, values["tools"][0]["returns"]["value"]]}
    with pytest.raises(UserError, match=r"nested too deep|recursion"):
        read_world(values)
