"""A part of generated worlds: accounts, between which amounts move."""

from __future__ import annotations

from collections.abc import Mapping
import random

from k2jax.tasks.worlds.parts import PEOPLE, Json, Wish, WorldPart, arg, field, need, plural, snake, text, tool, whole


class Ledger(WorldPart):
    """Accounts with a balance: amounts move between them and are never made or lost.

    Args:
        words: ``account`` and ``unit``.
    """

    def __init__(self, words: Mapping[str, str]):
        self.noun, self.unit = words["account"], words["unit"]
        self.name, self.key = snake(plural(self.noun)), f"{snake(self.noun)}_id"
        self.transfer = f"transfer_{snake(self.unit)}"
        self.fields = {
            "owner": text(f"Who has the {self.noun}."),
            "balance": whole(f"Its {self.unit}.", minimum=0),
            "status": text("Whether it can be used.", enum=["active", "frozen"]),
        }
        self.collections = {self.name: {"prefix": self.name[0], "fields": self.fields}}
        self.invariants = [{"name": f"total_{self.name}", "total": [[self.name, "balance"]]}]
        self.rules = [
            f"After a transfer tell the user the new balance of the {self.noun}.",
            f"If a {self.noun} has not enough {self.unit}, do nothing and say that you cannot.",
        ]
        filters = {name: self.fields[name] for name in ("owner", "status")}
        self.tools = [
            self.looked_up(self.name, self.noun, self.key),
            self.found(self.name, self.noun, filters),
            self._transfer(),
            self._set_status("freeze", "frozen"),
            self._set_status("unfreeze", "active"),
        ]

    def rows(self, rng: random.Random) -> Json:
        """See ``WorldPart``."""
        owners = rng.sample(PEOPLE, rng.randint(4, 7))
        ids = rng.sample(range(100, 999), len(owners))
        made = {}
        for number, owner in zip(ids, owners, strict=True):
            status = "frozen" if rng.random() < 0.2 else "active"
            made[f"{self.name[0]}{number}"] = {"owner": owner, "balance": rng.randint(20, 200), "status": status}
        return {self.name: made}

    def wish(self, rng: random.Random, state: Json, used: set[str]) -> Wish | None:
        """A transfer, or one that the rules refuse."""
        free = {key: row for key, row in state[self.name].items() if key not in used and row["status"] == "active"}
        if len(free) < 2:
            return None
        source, target = rng.sample(list(free), 2)
        used |= {source, target}
        if rng.random() < 0.25:
            return self._refused(rng, free, source, target)
        return self._moved(rng, free, source, target)

    def _moved(self, rng: random.Random, rows: Json, source: str, target: str) -> Wish:
        gives, gets = rows[source], rows[target]
        amount = rng.randint(1, gives["balance"])
        find = f"find_{self.name}"
        left, new = gives["balance"] - amount, gets["balance"] + amount
        return Wish(
            opening=f"I am {gives['owner']} and want to send some of my {self.unit} to somebody.",
            facts=[
                {"about": ["who", "whom", "recipient", "to", "target"], "text": f"They go to {gets['owner']}."},
                {"about": ["many", "much", "amount", self.unit], "text": f"{amount} {self.unit}, please."},
            ],
            calls=[
                [find, {"owner": gives["owner"]}],
                [find, {"owner": gets["owner"]}],
                [self.transfer, {"source": source, "target": target, "amount": amount}],
            ],
            goal=[
                {"equal": [field(self.name, source, "balance"), left]},
                {"equal": [field(self.name, target, "balance"), new]},
            ],
            told=[str(left)],
            rubric=[f"The agent moves {amount} {self.unit} to {gets['owner']} and tells the new balance, {left}."],
        )

    def _refused(self, rng: random.Random, rows: Json, source: str, target: str) -> Wish:
        gives, gets = rows[source], rows[target]
        amount = gives["balance"] + rng.randint(1, 50)
        return Wish(
            opening=f"I am {gives['owner']}. Please send {amount} of my {self.unit} to {gets['owner']}.",
            calls=[[f"find_{self.name}", {"owner": gives["owner"]}]],
            goal=[{"equal": [field(self.name, source, "balance"), gives["balance"]]}],
            told=["cannot"],
            forbidden=[self.transfer],
            rubric=[f"The agent says that it cannot: the {self.noun} has not so many {self.unit}. It moves none."],
        )

    def _transfer(self) -> Json:
        balance = {side: field(self.name, arg(side), "balance") for side in ("source", "target")}
        status = {side: field(self.name, arg(side), "status") for side in balance}
        amount = arg("amount")
        noun, too_little = self.noun, f"the {self.noun} {{source}} has not so many {self.unit}"
        different = {"not": {"equal": [arg("source"), arg("target")]}}
        return tool(
            self.transfer,
            f"Moves {self.unit} from one {self.noun} to another; both must be active.",
            {
                "source": text(f"Id of the {self.noun} that gives."),
                "target": text(f"Id of the {self.noun} that gets."),
                "amount": whole(f"How many {self.unit}.", minimum=1),
            },
            {"record": [self.name, arg("source")]},
            requires=[
                *(self.exists(self.name, self.noun, side) for side in balance),
                *(need({"equal": [status[side], "active"]}, f"the {noun} {{{side}}} is frozen") for side in status),
                need(different, "source and target are the same"),
                need({"at_least": [balance["source"], amount]}, too_little),
            ],
            effects=[
                {"set": [self.name, arg("source"), "balance", {"minus": [balance["source"], amount]}]},
                {"set": [self.name, arg("target"), "balance", {"plus": [balance["target"], amount]}]},
            ],
        )

    def _set_status(self, verb: str, status: str) -> Json:
        return tool(
            f"{verb}_{snake(self.noun)}",
            f"Sets the status of a {self.noun} to {status}.",
            {self.key: text(f"Id of the {self.noun}.")},
            {"record": [self.name, arg(self.key)]},
            requires=[self.exists(self.name, self.noun, self.key)],
            effects=[{"set": [self.name, arg(self.key), "status", status]}],
        )
