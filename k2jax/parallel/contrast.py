"""SigLIP's term beside the loss of the tokens: images of the whole batch against its captions, on all devices.

A sample is a document of a row with an image and something that the assistant wrote: its caption. The image is the
mean of its features; the caption is the mean of the hidden states of its tokens in a second forward pass of the
decoder, in which everything else is padding, so that a caption does not see its image. Pairs are those of all samples
of the global batch: every device has all captions, and sums over its own images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.losses.siglip import siglip_sum
from k2jax.model import forward
from k2jax.model.remat import Remat
from k2jax.parallel.gradients import make_experts
from k2jax.parallel.layout import Layout
from k2jax.parallel.mesh import batch_partitions
from pallas_kernels.vma import vary_tree

P = PartitionSpec


class Samples(NamedTuple):
    """Samples of some rows, ``N`` of each at most.

    Attributes:
        image: ``[..., N, D]`` float32, mean of the image's features.
        text: ``[..., N, D]`` float32, mean of the caption's hidden states.
        valid: bool ``[..., N]``, whether there is an image and a caption.
    """

    image: Array
    text: Array
    valid: Array


class ContrastGradients(NamedTuple):
    """The term and its gradients.

    Attributes:
        term: ``[]`` float32, its coefficient included.
        text: of the decoder's weights.
        learned: of temperature and bias.
        features: ``[F, D]``.
    """

    term: Array
    text: Any
    learned: Any
    features: Array


def make_contrast(config: Config, layout: Layout) -> Callable[[Any, Any, Array, PackedBatch], ContrastGradients]:
    """``(decoder's weights, learned, features [F, D], batch [M, B, S]) -> ContrastGradients`` over all devices.

    ``media`` of the batch is the index of each token's feature, as inside the decoder.
    """
    settings, layout = config.train.contrast, layout.text

    def sums(text: Any, learned: Any, features: Array, batch: PackedBatch, axes: tuple[str, ...]) -> tuple:
        experts = make_experts(config, layout, 1.0) if axes else None

        def of_micro_batch(micro: PackedBatch) -> Samples:
            return pooled(text, features, micro, config, experts)

        samples = lax.map(jax.checkpoint(of_micro_batch), batch)
        image, own, valid = (part.reshape(-1, *part.shape[3:]) for part in samples)
        everyone = [lax.all_gather(part, axes, tiled=True) if axes else part for part in (own, valid)]
        total, count = siglip_sum(image, everyone[0], own, valid, everyone[1], learned), valid.sum()
        return lax.psum((total, count), axes) if axes else (total, count)

    def term(text: Any, learned: Any, features: Array, batch: PackedBatch) -> Array:
        text = lax.stop_gradient(text) if "text" in config.optimizer.frozen else text
        if layout.mesh.size == 1:
            total, count = sums(text, learned, features, batch, ())
        else:
            axes = layout.mesh.axis_names

            def on_device(text: Any, learned: Any, features: Array, batch: PackedBatch) -> tuple[Array, Array]:
                text, learned = vary_tree((text, learned), axes=axes)
                return sums(
                    text, learned, lax.all_gather(features, axes, tiled=True), vary_tree(batch, axes=axes), axes
                )

            total, count = jax.shard_map(
                on_device,
                mesh=layout.mesh,
                in_specs=(layout.compute, P(), P(axes), batch_partitions(layout.mesh, batch)),
                out_specs=(P(), P()),
            )(text, learned, features, batch)
        return settings.weight * total / jnp.maximum(count, 1)

    def gradients(text: Any, learned: Any, features: Array, batch: PackedBatch) -> ContrastGradients:
        value, grads = jax.value_and_grad(term, argnums=(0, 1, 2))(text, learned, features, batch)
        return ContrastGradients(value, *grads)

    return gradients


def pooled(text: Any, features: Array, batch: PackedBatch, config: Config, experts: Any = None) -> Samples:
    """The samples of ``batch [B, S]``; those beyond ``train.contrast.captions`` of a row are left out.

    Args:
        text: the decoder's weights in compute dtype.
        features: ``[F, D]``, which ``batch.media`` indexes.
        batch: rows.
        config: the experiment.
        experts: see ``model.feed_forward.moe``.
    """
    count, index_BS = (
        config.train.contrast.captions,
        jnp.broadcast_to(jnp.arange(batch.exit.shape[1]), batch.exit.shape),
    )
    real_BS = batch.exit > index_BS
    sample_BS = jnp.cumsum(real_BS & (batch.positions == 0), axis=1) - 1
    caption_BS, seen_BS = real_BS & (batch.targets["weights"] > 0), real_BS & (batch.media >= 0)
    alone_BS = jnp.where(caption_BS, batch.exit, index_BS)  # all other tokens are padding
    remat = Remat.from_config(config.train)
    hidden_BSD, _ = forward(text, batch.tokens, batch.positions, alone_BS, config.model, remat=remat, experts=experts)
    shown_BSD = features[jnp.maximum(batch.media, 0)]
    image, images = _mean(shown_BSD, seen_BS, sample_BS, count)
    caption, captions = _mean(hidden_BSD, caption_BS, sample_BS, count)
    return Samples(image, caption, (images > 0) & (captions > 0))


def _mean(values_BSD: Array, chosen_BS: Array, sample_BS: Array, count: int) -> tuple[Array, Array]:
    """Means ``[B, N, D]`` of the chosen tokens of every sample, and their numbers ``[B, N]``."""
    own_BSN = chosen_BS[..., None] & (sample_BS[..., None] == jnp.arange(count))
    own_BSN = own_BSN.astype(jnp.float32)
    total_BND = jnp.einsum("bsn,bsd->bnd", own_BSN, values_BSD.astype(jnp.float32), precision="highest")
    number_BN = own_BSN.sum(1)
    return total_BND / jnp.maximum(number_BN, 1)[..., None], number_BN
