"""The tower, the projector and the decoder against transformers' ``kimi_k25``: the same random weights and inputs."""

from __future__ import annotations

import copy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from k2jax.convert.loading import from_pretrained
from k2jax.data.images.patch_packing import pack_chunks
from k2jax.model.vision import vision_features
from tests.model.vision.oracle import IMAGE, PATCH, VIDEO, network, random_chunk, torch_features

IMAGES = [(1, 2, 2), (1, 4, 6), (1, 10, 2), (1, 8, 8)]
CLIPS = {frames: [(min(4, frames - at), 4, 2) for at in range(0, frames, 4)] for frames in range(1, 10)}
ROWS, LENGTH = 4, 64


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """transformers' model, ours and its parameters, from the folder that transformers wrote."""
    model = network()
    return model, *load(model, tmp_path_factory.mktemp("kimi_k25"))


def load(model, folder: Path):
    model.save_pretrained(folder)
    return from_pretrained(folder)


def gradients(model, folder: Path) -> dict:
    """transformers' gradients as our parameters: a copy of the model that holds them as weights is saved and loaded."""
    holder = copy.deepcopy(model)
    with torch.no_grad():
        for (name, tensor), source in zip(holder.named_parameters(), model.parameters(), strict=True):
            assert source.grad is not None or "e_score" in name, name
            tensor.copy_(source.grad)
        for name, buffer in holder.named_buffers():
            if "e_score_correction_bias" in name:
                buffer.zero_()
    return load(holder, folder)[1]


def assert_features(pair, grids, rng):
    model, ours, params = pair
    chunks = [random_chunk(grid, rng) for grid in grids]
    packed = pack_chunks(chunks, rows=ROWS, length=LENGTH, patch=PATCH)
    features = np.asarray(features_of(params["vision"], packed.batch, ours.config)).reshape(-1, ours.config.d_model)
    with torch.no_grad():
        expected = torch_features(model, chunks)
    for mine, theirs in zip(packed.features, expected, strict=True):
        np.testing.assert_allclose(features[mine], theirs.numpy(), atol=2e-4)


features_of = jax.jit(lambda *arguments: vision_features(*arguments).features, static_argnums=2)


def test_features_of_images_and_clips_of_any_length_are_those_of_transformers(pair):
    rng = np.random.default_rng(0)
    assert_features(pair, IMAGES, rng)
    for clips in ((1, 2, 3, 4, 5, 6, 7), (8, 9)):
        assert_features(pair, [grid for frames in clips for grid in CLIPS[frames]], rng)


def mixed_batch(rng):
    """Two rows of text with images and a clip of six frames; token ids, chunks, and which feature stands where."""
    grids = [*IMAGES[:3], *CLIPS[6]]
    chunks = [random_chunk(grid, rng) for grid in grids]
    packed = pack_chunks(chunks, rows=ROWS, length=LENGTH, patch=PATCH)
    rows = []
    for members in ((0, 1), (2, 3, 4)):
        tokens, feature = [], []
        for index in members:
            text = rng.integers(0, 80, 3).tolist()
            tokens += [*text, *[VIDEO if index >= 3 else IMAGE] * chunks[index].features]
            feature += [-1] * len(text) + packed.features[index].tolist()
        rows.append((tokens + rng.integers(0, 80, 40 - len(tokens)).tolist(), feature + [-1] * (40 - len(feature))))
    tokens, feature = (np.array(part) for part in zip(*rows, strict=True))
    return tokens, feature.astype(np.int32), chunks, packed


@pytest.mark.slow
def test_logits_and_every_gradient_of_text_images_and_video_are_those_of_transformers(pair, tmp_path):
    model, ours, params = pair
    rng = np.random.default_rng(1)
    tokens, feature, chunks, packed = mixed_batch(rng)
    weights = rng.normal(size=(*tokens.shape, ours.config.vocab)).astype(np.float32)

    def loss(params):
        shown = {"media": feature, "patches": packed.batch}
        logits = ours.apply({"params": params}, jnp.asarray(np.minimum(tokens, 90)), **shown).logits
        return (logits * weights).sum(), logits

    grads, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
    theirs = torch_features(model, chunks)
    encoded = {
        "image": BaseModelOutputWithPooling(pooler_output=theirs[:3]),
        "video": BaseModelOutputWithPooling(pooler_output=theirs[3:]),
    }
    out = model(input_ids=torch.tensor(tokens), mm_encoder_outputs=encoded).logits
    (out * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(logits, out.detach().numpy(), atol=2e-4)
    expected = gradients(model, tmp_path)
    for (path, mine), theirs in zip(jax.tree.leaves_with_path(grads), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(mine - theirs) / max(np.linalg.norm(theirs), 1e-6)
        assert error <= 1e-4, f"{jax.tree_util.keystr(path)}: {error:.2e}"


def test_text_alone_needs_no_weights_of_the_tower(pair):
    _, ours, params = pair
    text = {name: part for name, part in params.items() if name != "vision"}
    tokens = jnp.zeros((1, 12), jnp.int32)
    assert jax.eval_shape(lambda: ours.apply({"params": text}, tokens).logits).shape == (1, 12, ours.config.vocab)
    initial = jax.eval_shape(ours.init, jax.random.key(0), tokens)["params"]
    assert jax.tree.map(jnp.shape, initial) == jax.tree.map(jnp.shape, params)
