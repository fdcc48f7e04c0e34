"""Folders of SigLIP as the start of a tower: against transformers' own features, names, sizes and refusals."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
import torch
from transformers import SiglipConfig, SiglipModel, SiglipVisionConfig, SiglipVisionModel

from k2jax.config.presets import vision_preset
from k2jax.config.schema import ModelConfig, VisionConfig
from k2jax.convert.loading import open_tower
from k2jax.convert.mapping import hf_shape
from k2jax.convert.siglip import SiglipTower, published_tower
from k2jax.data.images.patch_packing import PatchChunk, pack_chunks
from k2jax.model.vision import multimodal_specs, tower, vision_features
from k2jax.params import VISION, hf_tensors, map_specs, named_specs
from tests.refusal import refused

SIDE, PATCH, WIDTH = 6, 2, 32
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": PATCH,
    "image_size": SIDE * PATCH,
}


def randomised(network):
    """Weights of which no bias is 0, no norm 1, and no matrix small."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in network.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        is_norm = "norm" in name and name.endswith("weight")
        weight.data = 1 + 0.1 * noise if is_norm else noise * (0.2 if weight.dim() > 1 else 0.1)
    return network.eval()


@pytest.fixture(scope="module")
def network():
    return randomised(SiglipVisionModel(SiglipVisionConfig(**SIZES)))


@pytest.fixture(scope="module")
def folder(network, tmp_path_factory):
    """The image encoder alone, as transformers saves it."""
    folder = tmp_path_factory.mktemp("siglip")
    network.save_pretrained(folder)
    return folder


def tower_of(folder, grid):
    opened = open_tower(folder, grid)
    own = {name: spec for name, spec in multimodal_specs(opened.model)[VISION].items() if name != "projector"}
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return opened.params({VISION: map_specs(lambda spec: device, own)}, np.float32)[VISION]


def hidden_state(params, image, monkeypatch):
    """The tower's output for one image, row by row, without rotary embedding: ``[patches, width]``."""
    monkeypatch.setattr(
        tower,
        "rotary_angles",
        lambda y, x, head_dim, theta: (jnp.ones((*y.shape, head_dim // 2)), jnp.zeros((*y.shape, head_dim // 2))),
    )
    monkeypatch.setattr(tower, "_project", lambda params, pooled, vision: pooled)
    height, width = image.shape[1] // PATCH, image.shape[2] // PATCH
    cut = image.reshape(3, height, PATCH, width, PATCH).transpose(1, 3, 0, 2, 4).reshape(height * width, -1)
    packed = pack_chunks([PatchChunk(cut, (1, height, width))], rows=1, length=height * width + 8, patch=PATCH)
    vision = VisionConfig(layers=2, width=WIDTH, heads=2, ffn=48, patch=PATCH, grid=len(params["grid"]))
    compute = jax.jit(lambda params, patches: vision_features(params, patches, ModelConfig(vision=vision)).features)
    features = compute({**params, "projector": {}}, packed.batch)
    groups = np.asarray(features)[0][packed.features[0]]  # of 2 x 2 patches
    return groups.reshape(height // 2, width // 2, 2, 2, WIDTH).transpose(0, 2, 1, 3, 4).reshape(-1, WIDTH)


@pytest.mark.parametrize("grid", [(SIDE, SIDE), (4, 8)], ids=["SigLIP's size", "another size"])
def test_without_rotary_embedding_the_tower_computes_siglips_last_hidden_state(network, folder, monkeypatch, grid):
    image = np.random.default_rng(1).normal(size=(3, grid[0] * PATCH, grid[1] * PATCH)).astype(np.float32)
    with torch.no_grad():
        theirs = network(torch.tensor(image)[None], interpolate_pos_encoding=True).last_hidden_state[0].numpy()
    ours = hidden_state(tower_of(folder, SIDE), image, monkeypatch)
    assert np.abs(theirs).max() > 1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4)


@pytest.mark.parametrize("side", [4, SIDE, 9])
def test_positions_are_resampled_as_torch_resamples_them(network, folder, side):
    table = network.embeddings.position_embedding.weight.detach().reshape(1, SIDE, SIDE, WIDTH)
    resized = torch.nn.functional.interpolate(table.permute(0, 3, 1, 2), size=(side, side), mode="bicubic")
    grid = tower_of(folder, side)["grid"]
    np.testing.assert_allclose(grid, resized[0].permute(1, 2, 0).numpy(), rtol=0, atol=1e-5)


def test_published_names_and_folders_with_texts_give_the_same_tower(folder, tmp_path):
    both = SiglipModel(SiglipConfig(vision_config=SIZES, text_config={**SIZES, "vocab_size": 50, "eos_token_id": 1}))
    alone = load_file(folder / "model.safetensors")
    state = both.state_dict()
    for name, tensor in alone.items():
        state[f"vision_model.{name}"].copy_(torch.tensor(tensor))
    both.save_pretrained(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, tower_of(tmp_path, 8), tower_of(folder, 8))


def test_the_names_and_sizes_of_so_400m_are_those_of_moonvit():
    vision = vision_preset("moonvit")
    sizes = dict(zip(SIZES, (vision.width, vision.ffn, vision.layers, vision.heads, vision.patch, 384), strict=True))
    with torch.device("meta"):
        stored = SiglipVisionModel(SiglipVisionConfig(**sizes)).state_dict()
    made = published_tower(stored, 384 // vision.patch, vision.grid)
    specs = {k: v for k, v in multimodal_specs(ModelConfig(vision=vision))[VISION].items() if k != "projector"}
    expected = {name: hf_shape(spec) for _, spec in named_specs(specs) for name, _ in hf_tensors(spec)}
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == expected


def damaged_folder(folder, tmp_path, change=lambda tensors: None, **config):
    content = json.loads((folder / "config.json").read_text()) | config
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("change", "config", "why"),
    [
        (
            lambda tensors: tensors.pop("encoder.layers.1.self_attn.k_proj.bias"),
            {},
            r"blocks\.1\.wqkv\.bias is missing",
        ),
        (lambda tensors: tensors.pop("post_layernorm.weight"), {}, r"final_layernorm\.weight is missing"),
        (None, {"image_size": 40}, "not 20 x 20 positions; see image_size"),
        (None, {"intermediate_size": 64}, r"fc0\.bias is \(48,\), not \(64,\)"),
        (None, {"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        (None, {"num_attention_heads": 3}, "does not divide into 3 heads"),
    ],
)
def test_what_is_no_tower_of_its_config_is_one_line(folder, tmp_path, change, config, why):
    with refused(why):
        open_tower(damaged_folder(folder, tmp_path, change or (lambda tensors: None), **config), 8)


def test_numbers_that_are_none_are_refused(folder, tmp_path):
    def change(tensors):
        tensors["encoder.layers.0.mlp.fc1.bias"][3] = np.nan

    with refused("holds NaN or an infinity"):
        tower_of(damaged_folder(folder, tmp_path, change), 8)


def test_heads_are_compared_though_tensors_do_not_show_them(folder):
    expected = VisionConfig(layers=2, width=WIDTH, heads=2, ffn=48, patch=PATCH, grid=8)
    assert SiglipTower(folder, 8).model.vision == expected
