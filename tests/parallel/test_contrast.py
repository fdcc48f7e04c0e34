"""SigLIP's term in the training step: captions that see no image, gradients of all parts, equal on every mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.losses import NLL
from k2jax.losses.siglip import siglip_sum
from k2jax.model import forward
from k2jax.model.vision import vision_features
from k2jax.parallel.accumulate import FEATURES, loss_shares
from k2jax.parallel.gradients import make_objective
from tests.parallel.test_decoupled import assert_same_gradients, batch_for, config_with, gradient_sums, params_of

CONTRAST = {"model.vision.contrast": True, "train.contrast.weight": 0.5, "train.contrast.captions": 3}
CAPTION = 25  # where the caption begins in a row of one document of 30 tokens
SPLIT = 5  # where row 0 has a second document, after one whose image is token 3 and whose caption is token 4


def contrast_config(layers=1, overrides=None):
    return config_with(layers, CONTRAST | (overrides or {}))


def captioned(config, devices):
    """Rows whose last tokens are captions; row 5 has none, and so is no sample, as rows without images are not."""
    batch = batch_for(config, devices)
    weights = batch.targets["weights"]
    weights[:, :CAPTION] = 0
    weights[5] = 0
    weights[0, SPLIT - 1] = 1
    batch.exit[0, :SPLIT], batch.parent[0, SPLIT] = SPLIT, -1
    batch.positions[0, SPLIT:30] -= SPLIT
    return batch


def samples_of(batch):
    """Row, features and caption's tokens of every document with both."""
    found = []
    for row, exits in enumerate(batch.exit):
        for end in sorted({stop for at, stop in enumerate(exits) if stop > at}):
            inside = exits == end
            shown = batch.media[row][inside & (batch.media[row] >= 0)]
            caption = np.flatnonzero(inside & (batch.targets["weights"][row] > 0))
            if len(shown) and len(caption):
                found.append((row, shown, caption))
    return found


def with_learned(params):
    params["vision"]["contrast"] = {"scale": np.float32([-0.5]), "bias": np.float32([9.0])}
    return params


@functools.cache
def reference(layers):
    """Loss, term and gradients of one program, in which every caption is a row of its own without any image."""
    config = contrast_config(layers)
    params, batch = with_learned(params_of(config)), captioned(config, 1)
    loss = NLL()
    objective = make_objective(config, loss, loss.denominators(batch.targets))
    samples = samples_of(batch)

    def total(params):
        text = {name: part for name, part in params.items() if name != "vision"}
        features = vision_features(params["vision"], batch.patches, config.model).features
        table = features.reshape(-1, features.shape[-1])
        shares, stats = loss_shares({**text, FEATURES: table}, batch.replace(patches=None), objective, config)
        images, captions = [], []
        for row, shown, caption in samples:
            images.append(table[shown].mean(0))
            hidden, _ = forward(text, batch.tokens[row, caption][None], None, None, config.model)
            captions.append(hidden[0].mean(0))
        images, captions, valid = jnp.stack(images), jnp.stack(captions), jnp.ones(len(samples), bool)
        term = siglip_sum(images, captions, captions, valid, valid, params["vision"]["contrast"])
        term = config.train.contrast.weight * term / len(samples)
        return shares.total + term + objective.balance * stats.balance_loss, term

    (_, term), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    return len(samples), float(term), jax.device_get(grads)


def assert_equal(layers, overrides, devices):
    count, expected_term, expected = reference(layers)
    assert count == 6
    config = contrast_config(layers, overrides)
    sums, grads = gradient_sums(config, devices, with_learned(params_of(config)), captioned)
    np.testing.assert_allclose(sums.shares.terms["contrast"], expected_term, rtol=1e-5)
    assert_same_gradients(expected, grads)


@pytest.mark.slow
def test_on_one_device_gradients_are_those_of_captions_alone():
    assert_equal(1, {}, 1)


@pytest.mark.devices(2)
@pytest.mark.slow
def test_on_two_devices_pairs_are_those_of_the_whole_batch():
    assert_equal(1, {"parallel.data": 2}, 2)


@pytest.mark.slow
@pytest.mark.devices(4)
@pytest.mark.parametrize("mesh", [{"parallel.data": 4}, {"parallel.data": 2, "parallel.expert": 2}], ids=str)
def test_on_four_devices_pairs_are_those_of_the_whole_batch(mesh):
    assert_equal(3, mesh, 4)
