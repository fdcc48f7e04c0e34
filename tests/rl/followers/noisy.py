"""Episodes whose observations nobody can repeat: the number of a process, the time and random text, from a sandbox."""

import json
import os
from pathlib import Path
import time

from k2jax.agents.environments.files import FilesEnvironment
from k2jax.agents.registry import datasets, environments, verifiers
from k2jax.agents.task import Budget, Task
from k2jax.config import resolve, task
from k2jax.rl import episodes
from k2jax.trajectory import Reward
from tests.rl.critic.lenient import STOPS
from tests.rl.tiny import tiny_config

LOG = "K2JAX_TEST_CALLS"
"""Environment variable: the file in which every call is a line."""
TURNS = 2
CELL = "import os, time; print(os.getpid(), time.time_ns(), os.urandom(3).hex())"


def _note(what, *more):
    with open(os.environ[LOG], "a") as file:
        file.write(" ".join(map(str, (what, os.getpid(), *more))) + "\n")


def calls(path):
    """The lines of a log: what was called, in which process, and more."""
    return [line.split() for line in Path(path).read_text().splitlines()]


def share_of_low(task, answer):
    """A reward that a random model earns a part of."""
    _note("verifier")
    raw = answer.encode()
    return Reward(sum(byte < 128 for byte in raw) / max(1, len(raw)))


class NoisyTasks:
    """Prompts of two letters."""

    def __init__(self, split: str = "train"):
        self._letters = "abcd" if split == "train" else "wxyz"

    def load(self):
        verifiers.add("share_of_low", "tests.rl.followers.noisy:share_of_low")
        for letter in self._letters:
            messages = ({"role": "user", "content": letter},)
            more = {"environment": "noisy", "tools": ("python",), "budget": Budget(steps=TURNS)}
            yield Task(letter, "noisy", messages, "share_of_low", **more)


class Noisy(FilesEnvironment):
    """Runs a cell of Python in a sandbox after every turn but the last."""

    async def reset(self, task, seed):
        self._left = TURNS
        _note("reset", task.id)
        return await super().reset(task, seed)

    async def step(self, action):
        self._left -= 1
        if not self._left:
            return await super().step({"role": "assistant", "content": action["content"]})
        arguments = json.dumps({"code": CELL})
        call = {"id": "0", "type": "function", "function": {"name": "python", "arguments": arguments}}
        step = await super().step({"role": "assistant", "content": "", "tool_calls": [call]})
        _note("tool", time.time_ns(), *step.observation.messages[-1]["content"].split())
        return step


def noisy(**overrides):
    """The resolved config, with overrides by dotted key."""
    episodes.Sampling = STOPS  # an untrained policy hardly ever ends a turn
    datasets.add("noisy", "tests.rl.followers.noisy:NoisyTasks")
    environments.add("noisy", "tests.rl.followers.noisy:Noisy")
    config = tiny_config()
    del config.rl.tasks.low
    config.rl.tasks.noisy = task(dataset="noisy", max_tokens=12, temperature=1.0, temperature_final=1.0)
    # Programs of grouped queries without experts compile in a fraction of the time.
    config.model.update({"attention": "gqa", "dense_layers": 2})
    config.model.gqa.update({"kv_heads": 1, "head_dim": 8})
    config.data.chat_format = "compact"
    config.rl.scoring.environment = (LOG,)
    config.data.sequence_length, config.rl.rollout.max_length = 128, 120
    config.update_from_flattened_dict({"rl.eval_prompts": 1, "rl.eval_samples": 1, "eval.every": 2} | overrides)
    return resolve(config)
