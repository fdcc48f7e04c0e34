"""A run whose untrained policy gives verdicts: many tokens end an answer, and any text is read as a verdict.

Loaded by verifier processes, and therefore without jax.
"""

import functools

from k2jax.agents.judges import judge, refinement
from k2jax.agents.judges.judge_formats import JUDGE_FORMATS
from k2jax.agents.registry import verifiers
from k2jax.client import Sampling
from k2jax.trajectory import Reward

STOPS = functools.partial(Sampling, stop_tokens=tuple(range(0, 256, 4)))
CONFIG_FILE = """
from tests.rl.critic.lenient import critic_config, install

def get_config():
    install(setattr)
    return critic_config()
"""


def stopping_often(*, stop_tokens, **options):
    return Sampling(stop_tokens=(*stop_tokens, *range(0, 256, 2)), **options)


def read(text):
    return ("first", "second", "tie")[sum(text.encode()) % 3]


def lenient_verdict(task, answer):
    return Reward(float(read(answer) == task.metadata["verdict"]), info={"choice": read(answer)})


def install(setattr):
    """Changes what the run uses, by ``setattr(object, name, value)``."""
    from k2jax.rl import episodes
    from tests.rl.tiny import register

    register()
    verifiers.add("lenient_verdict", "tests.rl.critic.lenient:lenient_verdict")
    setattr(episodes, "Sampling", STOPS)
    setattr(judge, "Sampling", stopping_often)
    setattr(refinement, "VERIFIER", "lenient_verdict")
    styles = JUDGE_FORMATS | {"compact": JUDGE_FORMATS["compact"]._replace(read=read)}
    for name in ("k2jax.agents.judges.refinement", "k2jax.rl.methods.judges"):
        module = __import__(name, fromlist=["JUDGE_FORMATS"])
        setattr(module, "JUDGE_FORMATS", styles)


def critic_config():
    """The editable config: a class for the verifier, one for the critic, and the closed loop."""
    from k2jax.config import task
    from tests.rl.tiny import tiny_config

    config = tiny_config()
    config.rl.tasks.low.update({"max_tokens": 8, "temperature_final": 1.0, "temperature_decay": 0.0})
    config.rl.tasks.open = task(dataset="low_bytes", max_tokens=8, verifier_weight=0.0, judge_weight=1.0)
    config.rl.critic.update({"format": "compact", "share": 1.0, "max_tokens": 6})
    config.optimizer.schedule.update({"kind": "constant", "warmup_steps": 1})
    config.train.steps = 2
    config.checkpoint.every = 1
    return config
