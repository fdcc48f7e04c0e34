"""The shipped experiment of a released instruction model, with a tiny one of its architecture and chat format."""

import numpy as np
import pytest
import torch
import transformers

from k2jax.config import load_experiment, resolve
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.text import gguf_tokenizer
from k2jax.trajectory import verify
from k2jax.trajectory.store import TrajectoryStore
from tests.emulated import ROOT
from tests.text.test_gguf_vocabulary import small

WIDTHS = {"layers": 2, "dense_layers": 2, "d_model": 24, "heads": 3, "dense_ffn": 48}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A folder as the release has it: tied Llama, ChatML tokenizer; and transformers' model of it."""
    folder, tokenizer = tmp_path_factory.mktemp("released"), gguf_tokenizer(small())
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=24, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, rope_theta=100000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    oracle = transformers.LlamaForCausalLM(shape).eval()
    oracle.save_pretrained(folder)
    tokenizer.save(folder)
    return folder, tokenizer, oracle


def experiment(released):
    """The shipped experiment, smaller in nothing but sizes."""
    folder, tokenizer, _ = released
    config = load_experiment(ROOT / "experiments/rl/smollm2.py").get_config()
    config.init_from = str(folder)
    config.model.update(WIDTHS | {"vocab": tokenizer.vocab_size})
    config.model.gqa.update({"kv_heads": 1, "head_dim": 8})
    config.rl.tasks.arithmetic.max_tokens = 12
    config.rl.rollout.update({"prompts": 2, "samples": 2, "slots": 4})
    config.rl.update({"eval_prompts": 2, "eval_samples": 2})
    config.train.update({"steps": 2, "batch_size": 2})
    config.checkpoint.every = 1
    return resolve(config)


@pytest.mark.slow
def test_two_iterations_of_the_experiment_sample_from_the_released_weights(released, tmp_path):
    _, tokenizer, oracle = released
    assert train(experiment(released), tmp_path / "run") == 0
    store = TrajectoryStore(tmp_path / "run/trajectories")
    trajectories = list(store.read(1))
    assert len(trajectories) == 4 and {len(list(store.read(step))) for step in (1, 2)} == {4}
    for trajectory in trajectories:
        assert not verify(trajectory, tokenizer.vocab_size) and trajectory.reward is not None
        tokens = np.concatenate([node.tokens for node in trajectory.nodes])
        sampled = np.concatenate([node.mask for node in trajectory.nodes]).astype(bool)
        assert tokens[0] == tokenizer.special_id("<|im_start|>") and sampled.sum() <= 12
        with torch.no_grad():
            logits = oracle(torch.tensor(tokens[None].astype(np.int64))).logits[0].double()
        expected = logits.log_softmax(-1)[np.arange(len(tokens) - 1), tokens[1:].astype(np.int64)].numpy()
        recorded = np.concatenate([node.logprobs for node in trajectory.nodes])
        np.testing.assert_allclose(recorded[sampled], expected[sampled[1:]], atol=1e-4)
    records = read_metrics(tmp_path / "run")
    assert [record["step"] for record in records] == [0, 1, 2]
