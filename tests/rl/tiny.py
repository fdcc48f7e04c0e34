"""Reinforcement learning small enough for tests: a two-layer model of bytes, and rewards for even digits."""

from k2jax.agents.environment import Observation, Step
from k2jax.agents.registry import verifiers
from k2jax.agents.task import Task
from k2jax.config import Config, defaults, resolve, task
from k2jax.trajectory import Reward

CONFIG_FILE = """
from tests.rl.tiny import register, tiny_config

def get_config():
    register()
    return tiny_config()
"""


def share_of_low_bytes(task: Task, answer: str) -> Reward:
    """A reward that a random model earns a part of, so that groups differ."""
    raw = answer.encode()
    share = sum(byte < 128 for byte in raw) / max(1, len(raw))
    return Reward(share, {"length": float(len(raw)), "ascii": share})


class LowBytes:
    """Prompts of two of so many letters, judged by ``share_of_low_bytes``; several turns are those of ``Echo``."""

    def __init__(self, letters: int = 8, turns: int = 1, split: str = "train"):
        self._letters = "abcdefgh"[:letters] if split == "train" else "wxyz"
        self._turns = turns

    def load(self):
        verifiers.add("share_of_low_bytes", "tests.rl.tiny:share_of_low_bytes")
        for first in self._letters:
            for second in self._letters:
                messages = ({"role": "user", "content": first + second},)
                named = {"environment": "echo", "metadata": {"turns": self._turns}} if self._turns > 1 else {}
                yield Task(first + second, f"letter-{first}", messages, "share_of_low_bytes", **named)


class Echo:
    """Answers with the number of bytes that it was told in all, until the task's turns are over."""

    async def reset(self, task, seed):
        self._left, self._told = task.metadata["turns"], 0
        return Observation(task.instruction)

    async def step(self, action):
        self._left, self._told = self._left - 1, self._told + len(action["content"].encode())
        return Step(Observation(({"role": "user", "content": str(self._told)},)), terminated=not self._left)

    async def close(self):
        pass


def tiny_config():
    """The editable config."""
    config = defaults("rl")
    config.model.update({"layers": 2, "d_model": 32, "heads": 2, "dense_ffn": 48, "vocab": 258})
    config.model.mla.update({"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_dim": 8, "qk_rope_dim": 4, "v_dim": 8})
    config.model.moe.update({"expert_ffn": 16, "experts": 4, "active_experts": 2})
    config.data.tokenizer.kind = "bytes"
    config.data.chat_format = "plain"
    config.data.sequence_length = 96
    del config.rl.tasks.characters
    config.rl.tasks.low = task(dataset="low_bytes", max_tokens=60, temperature=1.0, temperature_final=0.7)
    config.rl.tasks.low.temperature_decay = 0.5
    config.rl.rollout.update({"prompts": 4, "samples": 4, "slots": 8, "max_length": 80})
    config.rl.updates = 2
    config.rl.eval_prompts = 4
    config.rl.eval_samples = 2
    config.rl.correct_reward = 0.6
    config.rl.scoring.workers = 1
    config.train.batch_size = 4
    config.train.steps = 4
    config.optimizer.learning_rate = 2e-3
    config.router.bias_rate = config.router.bias_rate_final = 0.0
    config.checkpoint.every = 2
    config.eval.every = 2
    config.log.plots_every = 1000
    config.log.tensorboard = False
    return config


def tiny(**overrides) -> Config:
    """The resolved config, with overrides by dotted key."""
    register()
    config = tiny_config()
    config.update_from_flattened_dict(overrides)
    return resolve(config)


def register() -> None:
    """Makes the dataset and its environment known to this process."""
    from k2jax.agents.registry import datasets, environments

    datasets.add("low_bytes", "tests.rl.tiny:LowBytes")
    environments.add("echo", "tests.rl.tiny:Echo")
