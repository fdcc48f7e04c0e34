"""The vision part of a K2.5 ``config.json``, read in its two dialects: as published, and as transformers writes it."""

from __future__ import annotations

from typing import Any

from k2jax.config.schema import ModelConfig, VisionConfig
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


def read_vision(values: dict[str, Any]) -> VisionConfig:
    """Reads the tower and the projector.

    Args:
        values: a whole ``config.json``; without ``vision_config`` the model has no vision.

    Raises:
        UserError: a value is not supported.
        KeyError: a key is missing.
    """
    if not (given := values.get("vision_config")):
        return VisionConfig()
    for key, wanted in _FIXED.items():
        if _plain(given.get(key, wanted)) != wanted:
            raise UserError(f"{key} {given[key]!r} of vision_config is not supported, only {wanted!r} is")
    published = "vt_hidden_size" in given
    side, other = (given[("init_" if published else "") + f"pos_emb_{axis}"] for axis in ("height", "width"))
    key = "vt_" if published else ""
    width = int(given[key + "hidden_size"])
    projected = given.get("mm_hidden_size", width) if published else values.get("projection_hidden_size", width)
    if side != other or projected != width:
        raise UserError("a grid of positions that is not square, or a projector of another width, is not supported")
    eps = given.get("projector_ln_eps", 1e-5) if published else values.get("projection_layer_norm_eps", 1e-5)
    rope = given.get("rope_parameters") or {}
    return VisionConfig(
        layers=int(given[key + "num_hidden_layers"]),
        width=width,
        heads=int(given[key + "num_attention_heads"]),
        ffn=int(given[key + "intermediate_size"]),
        patch=int(given["patch_size"]),
        grid=int(side),
        frames=int(given[("init_" if published else "") + "pos_emb_time"]),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        projector_eps=float(eps),
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


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
