"""Tasks whose verifier misbehaves on half of the answers; loaded by its processes, and therefore without jax."""

import dataclasses

from k2jax.agents.registry import verifiers
from tests.agents import hostile
from tests.rl.tiny import LowBytes, share_of_low_bytes

WAYS = (hostile.loop, hostile.flood, hostile.fork_many, hostile.open_socket)


def is_hostile(answer):
    return sum(answer.encode()) % 2 == 0


def sometimes_hostile(task, answer):
    """Judges half of the answers, and on the others misbehaves in one of four ways."""
    if is_hostile(answer):
        WAYS[sum(answer.encode()) // 2 % len(WAYS)](task, answer)
        hostile.loop(task, answer)
    return share_of_low_bytes(task, answer)


class HostileTasks(LowBytes):
    """The same prompts, judged by ``sometimes_hostile``."""

    def load(self):
        verifiers.add("sometimes_hostile", "tests.rl.sometimes_hostile:sometimes_hostile")
        for task in super().load():
            yield dataclasses.replace(task, verifier="sometimes_hostile")
