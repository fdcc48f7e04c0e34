"""Folders of Kimi K2.5: tower, projector and decoder come in under three ways of naming and go out bit for bit."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
import torch
from transformers import Kimi_K25Config, Kimi_K25ForConditionalGeneration

from k2jax.config.presets import vision_preset
from k2jax.config.schema import VisionConfig
from k2jax.convert.exporting import export_checkpoint
from k2jax.convert.image_limits import IMAGES_FILE, processor_limits
from k2jax.convert.importing import import_folder
from k2jax.convert.source import open_folder
from k2jax.convert.vision_config import read_vision
from k2jax.data.images.limits import ResizeLimits
from tests.convert.test_quantized import INT4
from tests.model.vision.oracle import network
from tests.refusal import refused

PUBLISHED = {
    "init_pos_emb_height": 64, "init_pos_emb_time": 4, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool", "mm_hidden_size": 1152, "mm_projector_type": "patchmerger", "patch_size": 14,
    "pos_emb_type": "divided_fixed", "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05,
    "text_hidden_size": 7168, "video_attn_type": "spatial_temporal", "vt_hidden_size": 1152,
    "vt_intermediate_size": 4304, "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27,
}  # fmt: skip
SAVED_NAMES = {  # what transformers calls some tensors when it saves them, and their published names
    "language_model.model.blocks.": "language_model.model.layers.",
    "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
    "model.mm_projector.": "mm_projector.",
}


def published(tensors):
    """Tensors that transformers saved, under published names."""
    renamed = {}
    for name, tensor in tensors.items():
        for saved, public in SAVED_NAMES.items():
            name = public + name.removeprefix(saved) if name.startswith(saved) else name
        renamed[name] = tensor
    return renamed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A published folder in bfloat16 with float32 selection biases, of a model that transformers wrote."""
    root = tmp_path_factory.mktemp("kimi_k25")
    model = network(dtype=torch.bfloat16)
    for name, buffer in model.named_buffers():
        if "correction_bias" in name:
            buffer.data = buffer.data.float()
    model.save_pretrained(root / "saved")
    (root / "published").mkdir()
    save_file(published(load_file(root / "saved" / "model.safetensors")), root / "published" / "model.safetensors")
    (root / "published" / "config.json").write_text((root / "saved" / "config.json").read_text())
    limits = {"in_patch_limit": 900, "in_patch_limit_each_frame": 400, "patch_limit_on_one_side": 60}
    (root / "published" / IMAGES_FILE).write_text(json.dumps({"media_proc_cfg": limits}))
    return root


def all_rows(source):
    return {name: tensor.read().astype(np.float32) for name, tensor in source.tensors.items()}


def assert_equal_tensors(some, others):
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        assert tensor.dtype == others[name].dtype, name
        np.testing.assert_array_equal(tensor.view(np.uint8), others[name].view(np.uint8), err_msg=name)


def test_a_published_folder_comes_back_bit_for_bit_and_transformers_reads_it(folder, tmp_path):
    import_folder(folder / "published", tmp_path / "run")
    export_checkpoint(tmp_path / "run", tmp_path / "back")
    vision = VisionConfig(layers=1, patch=network().config.vision_config.patch_size)
    for place in ("published", "run", "back"):
        limits = processor_limits((folder if place == "published" else tmp_path) / place, vision)
        assert limits == (ResizeLimits(900, 60), ResizeLimits(400, 60)), place
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert_equal_tensors(load_file(folder / "published" / "model.safetensors"), back)
    loaded, info = Kimi_K25ForConditionalGeneration.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for (name, theirs), tensor in zip(network().named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(theirs.bfloat16(), tensor.bfloat16()), name


def test_what_an_exported_folder_says_of_its_tower_is_what_transformers_reads_of_the_imported_one(folder, tmp_path):
    config = json.loads((folder / "published" / "config.json").read_text())
    config["vision_config"]["rope_parameters"]["rope_theta"] = 5000.0
    config["vision_config"]["pos_emb_time"], config["projection_layer_norm_eps"] = 3, 2e-3
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "config.json").write_text(json.dumps(config))
    (tmp_path / "given" / "model.safetensors").symlink_to(folder / "published" / "model.safetensors")
    import_folder(tmp_path / "given", tmp_path / "run")
    export_checkpoint(tmp_path / "run", tmp_path / "back")
    given, back = (Kimi_K25Config.from_pretrained(tmp_path / name).to_dict() for name in ("given", "back"))
    assert back["vision_config"] == given["vision_config"]
    keys = ("projection_hidden_size", "projection_layer_norm_eps", "tie_word_embeddings")
    assert {key: back[key] for key in keys} == {key: given[key] for key in keys}
    assert given["vision_config"]["rope_parameters"]["rope_theta"] == 5000.0  # it is a key that transformers reads


def test_the_names_of_transformers_own_modules_and_of_its_saved_folders_are_read(folder, tmp_path):
    expected = all_rows(open_folder(folder / "published"))
    assert {name: tensor.tolist() for name, tensor in all_rows(open_folder(folder / "saved")).items()} == {
        name: tensor.tolist() for name, tensor in expected.items()
    }
    tensors = published(load_file(folder / "saved" / "model.safetensors"))
    modules = {name: tensor for name, tensor in tensors.items() if name.startswith("language_model.")}
    for name, tensor in network(dtype=torch.bfloat16).state_dict().items():
        if name.startswith(("model.vision_tower.", "model.mm_projector.")):
            modules[name] = tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    save_file(modules, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "saved" / "config.json").read_text())
    for name, tensor in all_rows(open_folder(tmp_path)).items():
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)


def test_int4_experts_stand_beside_a_bfloat16_tower(folder, tmp_path):
    tensors = load_file(folder / "published" / "model.safetensors")
    name = "language_model.model.layers.1.mlp.experts.2.up_proj.weight"
    rows, columns = tensors.pop(name).shape
    words = np.full((rows, columns // 8), 0x0F879123, np.int32)  # 3 2 1 9 7 8 15 0, each 8 too large
    tensors[name + "_packed"] = words
    tensors[name + "_scale"] = np.full((rows, columns // 32), 0.5, ml_dtypes.bfloat16)
    tensors[name + "_shape"] = np.array([rows, columns])
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((folder / "published" / "config.json").read_text())
    config["text_config"]["quantization_config"] = INT4
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = open_folder(tmp_path)
    values = source.tensors[name.removeprefix("language_model.")].read().astype(np.float32)
    np.testing.assert_array_equal(values[0, :8], [-2.5, -3, -3.5, 0.5, -0.5, 0, 3.5, -4])
    assert source.tensors["vision_tower.encoder.blocks.1.wo.weight"].dtype == ml_dtypes.bfloat16


def test_the_published_config_is_the_preset():
    assert read_vision({"vision_config": PUBLISHED}) == vision_preset("moonvit")
    assert read_vision({"text_config": {}}).layers == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mm_projector_type": "patchmergerv2"}, "mm_projector_type 'patchmergerv2' of vision_config is not supported"),
        ({"merge_kernel_size": [4, 4]}, "merge_kernel_size"),
        ({"init_pos_emb_width": 32}, "not square"),
    ],
)
def test_another_architecture_is_refused_by_the_name_of_its_key(change, words):
    with refused(words):
        read_vision({"vision_config": PUBLISHED | change})
