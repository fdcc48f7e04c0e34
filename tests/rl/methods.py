"""Tiny runs that together have every method on: what each changes in the configuration, by its name."""

import json

import numpy as np

from k2jax.config import resolve, role, source
from tests.rl.critic import lenient
from tests.rl.tiny import tiny_config
from tests.train.tiny import write_corpus

LOGPROBS = {  # forward passes of the trainer, with the experts of the sampling
    "rl.loss.old": "recompute",
    "rl.loss.icepop.on": True,
    "rl.loss.mcla.passes": 2,
    "rl.rollout.routing": "replay",
}
METHODS = LOGPROBS | {
    "rl.rollout.routing": "record",
    "rl.toggle.period": 1,
    "rl.toggle.accuracy": 0.0,
    "rl.correct_reward": 0.0,
    "rl.tasks.low.options": ("letters=2",),
    "rl.tasks.low.max_tokens": 12,
    "rl.rollout.token_cap": 9,
    "rl.distill.weight": 0.5,
    "rl.loss.per_domain": True,
    "rl.loss.ptx": 0.5,
    "rl.loss.ptx_rows": 2,
    "rl.record_masks": True,
    "rl.critic.share": 0.5,
    "rl.tasks.low.judge_weight": 0.5,
    "rl.critic.format": "compact",
    "rl.critic.max_tokens": 6,
    "rl.eval_prompts": 2,
    "rl.parl.parallel": 0.5,
    "rl.parl.hold_until": 1.0,
}
CONFIG_FILE = """
from tests.rl.methods import config_of

def get_config():
    return config_of({folder!r}, setattr)
"""


def config_of(folder, setattr):
    """The editable config of a run with every method.

    ``folder`` holds the teachers and the text of PTX, and ``setattr`` changes what the run uses.
    """
    lenient.install(setattr)
    add_noise(setattr)
    config = tiny_config()
    config.update_from_flattened_dict(METHODS)
    config.data.sources.curated = source(kind="text", path=f"{folder}/text/one")
    del config.data.sources.stdlib
    config.data.cache_dir = f"{folder}/cache"
    config.rl.distill.update({"teachers": teachers_in(folder), "table": f"{folder}/table.json"})
    config.rl.roles.helper = role(checkpoint=f"{folder}/other", later=(f"{folder}/small",), later_from=(2,))
    config.rl.roles.helper.max_tokens = 9
    return config


def add_noise(setattr):
    """Multiplies the gates of each place of a batch by noise of its own, so that forward passes differ (MCLA)."""
    from k2jax.model import feed_forward

    exact = feed_forward.routed_experts

    def noisy(x, w13, w2, expert_ids, gates, **options):
        noise_TK = np.exp(0.5 * np.random.default_rng(0).normal(size=gates.shape)).astype(np.float32)
        return exact(x, w13, w2, expert_ids, gates * noise_TK, **options)

    setattr(feed_forward, "routed_experts", noisy)


def teachers_in(folder):
    return f"other={folder}/other", f"small={folder}/small"


def write_teachers(folder):
    """Two untrained teachers, the worse one of another architecture, and the text of PTX."""
    from k2jax.rl.inputs import open_chat
    from k2jax.train.program import Program
    from k2jax.train.run import Run

    for name, changes in (("other", {"train.seed": 5}), ("small", {"train.seed": 6, "model.layers": 1})):
        config = tiny_config()
        config.update_from_flattened_dict({"checkpoint.every": 1, "train.steps": 1} | changes)
        config = resolve(config)
        open_chat(config, folder / name)
        with Run(Program(config), folder / name, {}) as run:
            run.save_when_due(1)
    write_corpus(folder / "text")
    (folder / "table.json").write_text(json.dumps({"low": {"other": 0.7, "small": 0.1}}))
