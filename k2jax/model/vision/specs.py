"""The weight table of the tower and the projector, in the names and layouts of published K2.5 folders."""

from __future__ import annotations

from k2jax.config.schema import ModelConfig, VisionConfig
from k2jax.model.layer_specs import LayerSpecs
from k2jax.model.specs import model_specs
from k2jax.params import VISION, ParamSpec, Specs

COLOURS = 3
MERGED = 4
"""Patches that become one feature: 2 x 2 of a frame."""


def multimodal_specs(config: ModelConfig) -> Specs:
    """The spec tree of the decoder and, where the model has vision, of ``params.VISION``."""
    specs = model_specs(config)
    return {**specs, VISION: vision_specs(config)} if config.vision.layers else specs


def vision_specs(config: ModelConfig) -> Specs:
    """The spec tree of the tower and the projector.

    Matrices are Muon's; the patch embedding and the grid of positions are embeddings, which AdamW updates. What
    SigLIP's loss learns beside them is in no published folder.
    """
    vision = config.vision
    contrast = {name: ParamSpec((1,), ("one",), "bias", ("one",), hf="", init="zeros") for name in ("scale", "bias")}
    return {
        **({"contrast": contrast} if vision.contrast else {}),
        "patch": ParamSpec(
            (COLOURS, vision.patch, vision.patch, vision.width),
            ("colours", "patch_y", "patch_x", "vision_embed"),
            "embedding",
            ("vision_embed",),
            hf="vision_tower.patch_embed.proj.weight",
            inputs=("colours", "patch_y", "patch_x"),
            hf_axes=True,
        ),
        "patch_bias": _bias("vision_embed", vision.width, "vision_tower.patch_embed.proj.bias"),
        "grid": ParamSpec(
            (vision.grid, vision.grid, vision.width),
            ("grid_y", "grid_x", "vision_embed"),
            "embedding",
            ("grid_y",),
            hf="vision_tower.patch_embed.pos_emb.weight",
            inputs=("grid_x", "vision_embed"),
            hf_axes=True,
        ),
        "layers": _layers(vision),
        "final_norm": _norm(vision.width, "vision_tower.encoder.final_layernorm"),
        "projector": _projector(vision, config.d_model),
    }


def _layers(vision: VisionConfig) -> Specs:
    layers = LayerSpecs(vision.layers, first=0, prefix="vision_tower.encoder.blocks")
    specs: Specs = {
        "attention_norm": _layer_norm(layers, vision.width, "norm0"),
        "attention": _attention(layers, vision),
        "ffn_norm": _layer_norm(layers, vision.width, "norm1"),
        "ffn": {},
    }
    embed, ffn = ("vision_embed", vision.width), ("vision_ffn", vision.ffn)
    for name, (source, size), (target, out), hf in (("up", embed, ffn, "mlp.fc0"), ("down", ffn, embed, "mlp.fc1")):
        specs["ffn"][name] = layers.weight({source: size, target: out}, source, target, hf + ".weight")
        specs["ffn"][name + "_bias"] = layers.vector(target, out, hf + ".bias", role="bias", init="zeros")
    return specs


def _attention(layers: LayerSpecs, vision: VisionConfig) -> Specs:
    """Queries, keys and values are three weights, which Muon and QK-Clip treat apart, of one published tensor."""
    width = vision.width // vision.heads
    heads = {"vision_heads": vision.heads, "head_dim": width}
    specs = {
        "o": layers.weight(
            {**heads, "vision_embed": vision.width}, "vision_heads head_dim", "vision_embed", "wo.weight"
        ),
        "o_bias": layers.vector("vision_embed", vision.width, "wo.bias", role="bias", init="zeros"),
    }
    for number, name in enumerate(("q", "k", "v")):
        more = {"segments": ((name, width),), "part": (number, 3)}
        specs[name] = layers.weight(
            {"vision_embed": vision.width, **heads}, "vision_embed", "vision_heads head_dim", "wqkv.weight", **more
        )
        specs[name + "_bias"] = layers.weight(
            heads, "", "vision_heads head_dim", "wqkv.bias", role="bias", init="zeros", **more
        )
    return specs


def _projector(vision: VisionConfig, d_model: int) -> Specs:
    merged = MERGED * vision.width
    specs: Specs = {"norm": _norm(vision.width, "mm_projector.pre_norm")}
    sides = (
        ("up", "projector_hidden", merged, "mm_projector.proj.0"),
        ("down", "embed", d_model, "mm_projector.proj.2"),
    )
    source = "merged"
    for name, target, size, hf in sides:
        specs[name] = ParamSpec(
            (merged, size), (source, target), "matrix", (target,), hf=hf + ".weight", inputs=(source,)
        )
        specs[name + "_bias"] = _bias(target, size, hf + ".bias")
        source = target
    return specs


def _norm(width: int, hf: str) -> Specs:
    """Weight and bias of a LayerNorm."""
    weight = ParamSpec((width,), ("vision_embed",), "norm", ("vision_embed",), hf=hf + ".weight", init="ones")
    return {"weight": weight, "bias": _bias("vision_embed", width, hf + ".bias")}


def _layer_norm(layers: LayerSpecs, width: int, hf: str) -> Specs:
    """The same for every layer."""
    return {
        "weight": layers.vector("vision_embed", width, hf + ".weight"),
        "bias": layers.vector("vision_embed", width, hf + ".bias", role="bias", init="zeros"),
    }


def _bias(axis: str, size: int, hf: str) -> ParamSpec:
    return ParamSpec((size,), (axis,), "bias", (axis,), hf=hf, init="zeros")
