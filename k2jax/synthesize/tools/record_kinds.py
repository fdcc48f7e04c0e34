"""Kinds of records that the program for evolution adds to a world, each with tools that look up, change and refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import random

from k2jax.synthesize.tools.evolution_words import NOUNS, NUMBERS, OTHER_NOUNS, QUALITIES, STATES, TEXTS
from k2jax.tasks.worlds.parts import Json, WorldPart, arg, field, need, plural, snake, text, tool, whole


class RecordKind:
    """A collection that did not exist before, with its tools.

    Args:
        category: of the domain.
        rng: of the draw.

    Attributes:
        name: of the collection.
        collection: see ``WorldSpec``.
        tools: see ``WorldSpec``.
    """

    def __init__(self, category: str, rng: random.Random):
        noun = rng.choice(NOUNS.get(category, OTHER_NOUNS).split(","))
        self.noun = f"{rng.choice(QUALITIES)} {noun}"
        self.name, self.key = snake(plural(self.noun)), f"{snake(self.noun)}_id"
        self._numbers, self._texts = rng.sample(list(NUMBERS), 2), rng.sample(list(TEXTS), 2)
        (self._states, self._verbs), self._rng = rng.choice(STATES), rng
        self._fields = {
            **{name: text(f"The {name} {TEXTS[name]}.") for name in self._texts},
            **{name: whole(f"The {name} {NUMBERS[name]}.", minimum=0) for name in self._numbers},
            "status": text("How far it is.", enum=list(self._states)),
        }
        self.collection = {"prefix": self.name[:2], "fields": self._fields}
        self.tools = list(self._made())

    def _made(self) -> Iterator[Json]:
        yield self._registered()
        yield from self._shown()
        yield from self._moved()
        for name in self._numbers:
            yield from self._counted(name)
        for name in self._texts:
            yield self._renamed(name)
        yield self._copied()
        yield self._removed()

    def _one(self) -> Json:
        return {self.key: text(f"Id of the {self.noun}.")}

    def _known(self) -> Json:
        return WorldPart.exists(self.name, self.noun, self.key)

    def _of(self, name: str) -> Json:
        return field(self.name, arg(self.key), name)

    def _set(self, name: str, value: object) -> Json:
        return {"set": [self.name, arg(self.key), name, value]}

    def _record(self) -> Json:
        return {"record": [self.name, arg(self.key)]}

    def _said(self, *ways: str) -> str:
        return self._rng.choice(ways)

    def _registered(self) -> Json:
        names = [*self._texts, *self._numbers]
        values = {**{name: arg(name) for name in names}, "status": self._states[0]}
        verb = self._said("register", "add", "enter", "record")
        return tool(
            f"{verb}_{snake(self.noun)}",
            f"{verb.capitalize()}s a {self.noun}, which is {self._states[0]} at first.".replace("rys ", "ries "),
            {name: self._fields[name] for name in names},
            {"record": [self.name, {"new": self.name}]},
            effects=[{"create": [self.name, {"new": self.name}, values]}],
        )

    def _shown(self) -> Iterator[Json]:
        returns, known = self._record(), [self._known()]
        yield tool(
            f"get_{snake(self.noun)}", self._said(f"Shows a {self.noun}.", f"Looks a {self.noun} up by its id."),
            self._one(), returns, requires=known,
        )  # fmt: skip
        yield WorldPart.found(self.name, self.noun, {name: self._fields[name] for name in (self._texts[0], "status")})
        number = self._numbers[0]
        yield tool(
            f"tell_{number}_of_{snake(self.noun)}", f"Tells the {number} of a {self.noun}, {NUMBERS[number]}.",
            self._one(), {"value": self._of(number)}, requires=known,
        )  # fmt: skip
        last = self._states[-1]
        yield tool(
            f"list_{last}_{self.name}", f"Lists all {plural(self.noun)} that are {last}.", {},
            {"find": [self.name, {"status": last}]},
        )  # fmt: skip

    def _moved(self) -> Iterator[Json]:
        for place, verb in enumerate(self._verbs):
            before, after = self._states[place], self._states[place + 1]
            refused = f"the {self.noun} {{{self.key}}} is not {before}"
            yield tool(
                f"{verb}_{snake(self.noun)}",
                f"Makes a {self.noun} that is {before} {after}.",
                self._one(),
                self._record(),
                requires=[self._known(), need({"equal": [self._of("status"), before]}, refused)],
                effects=[self._set("status", after)],
            )

    def _counted(self, name: str) -> Iterator[Json]:
        amount = whole(f"By how much, {NUMBERS[name]}.", minimum=1)
        enough = need({"at_least": [self._of(name), arg("amount")]}, f"the {name} would be below 0")
        for verb, sign, requires in (("raise", "plus", [self._known()]), ("lower", "minus", [self._known(), enough])):
            yield tool(
                f"{verb}_{name}_of_{snake(self.noun)}",
                f"{verb.capitalize()}s the {name} of a {self.noun} by an amount {NUMBERS[name]}.",
                {**self._one(), "amount": amount},
                {"value": self._of(name)},
                requires=requires,
                effects=[self._set(name, {sign: [self._of(name), arg("amount")]})],
            )
        other = field(self.name, arg("other_id"), name)
        yield tool(
            f"take_over_{name}_of_{snake(self.noun)}",
            f"Gives a {self.noun} the {name} of another one.",
            {**self._one(), "other_id": text(f"Id of the other {self.noun}.")},
            self._record(),
            requires=[self._known(), WorldPart.exists(self.name, self.noun, "other_id")],
            effects=[self._set(name, other)],
        )

    def _renamed(self, name: str) -> Json:
        return tool(
            f"change_{name}_of_{snake(self.noun)}",
            self._said(f"Changes the {name} of a {self.noun}.", f"Gives a {self.noun} another {name}."),
            {**self._one(), name: self._fields[name]},
            self._record(),
            requires=[self._known()],
            effects=[self._set(name, arg(name))],
        )

    def _copied(self) -> Json:
        values: Mapping[str, Json | str] = {
            **{name: self._of(name) for name in (*self._texts, *self._numbers)},
            "status": self._states[0],
        }
        return tool(
            f"copy_{snake(self.noun)}",
            f"Makes another {self.noun} like one that exists.",
            self._one(),
            {"record": [self.name, {"new": self.name}]},
            requires=[self._known()],
            effects=[{"create": [self.name, {"new": self.name}, values]}],
        )

    def _removed(self) -> Json:
        last = self._states[-1]
        refused = f"the {self.noun} {{{self.key}}} is not {last}"
        return tool(
            f"remove_{snake(self.noun)}",
            f"Removes a {self.noun} that is {last}.",
            self._one(),
            {"value": "removed"},
            requires=[self._known(), need({"equal": [self._of("status"), last]}, refused)],
            effects=[{"delete": [self.name, arg(self.key)]}],
        )
