"""A part of generated worlds: things with places, which are booked, moved and given back."""

from __future__ import annotations

from collections.abc import Mapping
import random

from k2jax.tasks.worlds.parts import PEOPLE, Json, Wish, WorldPart, arg, field, need, plural, snake, text, tool, whole

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


class Bookings(WorldPart):
    """Things with so many places on a day; never more are booked than there are.

    Args:
        words: ``thing`` and ``booking``.
    """

    def __init__(self, words: Mapping[str, str]):
        self.thing, self.noun = words["thing"], words["booking"]
        self.things, self.name = snake(plural(self.thing)), snake(plural(self.noun))
        self.thing_id, self.key = f"{snake(self.thing)}_id", f"{snake(self.noun)}_id"
        fields = {
            "day": text("When it is.", enum=list(DAYS)),
            "places": whole("How many there are.", minimum=1),
            "free": whole("How many are not booked.", minimum=0),
        }
        self.fields = {
            "of": text(f"Id of the {self.thing}.", refers=self.things),
            "guest": text("Who comes."),
            "places": whole("How many are booked.", minimum=1),
        }
        self.collections = {
            self.things: {"prefix": self.things[0], "fields": fields},
            self.name: {"prefix": self.name[0], "fields": self.fields},
        }
        fits = {"at_least": [{"this": "places"}, {"this": "free"}]}
        self.invariants = [{"name": f"{self.things}_fit", "each": self.things, "holds": fits}]
        self.rules = [f"Tell the user the id of the {self.noun} that you have made or cancelled."]
        self._free = field(self.things, arg(self.thing_id), "free")
        self._of, self._places = (field(self.name, arg(self.key), name) for name in ("of", "places"))
        self.tools = [
            self.found(self.things, self.thing, {"day": fields["day"]}),
            self.found(self.name, self.noun, {"guest": self.fields["guest"]}),
            self._book(),
            self._cancel(),
            self._move(),
        ]

    def rows(self, rng: random.Random) -> Json:
        """See ``WorldPart``."""
        sizes = [rng.randint(4, 12) for _ in DAYS]
        made = {
            f"{self.things[0]}{number}": {"day": day, "places": size, "free": size}
            for number, (day, size) in enumerate(zip(DAYS, sizes, strict=True), 1)
        }
        given: Json = {}
        for number, guest in zip(rng.sample(range(10, 99), 3), rng.sample(PEOPLE, 3), strict=True):
            thing = rng.choice(list(made))
            if made[thing]["free"] >= 2:
                made[thing]["free"] -= 2
                given[f"{self.name[0]}{number}"] = {"of": thing, "guest": guest, "places": 2}
        return {self.things: made, self.name: given}

    def wish(self, rng: random.Random, state: Json, used: set[str]) -> Wish | None:
        """Places that are booked, or given back."""
        mine = [key for key, row in state[self.name].items() if not {key, row["of"]} & used]
        if mine and rng.random() < 0.4:
            key = rng.choice(mine)
            used |= {key, state[self.name][key]["of"]}
            return self._cancelled(state, key)
        things = [key for key, row in state[self.things].items() if key not in used and row["free"] > 0]
        if not things or f"new {self.name}" in used:  # the ids of two new ones would depend on their order
            return None
        thing = rng.choice(things)
        used |= {f"new {self.name}", thing}
        return self._booked(rng, state, thing)

    def _cancelled(self, state: Json, key: str) -> Wish:
        row = state[self.name][key]
        free = state[self.things][row["of"]]["free"] + row["places"]
        return Wish(
            opening=f"I cannot come; please cancel my {self.noun}.",
            facts=[{"about": ["name", "who", "guest", "your"], "text": f"My name is {row['guest']}."}],
            calls=[[f"find_{self.name}", {"guest": row["guest"]}], [f"cancel_{snake(self.noun)}", {self.key: key}]],
            goal=[
                {"not": {"exists": [self.name, key]}},
                {"equal": [field(self.things, row["of"], "free"), free]},
            ],
            told=[key],
            rubric=[f"The agent cancels the {self.noun} {key} and says so."],
        )

    def _booked(self, rng: random.Random, state: Json, thing: str) -> Wish:
        row, guest = state[self.things][thing], rng.choice(PEOPLE)
        count, new = rng.randint(1, row["free"]), self.next_id(state, self.name)
        values = {"of": thing, "guest": guest, "places": count}
        booking = {self.thing_id: thing, "guest": guest, "places": count}
        return Wish(
            opening=f"I would like a {self.noun}.",
            facts=[
                {"about": ["day", "when", "date"], "text": f"On {row['day']}."},
                {"about": ["many", "places", "people", "persons"], "text": f"For {count}."},
                {"about": ["name", "who", "guest", "your"], "text": f"My name is {guest}."},
            ],
            calls=[[f"find_{self.things}", {"day": row["day"]}], [f"book_{snake(self.thing)}", booking]],
            goal=[
                *({"equal": [field(self.name, new, name), value]} for name, value in values.items()),
                {"equal": [field(self.things, thing, "free"), row["free"] - count]},
            ],
            told=[new],
            rubric=[f"The agent books {count} places on {row['day']} for {guest} and tells the id, {new}."],
        )

    def _room(self, places: Json) -> Json:
        full = f"the {self.thing} {{{self.thing_id}}} has not so many free places"
        return need({"at_least": [self._free, places]}, full)

    def _given_back(self) -> Json:
        return {"set": [self.things, self._of, "free", {"plus": [field(self.things, self._of, "free"), self._places]}]}

    def _taken(self, places: Json) -> Json:
        return {"set": [self.things, arg(self.thing_id), "free", {"minus": [self._free, places]}]}

    def _book(self) -> Json:
        values = {"of": arg(self.thing_id), "guest": arg("guest"), "places": arg("places")}
        return tool(
            f"book_{snake(self.thing)}",
            f"Makes a {self.noun} of places of a {self.thing}.",
            {
                self.thing_id: text(f"Id of the {self.thing}."),
                "guest": self.fields["guest"],
                "places": self.fields["places"],
            },
            {"record": [self.name, {"new": self.name}]},
            requires=[self.exists(self.things, self.thing, self.thing_id), self._room(arg("places"))],
            effects=[self._taken(arg("places")), {"create": [self.name, {"new": self.name}, values]}],
        )

    def _cancel(self) -> Json:
        return tool(
            f"cancel_{snake(self.noun)}",
            f"Gives the places of a {self.noun} back.",
            {self.key: text(f"Id of the {self.noun}.")},
            {"value": "cancelled"},
            requires=[self.exists(self.name, self.noun, self.key)],
            effects=[self._given_back(), {"delete": [self.name, arg(self.key)]}],
        )

    def _move(self) -> Json:
        new = {self.key: text(f"Id of the {self.noun}."), self.thing_id: text(f"Id of the new {self.thing}.")}
        return tool(
            f"move_{snake(self.noun)}",
            f"Moves a {self.noun} to another {self.thing}.",
            new,
            {"record": [self.name, arg(self.key)]},
            requires=[
                self.exists(self.name, self.noun, self.key),
                self.exists(self.things, self.thing, self.thing_id),
                self._room(self._places),
            ],
            effects=[
                self._given_back(),
                self._taken(self._places),
                {"set": [self.name, arg(self.key), "of", arg(self.thing_id)]},
            ],
        )
