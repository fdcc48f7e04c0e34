"""MLA attention from its definition: a literal NumPy softmax and torch autograd, both dense and float64."""

from __future__ import annotations

import numpy as np
import torch

B, H, DN, DR, DV = 2, 3, 8, 4, 6
SCALE = 0.4
NAMES = ("q_nope", "q_rope", "k_nope", "k_rope", "v")
KINDS = ("causal", "documents", "padded", "tree", "tree", "all padding")


def shapes(length, batch=B, heads=H):
    head = (batch, heads, length)
    return (*head, DN), (*head, DR), (*head, DN), (batch, length, DR), (*head, DV)


def random_inputs(length, seed=0, batch=B, heads=H):
    """Float32 inputs and the output's cotangent."""
    rng = np.random.default_rng(seed)
    *inputs, dout = (
        rng.normal(size=s).astype(np.float32) for s in (*shapes(length, batch, heads), (batch, heads, length, DV))
    )
    return inputs, dout


def exits(kinds, length, seed=0):
    """The exit vectors of a batch, a row of each kind."""
    rng = np.random.default_rng(seed)
    return np.stack([random_exit(kind, length, rng) for kind in kinds])


def random_exit(kind, length, rng):
    """One row's exit vector."""
    if kind == "causal":
        return np.full(length, length)
    if kind == "all padding":
        return np.arange(length)
    if kind == "tree":
        return tree_exit(length, rng)
    ends = np.append(np.unique(rng.integers(1, length + 1, size=4)), length)
    exit = ends[np.searchsorted(ends, np.arange(length), side="right")]
    if kind == "padded":
        last = rng.integers(0, length)
        exit = np.where(np.arange(length) < last, np.minimum(exit, last), np.arange(length))
    return exit


def tree_exit(length, rng):
    """A depth-first tree: each token continues some token of the path to its predecessor, or starts a tree."""
    exit, path = np.full(length, length), []
    for token in range(length):
        depth = len(path) if rng.random() < 0.8 else rng.integers(0, len(path) + 1)
        for left in path[depth:]:
            exit[left] = token
        path = [*path[:depth], token]
    return exit


def reference_forward(inputs, exit):
    """Row by row from the definition. Returns out, lse and the maximum logit per head, float64."""
    q_nope, q_rope, k_nope, k_rope, v = (np.asarray(x, np.float64) for x in inputs)
    batch, heads, length, _ = q_nope.shape
    out, lse = np.zeros(v.shape), np.full((batch, heads, length), -np.inf)
    max_logit = np.full(heads, -np.inf)
    for b in range(batch):
        for i in range(length):
            seen = [j for j in range(i + 1) if i < exit[b, j]]
            if not seen:
                continue
            logits = np.einsum("hd,hkd->hk", q_nope[b, :, i], k_nope[b][:, seen])
            logits = SCALE * (logits + q_rope[b, :, i] @ k_rope[b, seen].T)
            lse[b, :, i] = np.logaddexp.reduce(logits, axis=-1)
            out[b, :, i] = np.einsum("hk,hkd->hd", np.exp(logits - lse[b, :, i, None]), v[b][:, seen])
            max_logit = np.maximum(max_logit, logits.max(-1))
    return out, lse, max_logit


def reference_gradients(inputs, exit, dout):
    """Torch autograd through dense scores, float64."""
    tensors = [torch.tensor(np.asarray(x, np.float64), requires_grad=True) for x in inputs]
    q_nope, q_rope, k_nope, k_rope, v = tensors
    length = q_nope.shape[2]
    i, j = torch.arange(length)[:, None], torch.arange(length)
    visible = (j <= i) & (i < torch.tensor(np.asarray(exit))[:, None, None, :])
    logits = SCALE * (q_nope @ k_nope.mT + torch.einsum("bhqr,bkr->bhqk", q_rope, k_rope))
    weights = torch.exp(logits - logits.detach().amax(-1, keepdim=True)) * visible
    total = weights.sum(-1, keepdim=True)
    out = weights @ v / torch.where(total == 0, 1.0, total)
    return [x.numpy() for x in torch.autograd.grad(out, tensors, torch.tensor(np.asarray(dout, np.float64)))]


def assert_close(actual, expected, name, tolerance=1e-5):
    """The largest error of each head, relative to its largest value or to 1, the size of the inputs; -inf is exact."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected)
    assert not np.isnan(actual).any(), f"{name} has NaN"
    np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(expected), err_msg=name)
    actual, expected = (np.where(np.isneginf(x), 0, x) for x in (actual, expected))
    axes = tuple(a for a in range(actual.ndim) if a != 1) if name != "k_rope" else None
    error = np.abs(actual - expected).max(axes) / np.maximum(np.abs(expected).max(axes), 1)
    assert (error <= tolerance).all(), f"{name}: error per head {error}"
