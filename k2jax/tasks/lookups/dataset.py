"""Wide questions in a few characters: the numbers that several keys lead to, each over one or two others.

The kind ``wide4`` asks for four keys, as ``akzm=``; the answer names each with its number, ``a=57 k=12 z=30 m=98``. A
key of the store holds a number or another key. Looked up one call after another a question takes two or three steps a
key; sub-agents look all keys up at once (the wide search of Kimi K2.5, section 3, in small).
"""

from __future__ import annotations

import random
import string

from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.agents.toolsets.store import STORE
from k2jax.agents.verifier import judges_every_answer
from k2jax.tasks.generated import GeneratedTasks, SizedMaker, sized_makers, user
from k2jax.trajectory import Reward

DIRECT, ONE_HOP, TWO_HOPS = 10, 8, 8
"""Keys of a store that hold a number, that lead to one of those, and that lead there over another one."""
WIDEST = ONE_HOP + TWO_HOPS
KEYS = "keys"
"""Key of a task's metadata: the keys that are asked for, in order."""


class LookupTasks(GeneratedTasks):
    """Distinct questions; metadata hold the keys and the store."""

    def __init__(
        self,
        kinds: tuple[str, ...] = ("wide2", "wide4", "wide6", "wide8"),
        count: int = 10_000,
        seed: int = 0,
        split: Split = "train",
    ):
        """A set of questions.

        Args:
            kinds: each with equal probability.
            count: number of tasks.
            seed: of their choice; the splits of all seeds are disjoint.
            split: ``train`` or ``test``.

        Raises:
            UserError: a kind is unknown, or ``count`` is not positive.
        """
        self._makers = sized_makers("lookups", kinds, {"wide": SizedMaker(_question, 1, WIDEST)})
        super().__init__("lookups", count, split, stream=f"lookups {seed} {split} {' '.join(self._makers)}")

    def identity(self, task: Task) -> str:
        """The keys and the store."""
        return task.id

    def draw(self, number: int, rng: random.Random) -> Task:
        """A question of any kind."""
        kind = rng.choice(list(self._makers))
        keys, store = self._makers[kind](rng)
        prompt, stored = f"{''.join(keys)}=", "".join(store[key] for key in sorted(store))
        return Task(
            id=f"{kind}/{prompt}{stored}",
            domain=kind,
            instruction=(user(prompt),),
            verifier="lookups",
            environment="tools",
            tools=("store",),
            metadata={STORE: store, KEYS: keys},
        )


def _question(rng: random.Random, width: int) -> tuple[list[str], dict[str, str]]:
    """Keys, and a store of the alphabet; a question of one key may be about any of them."""
    keys = rng.sample(string.ascii_lowercase, DIRECT + ONE_HOP + TWO_HOPS)
    direct, one_hop, two_hops = keys[:DIRECT], keys[DIRECT : DIRECT + ONE_HOP], keys[DIRECT + ONE_HOP :]
    store = {key: str(rng.randint(10, 99)) for key in direct}
    store |= {key: rng.choice(direct) for key in one_hop} | {key: rng.choice(one_hop) for key in two_hops}
    return rng.sample(keys if width == 1 else one_hop + two_hops, width), dict(sorted(store.items()))


def hops_of(store: dict[str, str], key: str) -> tuple[list[str], str]:
    """The keys that are looked up one after another, from ``key`` on, and the number to which they lead."""
    keys = [key]
    while store[keys[-1]] in store:
        keys.append(store[keys[-1]])
    return keys, store[keys[-1]]


def pair_of(store: dict[str, str], key: str) -> str:
    """A key and its number, as an answer has them."""
    return f"{key}={hops_of(store, key)[1]}"


def answer_of(task: Task) -> str:
    """The right answer to a question."""
    return " ".join(pair_of(task.metadata[STORE], key) for key in task.metadata[KEYS])


@judges_every_answer(answer_of)
def lookups(task: Task, answer: str) -> Reward:
    """Share of the keys whose numbers are right, in [0, 1]; 0 where an answer has more or fewer than were asked for.

    Returns:
        The share, with the parts ``item_f1``, which an answer of another length has too, and ``exact``.
    """
    right, stated = answer_of(task).split(), answer.split()
    count = len(set(right).intersection(stated))
    share = count / len(right) if len(stated) == len(right) else 0.0
    return Reward(share, {"item_f1": 2 * count / (len(stated) + len(right)), "exact": float(stated == right)})
