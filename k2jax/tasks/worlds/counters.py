"""Small worlds for models of characters: records of one number, and few tools of invented names, all in one line each.

The prompt lists the tools with their parameters (``set_kavo id n``), and a user names one with its arguments
(``set_kavo z12 45``). Names end with a word that means nothing, so that those of another world are unseen, and have to
be copied.
"""

from __future__ import annotations

from collections.abc import Sequence
import random

from k2jax.tasks.worlds.parts import Json, Wish, WorldPart, arg, field, need, text, tool, whole

KINDS = ("set", "read", "new", "drop", "copy")
"""What tools do."""
LARGEST = 99
_ROWS = 3


def invented(rng: random.Random, count: int) -> list[str]:
    """Different words of two syllables."""
    words: list[str] = []
    while len(words) < count:
        word = "".join(rng.choice(letters) for letters in ("bdfgklmnprstvz", "aeiou") * 2)
        if word not in words:
            words.append(word)
    return words


class Counters(WorldPart):
    """Records of one number, and tools of invented names.

    Args:
        name: of the collection.
        tools: what each tool does and the word that its name ends with, in the order of the prompt.
    """

    def __init__(self, name: str, tools: Sequence[tuple[str, str]]):
        self.name, self.named = name, {kind: f"{kind}_{word}" for kind, word in tools}
        self.fields = {"n": whole("Its number.", minimum=0, maximum=LARGEST)}
        self.collections = {name: {"prefix": name[0], "fields": self.fields}}
        self.invariants = []
        self.tools = [self._tool(kind) for kind, _ in tools]
        self.rules = [" ".join((one["name"], *one["parameters"])) for one in self.tools]

    def rows(self, rng: random.Random) -> Json:
        """See ``WorldPart``."""
        numbers = rng.sample(range(10, 99), _ROWS)
        return {self.name: {f"{self.name[0]}{number}": {"n": _number(rng)} for number in numbers}}

    def wish(self, rng: random.Random, state: Json, used: set[str]) -> Wish | None:
        """One call of one tool."""
        rows = state[self.name]
        kind, key, number = rng.choice(list(self.named)), rng.choice(list(rows)), _number(rng)
        new = self.next_id(state, self.name)
        other = rng.choice([one for one in rows if one != key])
        goal = {"equal": [field(self.name, key, "n"), rows[key]["n"]]}
        told: list[str] = []
        if kind == "set":
            arguments: Json = {"id": key, "n": number}
            goal = {"equal": [field(self.name, key, "n"), number]}
        elif kind == "read":
            arguments, told = {"id": key}, [str(rows[key]["n"])]
        elif kind == "new":
            arguments, told = {"n": number}, [new]
            goal = {"equal": [field(self.name, new, "n"), number]}
        elif kind == "drop":
            arguments = {"id": key}
            goal = {"not": {"exists": [self.name, key]}}
        else:
            arguments = {"id": key, "to": other}
            goal = {"equal": [field(self.name, other, "n"), rows[key]["n"]]}
        rest = [one for one in rows if one not in (key, other) or (one == other and kind != "copy")]
        kept = [{"equal": [field(self.name, one, "n"), rows[one]["n"]]} for one in rest]
        answer = f" and tells {told[0]}" if told else ""
        return Wish(
            opening=" ".join((self.named[kind], *map(str, arguments.values()))),
            calls=[[self.named[kind], arguments]],
            goal=[goal, *kept],
            told=told,
            rubric=[f"The agent calls {self.named[kind]} with {', '.join(map(str, arguments.values()))}{answer}."],
        )

    def _tool(self, kind: str) -> Json:
        name, key = self.name, {"id": text("Id of a record.")}
        known = [need({"exists": [name, arg("id")]}, "no {id}")]
        value = {"n": self.fields["n"]}
        if kind == "set":
            effects = [{"set": [name, arg("id"), "n", arg("n")]}]
            return tool(self.named[kind], kind, key | value, {"value": "ok"}, requires=known, effects=effects)
        if kind == "read":
            return tool(self.named[kind], kind, key, {"value": field(name, arg("id"), "n")}, requires=known)
        if kind == "new":
            effects = [{"create": [name, {"new": name}, {"n": arg("n")}]}]
            return tool(self.named[kind], kind, value, {"value": {"new": name}}, effects=effects)
        if kind == "drop":
            effects = [{"delete": [name, arg("id")]}]
            return tool(self.named[kind], kind, key, {"value": "ok"}, requires=known, effects=effects)
        both = key | {"to": text("Id of the record that gets its number.")}
        there = need({"exists": [name, arg("to")]}, "no {to}")
        effects = [{"set": [name, arg("to"), "n", field(name, arg("id"), "n")]}]
        return tool(self.named[kind], kind, both, {"value": "ok"}, requires=[*known, there], effects=effects)


def _number(rng: random.Random) -> int:
    return rng.randint(10, LARGEST)
