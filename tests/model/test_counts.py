"""Parameter counts of the published architectures, as exact integers, and FLOPs from first principles."""

import pytest

from k2jax.config import model_preset
from k2jax.model import active_parameters, total_parameters, training_flops_per_token


@pytest.mark.parametrize(
    ("preset", "expected"),
    [("k2", 1_026_408_209_408), ("deepseek_v3", 671_026_404_352), ("moonlight", 15_960_108_544)],
)
def test_total_parameters(preset, expected):
    assert total_parameters(model_preset(preset)) == expected


def test_k2_activates_32_billion():
    config = model_preset("k2")
    assert round(active_parameters(config) / 1e9, 2) == 32.86
    assert round(active_parameters(config, embeddings=False) / 1e9, 2) == 30.51


def test_flops_count_active_matrices_head_and_half_the_scores():
    config = model_preset("nano")
    d, heads = config.d_model, config.heads
    attention_weights = d * 96 + 96 * heads * 96 + d * 96 + 64 * heads * 128 + heads * 64 * d
    moe = d * 32 + (4 + 1) * 3 * d * 128
    weights = 4 * attention_weights + 3 * d * 1024 + 3 * moe + config.vocab * d
    scores = 4 * heads * (64 + 32 + 64) * 256 / 2
    vectors = active_parameters(config, embeddings=False) + config.vocab * d - weights  # norms: counted, negligible
    assert 0 <= vectors < 4000
    assert training_flops_per_token(config, 256) == 6 * (weights + vectors) + 6 * scores
