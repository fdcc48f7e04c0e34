"""The tower and the projector as pure functions over a dict of arrays.

Attention spans the patches of a chunk, an image or up to four frames of a clip, in both directions. Its interval of the
row is the mask, so that what shares a row never meets.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from k2jax.batch import PatchBatch
from k2jax.config.schema import ModelConfig, VisionConfig
from k2jax.model.linear import from_heads, linear, to_heads
from k2jax.model.rope import rotate_neighbours
from k2jax.model.vision.positions import frame_table, grid_positions, rotary_angles
from k2jax.model.vision.specs import MERGED
from pallas_kernels.mla_attention import mla_attention

NORM_EPS = 1e-5
QKV, ATTENDED, HIDDEN = "vision_qkv", "vision_attended", "vision_hidden"
KEPT = QKV, "attention_output", "attention_lse", ATTENDED, HIDDEN
"""What a layer keeps for its backward pass, besides its input: the results of its products. Norms, GELU and the shares
of both that differentiation would keep are computed again, which takes less time on XLA:CPU than to store them."""


class VisionOutput(NamedTuple):
    """The result of one call.

    Attributes:
        features: ``[R, N, d_model]``, one for each group of four patches: that of a chunk's first frame holds the mean
            over its frames, that of its other frames, and of padding, nothing that is read.
        max_logit: float32 ``[layers, heads]``, each head's largest scaled logit over the batch, for QK-Clip.
    """

    features: Array
    max_logit: Array


def vision_features(params: dict, patches: PatchBatch, config: ModelConfig) -> VisionOutput:
    """Computes the features of all images and clips of a batch (Kimi K2.5, section 4.2).

    Args:
        params: the weights of ``vision_specs`` in compute dtype.
        patches: rows of patches.
        config: the architecture; it has vision.
    """
    vision = config.vision
    x_RPD = _embed(params, patches, vision)
    rotary = rotary_angles(patches.y, patches.x, vision.width // vision.heads, vision.rope_theta)
    layer = functools.partial(_layer, patches=patches, rotary=rotary, config=config)
    kept = jax.checkpoint_policies.save_only_these_names(*KEPT)
    layer = jax.checkpoint(layer, policy=kept, prevent_cse=False)  # a scan's body; XLA merges nothing across its end
    x_RPD, max_logit = lax.scan(layer, x_RPD, params["layers"])
    x_RPD = layer_norm(x_RPD, params["final_norm"], NORM_EPS)
    rows, length, width = x_RPD.shape
    pooled_RNMD = _pool(x_RPD.reshape(rows, length // MERGED, MERGED, width), patches.frames, vision.frames)
    return VisionOutput(_project(params["projector"], pooled_RNMD, vision), max_logit)


def layer_norm(x: Array, params: dict, eps: float) -> Array:
    """LayerNorm over the last axis, with float32 statistics, in the dtype of x.

    Args:
        x: ``[..., D]``.
        params: ``weight`` and ``bias`` ``[D]``.
        eps: added to the variance.
    """
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    normed = centred * lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * params["weight"] + params["bias"]


@jax.named_scope("vision_embedding")
def _embed(params: dict, patches: PatchBatch, vision: VisionConfig) -> Array:
    """Patches to ``[R, P, D]``, with the positions of their places and frames."""
    weight_CD = params["patch"].reshape(-1, vision.width)
    x_RPD = linear(patches.pixels.astype(weight_CD.dtype), weight_CD) + params["patch_bias"]
    grid_RPD = grid_positions(params["grid"], patches.y, patches.x, patches.height, patches.width)
    frames_RPD = jnp.asarray(frame_table(vision.frames, vision.width))[patches.time]
    return x_RPD + (grid_RPD + frames_RPD).astype(x_RPD.dtype)


@jax.named_scope("vision_layer")
def _layer(
    x_RPD: Array, params: dict, *, patches: PatchBatch, rotary: tuple[Array, Array], config: ModelConfig
) -> tuple[Array, Array]:
    weights = params["attention"]
    normed_RPD = layer_norm(x_RPD, params["attention_norm"], NORM_EPS)
    q, k, v = (to_heads(normed_RPD, weights[name]) + weights[name + "_bias"][:, None] for name in ("q", "k", "v"))
    cos, sin = (table[:, None] for table in rotary)
    rows, heads, length, head_dim = q.shape
    out, stats = mla_attention(
        checkpoint_name(rotate_neighbours(q, cos, sin), QKV),
        jnp.zeros((rows, heads, length, 0), q.dtype),  # no channels whose key all heads share
        checkpoint_name(rotate_neighbours(k, cos, sin), QKV),
        jnp.zeros((rows, length, 0), q.dtype),
        checkpoint_name(v, QKV),
        start=patches.start,
        exit=patches.exit,
        scale=head_dim**-0.5,
        impl=config.kernels,
    )
    x_RPD = checkpoint_name(x_RPD + from_heads(out, weights["o"]) + weights["o_bias"], ATTENDED)
    ffn = params["ffn"]
    hidden = linear(layer_norm(x_RPD, params["ffn_norm"], NORM_EPS), ffn["up"])
    hidden = checkpoint_name(hidden + ffn["up_bias"], HIDDEN)
    out_RPD = linear(jax.nn.gelu(hidden, approximate=True), ffn["down"]) + ffn["down_bias"]
    return x_RPD + out_RPD, stats.max_logit


def _pool(groups: Array, frames: Array, max_frames: int) -> Array:
    """Mean over the frames of a chunk, whose groups at one place follow one another.

    Args:
        groups: ``[R, N, 4, D]``.
        frames: int32 ``[R, N]``, frames of the chunk.
        max_frames: most frames of any chunk.

    Returns:
        ``[R, N, 4, D]``; only what stands at groups of first frames is a mean.
    """
    total = groups
    for frame in range(1, max_frames):
        later = jnp.pad(groups[:, frame:], ((0, 0), (0, frame), (0, 0), (0, 0)))
        total = total + jnp.where((frame < frames)[..., None, None], later, 0)
    return total / jnp.maximum(frames, 1)[..., None, None].astype(groups.dtype)


@jax.named_scope("vision_projector")
def _project(params: dict, pooled: Array, vision: VisionConfig) -> Array:
    """``[R, N, 4, D]`` to features ``[R, N, d_model]``."""
    normed = layer_norm(pooled, params["norm"], vision.projector_eps)
    merged_RNC = normed.reshape(*pooled.shape[:2], MERGED * vision.width)
    hidden_RNC = jax.nn.gelu(linear(merged_RNC, params["up"]) + params["up_bias"], approximate=False)
    return linear(hidden_RNC, params["down"]) + params["down_bias"]
