"""Parameter counts of the towers, and the optimizer's group of every weight."""

import pytest
import torch
from transformers import Kimi_K25Config
from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25MultimodalProjection, Kimi_K25VisionModel

from k2jax.config import Config, OptimizerConfig, model_preset, resolve
from k2jax.config.presets import vision_preset
from k2jax.config.replace import replace_keys
from k2jax.errors import UserError
from k2jax.model import total_parameters
from k2jax.model.vision import multimodal_specs, vision_specs
from k2jax.optim.groups import group_of
from k2jax.params import count, named_specs


def test_the_published_tower_and_projector_have_as_many_parameters_as_transformers():
    specs = vision_specs(replace_keys(model_preset("k2"), {"vision": vision_preset("moonvit")}))
    projector = specs.pop("projector")
    config = Kimi_K25Config(text_config={"model_type": "deepseek_v3", "hidden_size": 7168})
    with torch.device("meta"):
        tower, theirs = Kimi_K25VisionModel(config.vision_config), Kimi_K25MultimodalProjection(config)
    assert count(specs) == sum(p.numel() for p in tower.parameters()) == 416_866_032
    assert count(projector) == sum(p.numel() for p in theirs.parameters()) == 54_277_888


def test_matrices_of_the_tower_are_muons_and_the_rest_is_adamws():
    specs = vision_specs(replace_keys(model_preset("nano"), {"vision": vision_preset("nano_vision")}))
    groups = {name: group_of(spec, OptimizerConfig()) for name, spec in named_specs(specs)}
    matrices = {f"layers/attention/{name}" for name in "qkvo"}
    matrices |= {f"{part}/{name}" for part in ("layers/ffn", "projector") for name in ("up", "down")}
    assert {name for name, group in groups.items() if group == "muon"} == matrices


def test_a_text_model_has_no_weights_of_vision():
    config = model_preset("nano")
    assert "vision" not in multimodal_specs(config)
    assert total_parameters(replace_keys(config, {"vision": vision_preset("nano_vision")})) == total_parameters(config)


def test_an_unknown_tower_is_refused_with_the_names_of_the_others():
    with pytest.raises(UserError, match="moonvit, nano_vision"):
        vision_preset("moonvit2")


def test_heads_that_do_not_divide_into_pairs_of_two_axes_are_refused():
    vision = replace_keys(vision_preset("nano_vision"), {"width": 120, "heads": 20})
    with pytest.raises(UserError, match=r"vision\.width 120 does not divide into 20 heads of a multiple of 4"):
        resolve(Config(model=replace_keys(model_preset("nano"), {"vision": vision})))
