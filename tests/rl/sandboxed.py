"""Runs whose untrained policy works in sandboxes over several turns: whatever it says becomes a cell of Python."""

import json

from k2jax.agents.environments.files import FilesEnvironment
from k2jax.agents.registry import datasets, environments
from k2jax.agents.task import Budget, Task
from k2jax.config import task
from tests.rl.critic.lenient import STOPS
from tests.rl.tiny import tiny_config

TURNS = 3
CELL = """
total = globals().get("total", 0) + {told}
with open("/work/totals", "a") as file:
    print(total, file=file)
print(total)
"""
TEST = f"""
totals = [int(line) for line in read("totals").split()]
assert len(totals) == {TURNS} and sum(totals) % 2
"""
CONFIG_FILE = """
from tests.rl.sandboxed import config_of

def get_config():
    return config_of(setattr)
"""


class Totals:
    """Prompts of a letter; a script that runs over the files of an episode rewards half of what can be said."""

    def __init__(self, split: str = "train"):
        self._letters = "abcdefgh" if split == "train" else "wxyz"

    def load(self):
        for letter in self._letters:
            yield Task(
                letter,
                "totals",
                ({"role": "user", "content": letter},),
                "terminal",
                environment="totals",
                tools=("python",),
                budget=Budget(steps=TURNS),
                metadata={"test": TEST},
            )


class TotalsEnvironment(FilesEnvironment):
    """Runs a cell for every answer, whose bytes it adds to a variable of the interpreter and to a file."""

    async def reset(self, task, seed):
        self._left = TURNS
        return await super().reset(task, seed)

    async def step(self, action):
        self._left -= 1
        arguments = json.dumps({"code": CELL.format(told=sum(action["content"].encode()))})
        call = {"id": "0", "type": "function", "function": {"name": "python", "arguments": arguments}}
        step = await super().step({"role": "assistant", "content": "", "tool_calls": [call]})
        return step if self._left else await super().step({"role": "assistant", "content": ""})


def config_of(setattr):
    """The editable config; ``setattr`` changes what the run uses."""
    from k2jax.rl import episodes

    datasets.add("totals", "tests.rl.sandboxed:Totals")
    environments.add("totals", "tests.rl.sandboxed:TotalsEnvironment")
    setattr(episodes, "Sampling", STOPS)  # an untrained policy hardly ever ends a turn
    config = tiny_config()
    del config.rl.tasks.low
    config.rl.tasks.totals = task(dataset="totals", max_tokens=8)
    config.rl.rollout.token_cap = 6  # episodes go on in later iterations, in sandboxes that are rebuilt by replay
    config.data.chat_format = "compact"
    return config
