"""Short text samples during training, by repeating the full forward pass; serving has an engine of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp
import numpy as np

from k2jax.config.schema import Config
from k2jax.data.loader import HeldOut
from k2jax.model import cast_params, forward, head_weight, model_specs
from k2jax.text.tokenizer import Tokenizer
from k2jax.train.state import compute_dtype

BEGINNINGS, BEGINNING_TOKENS = 3, 12


def make_sampler(config: Config):
    """A function ``(params, tokens [B, S], lengths [B], key) -> [B, S]`` that continues each row to its end; jit it."""
    model, temperature = config.model, config.eval.sample_temperature

    def sample(params: Any, tokens: Array, lengths: Array, key: Array) -> Array:
        params = cast_params(params, model_specs(model), compute_dtype(config.train.compute_dtype))
        rows = jnp.arange(tokens.shape[0])

        def extend(at: int, tokens: Array) -> Array:
            hidden, _ = forward(params, tokens, None, None, model)
            logits = (hidden[:, at - 1] @ head_weight(params).T).astype(jnp.float32)
            drawn = jax.random.categorical(jax.random.fold_in(key, at), logits / max(temperature, 1e-6))
            return tokens.at[rows, at].set(jnp.where(at < lengths, tokens[:, at], drawn.astype(tokens.dtype)))

        return lax.fori_loop(jnp.min(lengths), tokens.shape[1], extend, tokens)

    return sample


def prompts_of(config: Config, held_out: HeldOut, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The configured prompts, or else the beginnings of held-out documents."""
    if config.eval.prompts:
        return config.eval.prompts
    texts = (tokenizer.decode(ids) for ids in held_out.beginnings(BEGINNINGS, BEGINNING_TOKENS))
    return tuple(dict.fromkeys(text.rstrip("\ufffd") for text in texts))  # a character may have been cut


def sample_texts(
    sampler, params: Any, tokenizer: Tokenizer, prompts: Sequence[str], config: Config, step: int
) -> list[tuple[str, str]]:
    """(prompt, continuation) pairs; a continuation ends at the end-of-document token."""
    asked, prompts = prompts, [[tokenizer.bos, *tokenizer.encode(text)] for text in prompts]
    width = max(map(len, prompts)) + config.eval.sample_tokens
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    key = jax.random.fold_in(jax.random.key(config.train.seed), step)
    drawn = np.asarray(sampler(params, tokens, lengths, key))
    texts = []
    for text, row, length in zip(asked, drawn, lengths, strict=True):
        new = row[length : length + config.eval.sample_tokens]
        end = np.flatnonzero(new == tokenizer.eos)
        texts.append((text, tokenizer.decode(new[: end[0]] if len(end) else new)))
    return texts
