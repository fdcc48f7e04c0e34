"""The shipped experiment on GSM8K: its model and problems, and two iterations of a tiny model of its architecture."""

import json

import numpy as np
import pytest

from k2jax.config import load_experiment, model_preset, resolve
from k2jax.convert.hf_config import read_config
from k2jax.convert.mapping import hf_shape
from k2jax.model import model_specs
from k2jax.params import hf_tensors, named_specs
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.text import gguf_tokenizer
from k2jax.trajectory.store import TrajectoryStore
from tests.convert.folders import write_folder
from tests.emulated import ROOT
from tests.text.test_gguf_vocabulary import small

SHAPE = {
    "model_type": "qwen2", "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": True, "max_position_embeddings": 2048,
}  # fmt: skip


def experiment():
    return load_experiment(ROOT / "experiments/rl/gsm8k.py").get_config()


def test_the_experiment_is_of_the_released_architecture_and_data_set():
    config = resolve(experiment())
    assert config.model == model_preset("qwen2.5_0.5b") and config.init_from == "hub:Qwen/Qwen2.5-0.5B-Instruct"
    [gsm8k] = config.rl.tasks.values()
    assert (gsm8k.dataset, gsm8k.options) == ("math", ("hub=openai/gsm8k", "subset=main"))


def released(folder):
    """Writes a folder as the release has it, tied Qwen2 with a ChatML tokenizer; returns its architecture."""
    tokenizer, rng = gguf_tokenizer(small()), np.random.default_rng(0)
    config = SHAPE | {"vocab_size": tokenizer.vocab_size}
    write_folder(folder, config, {})
    model = read_config(folder).model
    names = [(name, hf_shape(spec)) for _, spec in named_specs(model_specs(model)) for name, _ in hf_tensors(spec)]
    write_folder(folder, config, {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in names})
    tokenizer.save(folder)
    return model


@pytest.mark.slow
def test_two_iterations_on_problems_of_a_file(tmp_path):
    problems = [{"question": f"Ann has {n} eggs and finds 2.", "answer": f"{n}+2\n#### {n + 2}"} for n in range(60)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, problems)))
    model, config = released(tmp_path / "qwen"), experiment()
    config.init_from = str(tmp_path / "qwen")
    config.model.update(
        {"layers": 2, "dense_layers": 2, "d_model": 24, "heads": 3, "dense_ffn": 48, "vocab": model.vocab}
    )
    config.model.gqa.update({"kv_heads": 1, "head_dim": 8})
    config.rl.tasks.gsm8k.update({"options": (f"path={tmp_path / 'problems.jsonl'}",), "max_tokens": 12})
    config.rl.rollout.update({"prompts": 2, "samples": 2, "slots": 4, "max_length": 512})
    config.rl.update({"eval_prompts": 2, "eval_samples": 2, "skip_flat_groups": False})
    config.train.update({"steps": 2, "batch_size": 2})
    config.optimizer.schedule.warmup_steps = 1
    assert train(resolve(config), tmp_path / "run") == 0
    assert [record["step"] for record in read_metrics(tmp_path / "run")] == [0, 1, 2]
    store = TrajectoryStore(tmp_path / "run/trajectories")
    for step in (1, 2):
        trajectories = list(store.read(step))
        assert len(trajectories) == 4 and {each.reward.value for each in trajectories} <= {0.0, 1.0}
