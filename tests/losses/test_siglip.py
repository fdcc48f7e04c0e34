"""SigLIP's loss against torch in float64, against finite differences, and in parts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from k2jax.losses.siglip import BIAS, SCALE, siglip_sum


def drawn(count=6, width=5):
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(2, count, width))
    learned = {"scale": np.array([-0.7]), "bias": np.array([8.5])}  # far from where every gradient vanishes
    return image, text, np.array([True] * (count - 1) + [False]), learned


def whole(image, text, valid, learned):
    image, text, valid, learned = jax.tree.map(jnp.asarray, (image, text, valid, learned))
    return siglip_sum(image, text, text, valid, valid, learned)


def torch_gradients(image, text, valid, learned):
    """As transformers' SiglipModel computes its loss, but for the mean: of unit vectors, over the valid samples."""
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (image, text, *learned.values())]
    image, text, scale, bias = leaves
    image, text = (x[torch.tensor(valid)] for x in (image, text))
    image, text = (x / x.norm(p=2, dim=-1, keepdim=True) for x in (image, text))
    logits = text @ image.T * (SCALE + scale).exp() + BIAS + bias
    signs = -torch.ones_like(logits) + 2 * torch.eye(len(logits), dtype=torch.float64)
    loss = -torch.nn.functional.logsigmoid(signs * logits).sum()
    loss.backward()
    return loss.item(), [leaf.grad.numpy() for leaf in leaves]


def test_value_and_every_gradient_are_those_of_torch_in_float64():
    image, text, valid, learned = drawn()
    value, grads = jax.value_and_grad(whole, argnums=(0, 1, 3))(
        *jax.tree.map(jnp.asarray, (image, text, valid, learned))
    )
    expected, (d_image, d_text, d_scale, d_bias) = torch_gradients(image, text, valid, learned)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for mine, theirs in (
        (grads[0], d_image),
        (grads[1], d_text),
        (grads[2]["scale"], d_scale),
        (grads[2]["bias"], d_bias),
    ):
        assert np.any(theirs)
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(theirs).max())
    assert not np.any(grads[0][-1]) and not np.any(grads[1][-1])  # of no sample


def test_sums_over_parts_of_the_images_add_up_and_learning_begins_as_siglip_says():
    image, text, valid, learned = jax.tree.map(jnp.asarray, drawn())
    parts = [
        siglip_sum(image[part], text, text[part], valid[part], valid, learned) for part in (slice(0, 2), slice(2, None))
    ]
    np.testing.assert_allclose(sum(parts), whole(image, text, valid, learned), rtol=1e-6)
    one = siglip_sum(image[:1], image[:1], image[:1], valid[:1], valid[:1], jax.tree.map(jnp.zeros_like, learned))
    assert float(one) == pytest.approx(math.log(2), rel=1e-4)  # temperature 10 and bias -10 meet at a cosine of 1
