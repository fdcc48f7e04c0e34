"""Worlds and tasks drawn from a seeded grammar: no model is needed, and every task has a solution that is checked.

A world is one or two parts (accounts, requests, bookings) under the words of a setting. A task is a user with one to
three wishes, in a state of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import random
from typing import Any, Literal, NamedTuple

from k2jax.tasks.worlds.bookings import Bookings
from k2jax.tasks.worlds.counters import KINDS, Counters, invented
from k2jax.tasks.worlds.ledger import Ledger
from k2jax.tasks.worlds.parts import Wish, WorldPart
from k2jax.tasks.worlds.tickets import Tickets
from k2jax.tasks.worlds.users import UserSpec
from k2jax.tasks.worlds.world import replayed
from k2jax.tasks.worlds.world_spec import WorldSpec, read_world

SETTINGS = {
    "travel": ("airport", "ferry port", "railway station", "hostel", "campsite", "coach line"),
    "health": ("dental clinic", "pharmacy", "physiotherapy practice", "blood bank", "optician", "vaccination centre"),
    "education": ("language school", "university library", "driving school", "music school", "laboratory", "nursery"),
    "culture": ("city library", "cinema", "museum", "theatre", "observatory", "concert hall"),
    "sport": ("climbing gym", "swimming pool", "tennis club", "ski resort", "rowing club", "bowling alley"),
    "work": ("coworking space", "recruiting agency", "print shop", "data centre", "design studio", "call centre"),
    "home": ("housing association", "laundry", "moving company", "garden centre", "repair cafe", "parking garage"),
    "food": ("restaurant", "bakery", "farm shop", "catering service", "wine cellar", "cooking school"),
    "public": ("town hall", "fire station", "recycling yard", "water works", "road service", "lost property office"),
    "trade": ("book shop", "electronics store", "auction house", "flower market", "bicycle shop", "toy store"),
}
"""Where worlds are set, by category."""
_ACCOUNTS = ("gift card", "wallet", "loyalty account", "prepaid card", "voucher book", "savings pot", "club account")
_UNITS = ("points", "credits", "coins", "miles", "tokens", "stars", "minutes", "stamps", "vouchers", "hours")
_TICKETS = ("complaint", "repair order", "request", "inspection", "inquiry", "claim", "report", "work order")
_WORKERS = ("technician", "clerk", "adviser", "inspector", "coordinator", "specialist")
_TOPICS = (
    "billing,damage,delivery", "noise,heating,water", "access,safety,signs", "software,hardware,network",
    "insurance,refund,warranty", "cleaning,lighting,locks",
)  # fmt: skip
_THINGS = ("course", "tour", "workshop", "session", "table", "boat", "room", "class", "screening", "slot")
_BOOKINGS = ("booking", "reservation", "registration", "appointment")
_QUALITIES = (
    "", "annual ", "basic ", "central ", "daily ", "express ", "family ", "green ", "guest ", "junior ", "local ",
    "mobile ", "night ", "open ", "premium ", "public ", "regional ", "senior ", "shared ", "student ", "team ",
    "travel ", "weekend ", "winter ",
)  # fmt: skip
_PARTS = {"ledger": Ledger, "tickets": Tickets, "bookings": Bookings}
MOST_WISHES = 3
WorldSize = Literal["full", "small"]
SMALL_TOOLS = 3
"""Tools of a small world."""


class GeneratedWorld(NamedTuple):
    """A world of the grammar.

    Attributes:
        spec: the world.
        parts: that it is made of.
        is_small: whether its users want one thing, say all of it at once, and leave at the first answer.
    """

    spec: WorldSpec
    parts: tuple[WorldPart, ...]
    is_small: bool = False


def generated_world(category: str, setting: str, number: int, size: WorldSize = "full") -> GeneratedWorld:
    """The world ``number`` of a setting: always the same.

    Args:
        category: of ``SETTINGS``, or another word.
        setting: such as ``city library``.
        number: of the world in its setting.
        size: ``full`` has up to a dozen tools under words of the setting; ``small`` is of ``counters``.
    """
    if size == "small":
        return _small_world(category, setting, number)
    rng = random.Random(f"world {category} {setting} {number}")
    kinds = rng.sample(list(_PARTS), rng.choice((1, 2, 2)))
    quality = rng.choice(_QUALITIES)
    words = {
        "account": quality + rng.choice(_ACCOUNTS),
        "unit": rng.choice(_UNITS),
        "ticket": quality + rng.choice(_TICKETS),
        "worker": rng.choice(_WORKERS),
        "topics": rng.choice(_TOPICS),
        "thing": quality + rng.choice(_THINGS),
        "booking": rng.choice(_BOOKINGS),
    }
    parts: tuple[WorldPart, ...] = tuple(_PARTS[kind](words) for kind in kinds)
    rules = [
        f"You work for a {setting}. You help its customers with your tools and with nothing else.",
        "Ask for what you do not know; never guess it. Do what the user asks for and nothing else.",
        *(rule for part in parts for rule in part.rules),
        "A tool may fail or answer in part; look again before you repeat a change.",
    ]
    values = {
        "name": f"{setting.replace(' ', '_')}_{number}",
        "description": f"The service desk of a {setting} ({category}): {', '.join(kinds)}.",
        "policy": "\n".join(rules),
        "collections": _merged(part.collections for part in parts),
        "invariants": [invariant for part in parts for invariant in part.invariants],
        "tools": [tool for part in parts for tool in part.tools],
    }
    return GeneratedWorld(read_world(values), parts)


def _small_world(category: str, setting: str, number: int) -> GeneratedWorld:
    rng = random.Random(f"small world {category} {setting} {number}")
    kinds = rng.sample(KINDS, SMALL_TOOLS)
    noun, *verbs = invented(rng, 1 + len(kinds))
    part = Counters(noun, list(zip(kinds, verbs, strict=True)))
    values = {
        "name": f"{setting.replace(' ', '_')}_{number}",
        "description": f"Numbers of a {setting} ({category}).",
        "policy": "\n".join(part.rules),
        "collections": part.collections,
        "invariants": part.invariants,
        "tools": part.tools,
    }
    return GeneratedWorld(read_world(values), (part,), is_small=True)


def _merged(mappings: Any) -> dict[str, Any]:
    return {name: value for mapping in mappings for name, value in mapping.items()}


class TaskDraft(NamedTuple):
    """A task of a world before it has tools, a scaffold and failures.

    Attributes:
        state: the first records.
        user: who asks.
        expected: see ``goals.EXPECTED``.
        rubric: what a judge looks for, as sentences.
        wishes: how many the user has.
    """

    state: Mapping[str, Any]
    user: UserSpec
    expected: Mapping[str, Any]
    rubric: Sequence[str]
    wishes: int


STYLES = ("You are brief.", "You are friendly and a little distracted.", "You are in a hurry.", "You are very polite.")


def draw_task(world: GeneratedWorld, rng: random.Random, most_wishes: int = MOST_WISHES) -> TaskDraft | None:
    """A task whose reference calls reach its goal; None where the draw has no wish, or one that cannot be fulfilled."""
    state = _merged(part.rows(rng) for part in world.parts)
    wishes: list[Wish] = []
    used: set[str] = set()
    for _ in range(rng.randint(1, 1 if world.is_small else most_wishes)):
        wish = rng.choice(world.parts).wish(rng, state, used)
        if wish is not None:
            wishes.append(wish)
    if not wishes:
        return None
    first, *others = wishes
    facts = [fact for wish in wishes for fact in wish.facts]
    later = [{"about": ["else", "anything", "more"], "text": wish.opening} for wish in others]
    user = UserSpec(
        opening=first.opening,
        persona=rng.choice(STYLES),
        facts=(*first.facts, *(one for wish, said in zip(others, later, strict=True) for one in (said, *wish.facts))),
        patience=0 if world.is_small else 2 * len(facts) + 2 * len(wishes) + 4,
    )
    expected = {
        "goal": [condition for wish in wishes for condition in wish.goal],
        "told": [told for wish in wishes for told in wish.told],
        "forbidden": _forbidden(wishes),
        "calls": [call for wish in wishes for call in wish.calls],
    }
    drawn = TaskDraft(state, user, expected, [point for wish in wishes for point in wish.rubric], len(wishes))
    return drawn if is_solvable(world.spec, drawn) else None


def _forbidden(wishes: Sequence[Wish]) -> list[str]:
    """Tools that no wish needs and that one forbids."""
    allowed = {name for wish in wishes for name, _ in wish.calls if name not in wish.forbidden}
    return sorted({name for wish in wishes for name in wish.forbidden} - allowed)


def is_solvable(spec: WorldSpec, drawn: TaskDraft) -> bool:
    """Whether the reference calls of a task reach its goal in a world without failures."""
    world = replayed(spec, drawn.state, [(name, arguments) for name, arguments in drawn.expected["calls"]])
    return all(world.reached(drawn.expected["goal"]))
