"""The configurations that golden runs start from, and the files that they read; tests/golden_runs.py has the rest.

Each takes the folder of the run. What it needs of the library is imported inside: the command that compares runs starts
without it.
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write_texts(folder: Path) -> None:
    """The two sources of text of tests/train/tiny.py."""
    from tests.train.tiny import write_corpus

    write_corpus(folder)


def nano(folder: str):
    """The experiment of pretraining, on short texts of bytes."""
    from k2jax.config import load_experiment, source

    config = load_experiment(ROOT / "experiments/pretrain/nano.py").get_config()
    config.data.sources = {name: source(kind="text", path=f"{folder}/{name}") for name in ("one", "two")}
    config.data.tokenizer.kind = "bytes"
    config.data.cache_dir = f"{folder}/cache"
    return config


def write_sums(folder: Path) -> None:
    """Conversations about sums."""
    lines = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(12) for b in range(12)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def sums(folder: str):
    """Fine-tuning on conversations."""
    from k2jax.config import source
    from tests.train.tiny import tiny_config

    config = tiny_config(folder)
    config.stage = "sft"
    config.data.sources = {"sums": source(kind="chat", path=f"{folder}/chat.jsonl")}
    config.data.chat_format = "plain"
    return config


def low(folder: str):
    """Reinforcement learning of tests/rl/tiny.py: rewards that an untrained model earns a part of."""
    from tests.rl.tiny import register, tiny_config

    register()
    return tiny_config()


def stopping(folder: str):
    """The same, where many tokens end an answer: an untrained policy hardly ever ends one."""
    from k2jax.rl import episodes
    from tests.rl.critic import lenient

    episodes.Sampling = lenient.STOPS
    return low(folder)


def noisy(folder: str):
    """The same with noise on the gates of experts, so that forward passes differ."""
    from tests.rl.methods import add_noise

    add_noise(setattr)
    return stopping(folder)


def critic(folder: str):
    """The policy as its own judge, which trains too."""
    from tests.rl.critic import lenient

    lenient.install(setattr)
    return lenient.critic_config()


def write_teachers(folder: Path) -> None:
    """Two untrained teachers and the table of their accuracies."""
    from tests.rl.methods import write_teachers

    write_teachers(folder)


def distilling(folder: str):
    """Distillation from both."""
    from tests.rl.methods import teachers_in

    config = low(folder)
    config.rl.distill.update({"teachers": teachers_in(folder), "table": f"{folder}/table.json"})
    return config


def texts_beside(folder: str):
    """Texts for PTX."""
    from k2jax.config import source

    config = low(folder)
    config.data.sources = {"one": source(kind="text", path=f"{folder}/one")}
    config.data.cache_dir = f"{folder}/cache"
    return config


def pictures(folder: str):
    """A model that sees is asked about pictures of 64 pixels, beside tasks of text."""
    from k2jax.config import task
    from k2jax.data.vocabulary import MEDIA_TOKENS
    from k2jax.text.tokenizer import byte_tokenizer

    config = low(folder)
    config.model.update({"layers": 1, "vocab": byte_tokenizer(MEDIA_TOKENS).vocab_size})
    config.model.vision.update({"layers": 2, "width": 16, "heads": 2, "ffn": 24, "grid": 4})
    config.data.tokenizer.media = True
    config.data.images.patches = 8 * 36
    config.data.sequence_length = 160
    options = ("count=12", "side=64")
    config.rl.tasks.pictures = task(dataset="pictures", options=options, max_tokens=24, verifier="share_of_low_bytes")
    config.rl.rollout.max_length = 120
    return config
