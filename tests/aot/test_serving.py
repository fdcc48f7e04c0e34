"""The engine's programs compiled for an absent TPU: sizes worked out by hand, and no second cache."""

import pytest

from k2jax.aot import topology
from k2jax.config import model_preset, replace_keys
from k2jax.errors import UserError

topology.prepare()

from k2jax.aot.report.tables import as_json, serving_table  # noqa: E402
from k2jax.aot.serving import compile_serving  # noqa: E402

MODEL = replace_keys(
    model_preset("nano"),
    {
        "layers": 3,
        "dense_layers": 1,
        "d_model": 256,
        "heads": 8,
        "mla.q_lora_rank": 128,
        "mla.kv_lora_rank": 128,
        "mla.qk_nope_dim": 128,
        "mla.qk_rope_dim": 64,
        "mla.v_dim": 128,
        "dense_ffn": 512,
        "moe.expert_ffn": 128,
        "moe.experts": 16,
        "moe.active_experts": 4,
        "moe.shared_experts": 1,
        "vocab": 1024,
        "tied_head": False,
    },
)
TOPOLOGY, CONTEXT, SLOTS = "v5e:2x4", 32768, 32


def weights_of_a_device():
    """Bytes with the experts over 4 of the 8 devices: bfloat16 but for the router and its bias."""
    attention = 256 * 128 + 128 + 128 * 8 * 192 + 256 * (128 + 64) + 128 + 128 * 8 * (128 + 128) + 8 * 128 * 256
    dense = attention + 3 * 256 * 512 + 2 * 256
    moe = attention + 4 * 3 * 256 * 128 + 3 * 256 * 128 + 2 * 256
    return 2 * (2 * 1024 * 256 + 256 + dense + 2 * moe) + 4 * 2 * (256 * 16 + 16)


@pytest.mark.parametrize("mode", ["decode", pytest.param("prefill", marks=pytest.mark.slow)])
def test_a_program_holds_its_weights_and_one_cache(mode):
    found = compile_serving(MODEL, mode, TOPOLOGY, expert=4, context=CONTEXT, slots=SLOTS)
    assert found.mesh == {"data": 2, "expert": 4}
    assert found.hbm.parts["weights"] == weights_of_a_device()
    pages = SLOTS // 8 * CONTEXT // 16 + 1
    cache = 2 * 3 * pages * 16 * 256  # 128 + 64 numbers in whole lanes
    assert found.hbm.parts["cache"] == cache
    assert found.hbm.parts["temporaries"] < cache / {"decode": 10, "prefill": 2}[mode]
    assert found.tokens == {"decode": SLOTS, "prefill": 8 * 1024}[mode]
    exchanges = {row.axes: row.count for row in found.collectives if row.kind == "ragged-all-to-all"}
    assert exchanges == {"expert": 2 * 2}  # there and back in two layers
    assert set(row.axes for row in found.collectives) == {"expert"}
    if mode == "decode":  # of 4 tokens to those of 4 ranks that own one of 4 of 16 experts, there and back, two layers
        rows = 4 * 4 * (1 - (12 * 11 * 10 * 9) / (16 * 15 * 14 * 13))
        sent = sum(row.bytes for row in found.collectives if row.kind == "ragged-all-to-all")
        assert sent == pytest.approx(2 * 2 * rows * 256 * 2)
        # Every weight but the embedding's table once, and every cached token.
        assert found.work.bytes == pytest.approx(weights_of_a_device() - 2 * 1024 * 256 + cache, rel=0.01)
    assert f"{mode} on v5e:2x4, data 2 x expert 4: 32 sequences" in serving_table(found)
    assert as_json(found)["hbm"]["fits"]


def test_sequences_fill_what_the_weights_leave():
    with pytest.raises(UserError, match=r"raise config\.parallel\.expert, or lower --context"):
        compile_serving(model_preset("k2"), "decode", "v5p:4x4x4", expert=16, context=CONTEXT)
    with pytest.raises(UserError, match="expert 5 does not divide the 64 devices of v5p:4x4x4; 4 or 8 would"):
        compile_serving(model_preset("k2"), "decode", "v5p:4x4x4", expert=5, context=CONTEXT)
