"""A part of generated worlds: requests that are opened, given to somebody, and closed."""

from __future__ import annotations

from collections.abc import Mapping
import random

from k2jax.tasks.worlds.parts import PEOPLE, Json, Wish, WorldPart, arg, field, need, plural, snake, text, tool

STATUSES = ("open", "assigned", "closed")


class Tickets(WorldPart):
    """Requests with a status that only goes forward, each of which may be assigned to one of a staff.

    Args:
        words: ``ticket``, ``worker`` and ``topics``, which are separated by commas.
    """

    def __init__(self, words: Mapping[str, str]):
        self.noun, self.staff, self.topics = words["ticket"], words["worker"], words["topics"].split(",")
        self.name, self.people = snake(plural(self.noun)), snake(plural(self.staff))
        self.key, self.worker = f"{snake(self.noun)}_id", f"{snake(self.staff)}_id"
        self.fields = {
            "topic": text("What it is about.", enum=self.topics),
            "requester": text("Who asks."),
            "status": text("How far it is.", enum=list(STATUSES)),
            "assignee": text(f"Id of the {self.staff}.", refers=self.people, optional=True),
        }
        skills = {"name": text(f"Of the {self.staff}."), "skill": text("Topic that is known best.", enum=self.topics)}
        self.collections = {
            self.name: {"prefix": self.name[0], "fields": self.fields},
            self.people: {"prefix": self.people[0], "fields": skills},
        }
        is_open, has_none = {"equal": [{"this": "status"}, "open"]}, {"equal": [{"this": "assignee"}, None]}
        assigned = {"any": [is_open, {"not": has_none}]}
        self.invariants = [{"name": f"{self.name}_assigned", "each": self.name, "holds": assigned}]
        self.rules = [
            f"Give a {self.noun} to the {self.staff} whose skill is its topic, and tell the user the name.",
            f"After opening a {self.noun} tell the user its id.",
        ]
        filters = {name: self.fields[name] for name in ("status", "requester")}
        self.tools = [
            self.looked_up(self.name, self.noun, self.key),
            self.found(self.name, self.noun, filters),
            self.found(self.people, self.staff, {"skill": skills["skill"]}),
            self._open(),
            self._assign(),
            self._close(),
        ]

    def rows(self, rng: random.Random) -> Json:
        """See ``WorldPart``."""
        names = rng.sample(PEOPLE, len(self.topics))
        workers = {
            f"{self.people[0]}{number}": {"name": name, "skill": topic}
            for number, (name, topic) in enumerate(zip(names, self.topics, strict=True), 1)
        }
        made = {}
        for number in rng.sample(range(10, 99), rng.randint(3, 6)):
            row = {"topic": rng.choice(self.topics), "requester": rng.choice(PEOPLE), "status": rng.choice(STATUSES)}
            assigned = {} if row["status"] == "open" else {"assignee": rng.choice(list(workers))}
            made[f"{self.name[0]}{number}"] = row | assigned
        return {self.name: made, self.people: workers}

    def wish(self, rng: random.Random, state: Json, used: set[str]) -> Wish | None:
        """One that is opened, or given to whom it belongs."""
        waiting = [key for key, row in state[self.name].items() if row["status"] != "closed" and key not in used]
        if waiting and rng.random() < 0.5:
            key = rng.choice(waiting)
            used.add(key)
            return self._given(state, key)
        if f"new {self.name}" in used:  # the ids of two new ones would depend on their order
            return None
        used.add(f"new {self.name}")
        return self._opened(rng, state)

    def _given(self, state: Json, key: str) -> Wish:
        topic = state[self.name][key]["topic"]
        expert = next(one for one, row in state[self.people].items() if row["skill"] == topic)
        name = state[self.people][expert]["name"]
        return Wish(
            opening=f"One of our {plural(self.noun)} should be given to the right {self.staff}.",
            facts=[
                {"about": ["which", *self.noun.split(), "id", "number"], "text": f"The {self.noun} is {key}."},
                {"about": ["who", "whom", *self.staff.split(), "skill"], "text": f"Who knows {topic} best."},
            ],
            calls=[
                [f"get_{snake(self.noun)}", {self.key: key}],
                [f"find_{self.people}", {"skill": topic}],
                [f"assign_{snake(self.noun)}", {self.key: key, self.worker: expert}],
            ],
            goal=[{"equal": [field(self.name, key, "assignee"), expert]}],
            told=[name],
            forbidden=[f"close_{snake(self.noun)}"],
            rubric=[f"The agent assigns {key} to {name} and tells the name."],
        )

    def _opened(self, rng: random.Random, state: Json) -> Wish:
        requester, topic = rng.choice(PEOPLE), rng.choice(self.topics)
        new = self.next_id(state, self.name)
        values = {"topic": topic, "requester": requester, "status": "open"}
        return Wish(
            opening=f"I want to open a {self.noun}.",
            facts=[
                {"about": ["topic", "about", "what", "problem"], "text": f"It is about {topic}."},
                {"about": ["who", "name", "requester", "your"], "text": f"My name is {requester}."},
            ],
            calls=[[f"open_{snake(self.noun)}", {"topic": topic, "requester": requester}]],
            goal=[{"equal": [field(self.name, new, name), value]} for name, value in values.items()],
            told=[new],
            rubric=[f"The agent opens one {self.noun} about {topic} for {requester} and tells its id, {new}."],
        )

    def _open(self) -> Json:
        values = {"topic": arg("topic"), "requester": arg("requester"), "status": "open"}
        return tool(
            f"open_{snake(self.noun)}",
            f"Opens a {self.noun} for somebody.",
            {name: self.fields[name] for name in ("topic", "requester")},
            {"record": [self.name, {"new": self.name}]},
            effects=[{"create": [self.name, {"new": self.name}, values]}],
        )

    def _assign(self) -> Json:
        is_closed = {"equal": [field(self.name, arg(self.key), "status"), "closed"]}
        return tool(
            f"assign_{snake(self.noun)}",
            f"Gives a {self.noun} that is not closed to a {self.staff}.",
            {self.key: text(f"Id of the {self.noun}."), self.worker: text(f"Id of the {self.staff}.")},
            {"record": [self.name, arg(self.key)]},
            requires=[
                self.exists(self.name, self.noun, self.key),
                self.exists(self.people, self.staff, self.worker),
                need({"not": is_closed}, f"the {self.noun} {{{self.key}}} is closed"),
            ],
            effects=[
                {"set": [self.name, arg(self.key), "assignee", arg(self.worker)]},
                {"set": [self.name, arg(self.key), "status", "assigned"]},
            ],
        )

    def _close(self) -> Json:
        is_assigned = {"equal": [field(self.name, arg(self.key), "status"), "assigned"]}
        return tool(
            f"close_{snake(self.noun)}",
            f"Closes an assigned {self.noun}.",
            {self.key: text(f"Id of the {self.noun}.")},
            {"record": [self.name, arg(self.key)]},
            requires=[
                self.exists(self.name, self.noun, self.key),
                need(is_assigned, f"the {self.noun} {{{self.key}}} is not assigned"),
            ],
            effects=[{"set": [self.name, arg(self.key), "status", "closed"]}],
        )
