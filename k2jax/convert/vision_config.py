"""The vision part of a K2.5 ``config.json``, read in its two dialects: as published, and as transformers writes it."""

from __future__ import annotations

from typing import Any

from k2jax.config.schema import ModelConfig, VisionConfig
from k2jax.convert.json_values import Values
from k2jax.errors import UserError

_FIXED = {
    "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool",
    "pos_emb_type": "divided_fixed",
    "video_attn_type": "spatial_temporal",
    "mm_projector_type": "patchmerger",
    "projector_hidden_act": "gelu",
    "hidden_act": "gelu_pytorch_tanh",
}
"""The value of each key in a file that has it; another value means another architecture."""
_PROJECTOR = ("projection_hidden_size", "projection_layer_norm_eps")
_MOST_WIDTH, _MOST_PLACES = 1 << 24, 1 << 12


def read_vision(content: dict[str, Any]) -> VisionConfig:
    """Reads the tower and the projector.

    Args:
        content: a whole ``config.json``; without ``vision_config`` the model has no vision.

    Raises:
        UserError: a value is missing, out of range or not supported.
    """
    values = Values(content)
    tower = values.group("vision_config")
    if tower is None:
        return VisionConfig()
    for key, supported in _FIXED.items():
        tower.fixed(key, supported)
    published = tower.raw("vt_hidden_size") is not None
    key, grid = ("vt_", "init_pos_emb_") if published else ("", "pos_emb_")
    side, other = (tower.whole(f"{grid}{axis}", 1, _MOST_PLACES) for axis in ("height", "width"))
    width = tower.whole(key + "hidden_size", 1, _MOST_WIDTH)
    outer, name, eps = (tower, "mm_hidden_size", "projector_ln_eps") if published else (values, *_PROJECTOR)
    if side != other or outer.whole(name, 1, _MOST_WIDTH, width) != width:
        raise UserError("a grid of positions that is not square, or a projector of another width, is not supported")
    heads, rope = tower.whole(key + "num_attention_heads", 1, 1 << 16), tower.group("rope_parameters") or Values({})
    if width % (4 * heads):
        raise UserError(f"{key}hidden_size {width} does not divide into {heads} heads of a multiple of 4")
    return VisionConfig(
        layers=tower.whole(key + "num_hidden_layers", 1, 10_000),
        width=width,
        heads=heads,
        ffn=tower.whole(key + "intermediate_size", 1, _MOST_WIDTH),
        patch=tower.whole("patch_size", 1, _MOST_PLACES),
        grid=side,
        frames=tower.whole(f"{grid}time", 1, _MOST_PLACES),
        rope_theta=rope.number("rope_theta", 1.0, 1e15, 10000.0),
        projector_eps=outer.number(eps, 0.0, 1.0, 1e-5),
    )


def write_vision(model: ModelConfig, text: dict[str, Any], media: dict[str, int]) -> dict[str, Any]:
    """Returns the values of the ``config.json`` of a model with vision, in transformers' dialect.

    Args:
        model: the architecture.
        text: the values of its decoder alone.
        media: ids of the tokens around and in place of images, by their keys; transformers' own where it has none.
    """
    vision = model.vision
    return {
        "architectures": ["Kimi_K25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": text["dtype"],
        "tie_word_embeddings": model.tied_head,
        "projection_hidden_size": vision.width,
        "projection_layer_norm_eps": vision.projector_eps,
        **media,
        "text_config": {key: value for key, value in text.items() if key != "architectures"},
        "vision_config": {
            "model_type": "kimi_k25_vision",
            "hidden_size": vision.width,
            "intermediate_size": vision.ffn,
            "num_hidden_layers": vision.layers,
            "num_attention_heads": vision.heads,
            "patch_size": vision.patch,
            "pos_emb_height": vision.grid,
            "pos_emb_width": vision.grid,
            "pos_emb_time": vision.frames,
            "hidden_act": _FIXED["hidden_act"],
            "merge_kernel_size": _FIXED["merge_kernel_size"],
            "rope_parameters": {"rope_type": "axial", "rope_theta": vision.rope_theta},
        },
    }
