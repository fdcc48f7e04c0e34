"""The public face of the model: a flax.linen module that registers the weight table and calls the pure function."""

from __future__ import annotations

from typing import Any, NamedTuple

from flax import linen as nn
from jax import Array
import jax.numpy as jnp

from k2jax.batch import PatchBatch
from k2jax.config.schema import ModelConfig
from k2jax.model.decoder import ModelStats, cast_params, forward, head_weight
from k2jax.model.remat import NO_REMAT, Remat
from k2jax.model.specs import model_specs
from k2jax.model.vision.specs import multimodal_specs
from k2jax.model.vision.tower import VisionOutput, vision_features
from k2jax.params import VISION, initialize


class ModelOutput(NamedTuple):
    """The result of one call.

    Attributes:
        hidden: ``[B, S, D]`` after the final norm.
        logits: ``[B, S, V]`` float32; None without ``return_logits``.
        stats: see ModelStats.
        vision: features of the images and clips, and statistics of the tower; None without images.
    """

    hidden: Array
    logits: Array | None
    stats: ModelStats
    vision: VisionOutput | None = None


class K2(nn.Module):
    """A decoder: Kimi K2 (DeepSeek-V3 family), or a dense one with grouped-query attention (Llama, Qwen).

    Where ``config.vision`` has layers it also reads images and clips (Kimi K2.5).

    Example:
        >>> model = K2(model_preset("nano"))
        >>> variables = model.init(jax.random.key(0), tokens)
        >>> output = model.apply(variables, tokens)

    Attributes:
        config: the architecture.
        dtype: compute dtype; parameters stay float32.
        remat: what each layer keeps for the backward pass.
    """

    config: ModelConfig
    dtype: Any = jnp.float32
    remat: Remat = NO_REMAT

    @nn.compact
    def __call__(
        self,
        tokens: Array,
        *,
        positions: Array | None = None,
        exit: Array | None = None,
        media: Array | None = None,
        patches: PatchBatch | None = None,
        return_logits: bool = True,
    ) -> ModelOutput:
        """Runs the decoder.

        Args:
            tokens: ``[B, S]`` int32.
            positions: ``[B, S]`` int32; None counts from 0.
            exit: ``[B, S]`` int32 mask vector of PackedBatch; None is causal.
            media: int32 ``[B, S]``, the groups of ``patches`` that stand for tokens, as of PackedBatch.
            patches: images and clips; None is text alone, which reads no weight of the tower.
            return_logits: False leaves the head to ``token_logprobs``.
        """
        with_vision = patches is not None or self.is_initializing()
        specs = multimodal_specs(self.config) if with_vision else model_specs(self.config)
        params = {
            name: self.param(name, lambda key, part=part: initialize(part, key, self.config.init_std))
            for name, part in specs.items()
        }
        params = cast_params(params, specs, self.dtype)
        vision, placed = None, None
        if patches is not None:
            vision = vision_features(params[VISION], patches, self.config)
            placed = vision.features, media
        hidden_BSD, stats = forward(params, tokens, positions, exit, self.config, remat=self.remat, media=placed)
        logits_BSV = None
        if return_logits:
            logits_BSV = jnp.einsum("bsd,vd->bsv", hidden_BSD, head_weight(params), preferred_element_type=jnp.float32)
        return ModelOutput(hidden_BSD, logits_BSV, stats, vision)
