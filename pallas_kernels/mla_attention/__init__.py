"""Multi-head Latent Attention (MLA) under the exit mask, with the statistic that QK-Clip needs."""

from pallas_kernels.mla_attention.arrays import AttentionInputs, AttentionStats
from pallas_kernels.mla_attention.attention import mla_attention

__all__ = ["AttentionInputs", "AttentionStats", "mla_attention"]
