"""A run small enough for tests: two text sources, a byte vocabulary, a two-layer model."""

from pathlib import Path

import numpy as np

from k2jax.config import Config, defaults, resolve, source

CONFIG_FILE = """
from tests.train.tiny import tiny_config

def get_config():
    return tiny_config({folder!r})
"""


def write_corpus(folder: Path) -> None:
    """Two sources of a few documents each, with structure that a model can learn."""
    rng = np.random.default_rng(0)
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    for name, count in (("one", 12), ("two", 8)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            text = " ".join(rng.choice(words, size=150))
            (folder / name / f"{i}.txt").write_text(f"{name} {i}: {text}\n", encoding="utf-8")


def tiny_config(folder: str):
    """The editable config of the run; ``folder`` holds the corpus and the cache."""
    config = defaults("pretrain")
    config.model.update({"layers": 2, "d_model": 32, "heads": 2, "dense_ffn": 48, "vocab": 300})
    config.model.mla.update({"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_dim": 8, "qk_rope_dim": 4, "v_dim": 8})
    config.model.moe.update({"expert_ffn": 16, "experts": 4, "active_experts": 2})
    del config.data.sources.stdlib
    config.data.sources.one = source(kind="text", path=f"{folder}/one", weight=2.0)
    config.data.sources.two = source(kind="text", path=f"{folder}/two")
    config.data.tokenizer.kind = "bytes"
    config.data.sequence_length = 32
    config.data.held_out = 0.2
    config.data.cache_dir = f"{folder}/cache"
    config.train.steps = 12
    config.train.batch_size = 4
    config.train.micro_batches = 2
    config.optimizer.learning_rate = 5e-3
    config.optimizer.schedule.warmup_steps = 2
    config.checkpoint.every = 4
    config.eval.every = 6
    config.eval.sample_tokens = 4
    config.log.plots_every = 1000
    config.log.tensorboard = False
    return config


def tiny(folder: Path, **overrides) -> Config:
    """The resolved config, with overrides by dotted key."""
    config = tiny_config(str(folder))
    config.update_from_flattened_dict(overrides)
    return resolve(config)
