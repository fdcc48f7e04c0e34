"""Short text samples during training, by repeating the full forward pass; serving has an engine of its own."""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
import numpy as np

from k2jax.config.schema import Config
from k2jax.data.loader import HeldOut
from k2jax.model import cast_params, forward, head_weight, model_specs
from k2jax.text.chat import ChatBuilder, configured_chat
from k2jax.text.tokenizer import Tokenizer
from k2jax.train.state import compute_dtype

BEGINNINGS, BEGINNING_TOKENS = 3, 12


def make_sampler(config: Config):
    """A function ``(params, tokens [B, S], lengths [B], key) -> [B, S]`` that continues each row to its end; jit it."""
    model, temperature = config.model, config.eval.sample_temperature

    def sample(params: Any, tokens: Array, lengths: Array, key: Array) -> Array:
        specs = model_specs(model)
        decoder = {name: params[name] for name in specs}
        params = cast_params(decoder, specs, compute_dtype(config.train.compute_dtype))
        rows = jnp.arange(tokens.shape[0])

        def extend(at: int, tokens: Array) -> Array:
            hidden, _ = forward(params, tokens, None, None, model)
            logits = (hidden[:, at - 1] @ head_weight(params).T).astype(jnp.float32)
            drawn = jax.random.categorical(jax.random.fold_in(key, at), logits / max(temperature, 1e-6))
            return tokens.at[rows, at].set(jnp.where(at < lengths, tokens[:, at], drawn.astype(tokens.dtype)))

        return lax.fori_loop(jnp.min(lengths), tokens.shape[1], extend, tokens)

    return sample


class SamplePrompt(NamedTuple):
    """What a sample continues: its text as a person reads it, and its token ids."""

    text: str
    ids: list[int]


def text_prompts(config: Config, held_out: HeldOut, tokenizer: Tokenizer) -> list[SamplePrompt]:
    """The configured prompts, or else the beginnings of held-out documents."""
    texts = config.eval.prompts
    if not texts:
        beginnings = (tokenizer.decode(ids) for ids in held_out.beginnings(BEGINNINGS, BEGINNING_TOKENS))
        texts = tuple(dict.fromkeys(text.rstrip("\ufffd") for text in beginnings))  # a character may have been cut
    return [SamplePrompt(text, [tokenizer.bos, *tokenizer.encode(text)]) for text in texts]


def chat_prompts(config: Config, held_out: HeldOut, tokenizer: Tokenizer) -> list[SamplePrompt]:
    """The configured prompts as messages of the user, or else what precedes the answers of held-out conversations."""
    prompts = []
    for text in config.eval.prompts:
        builder = ChatBuilder(configured_chat(tokenizer, config.data.chat_format))
        builder.add({"role": "user", "content": text})
        builder.open_assistant()
        prompts.append(SamplePrompt(text, builder.tokens))
    if prompts:
        return prompts
    beginnings = [part.tolist() for part in held_out.beginnings(BEGINNINGS, BEGINNING_TOKENS) if len(part)]
    return list({tuple(ids): SamplePrompt(_spelled(ids, tokenizer), ids) for ids in beginnings}.values())


def _spelled(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of ids with the names of special tokens."""
    runs = itertools.groupby(ids, tokenizer.special_name)
    return "".join(name * len(list(part)) if name else tokenizer.decode(part) for name, part in runs)


def sample_texts(
    sampler, params: Any, tokenizer: Tokenizer, prompts: Sequence[SamplePrompt], config: Config, step: int, *, end: int
) -> list[tuple[str, str]]:
    """(prompt, continuation) pairs; a continuation stops before the token ``end``."""
    width = max(len(prompt.ids) for prompt in prompts) + config.eval.sample_tokens
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt.ids)] = prompt.ids
    lengths = np.array([len(prompt.ids) for prompt in prompts], np.int32)
    key = jax.random.fold_in(jax.random.key(config.train.seed), step)
    drawn = np.asarray(sampler(params, tokens, lengths, key))
    texts = []
    for prompt, row, length in zip(prompts, drawn, lengths, strict=True):
        new = row[length : length + config.eval.sample_tokens]
        ends = np.flatnonzero(new == end)
        texts.append((prompt.text, tokenizer.decode(new[: ends[0]] if len(ends) else new)))
    return texts
