"""Multi-head Latent Attention (MLA) under the exit mask, with the statistic that QK-Clip needs."""

from pallas_kernels.mla_attention.arrays import AttentionInputs, AttentionStats
from pallas_kernels.mla_attention.attention import mla_attention
from pallas_kernels.mla_attention.blocks import MAX_LENGTH

__all__ = ["MAX_LENGTH", "AttentionInputs", "AttentionStats", "mla_attention"]
