"""What is wrong with a folder is said in one line that names the file or the tensor; the rest is counted."""

import json
import shutil
import struct

import numpy as np
import pytest

import k2jax
from k2jax.convert.source import open_folder
from k2jax.errors import UserError
from tests.command import run_command
from tests.convert.folders import network, tensors_of, write_folder
from tests.refusal import refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "hf"
    network("deepseek_v3").save_pretrained(path, max_shard_size="100KB")
    return path


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "hf")


def edit(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (config | values).items() if v is not None}))


def in_one_file(folder, tmp_path, change):
    """The folder's tensors after ``change(dict)``, in one file."""
    tensors = {name: tensor.numpy() for name, tensor in tensors_of(folder).items()}
    change(tensors)
    return write_folder(tmp_path / "one", json.loads((folder / "config.json").read_text()), tensors)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "model-00002-of-00007.safetensors").unlink(), "model-00002-of-00007.safetensors"),
        (lambda f: truncate(f / "model-00003-of-00007.safetensors", -1), r"model-00003-of-00007.\w+ is truncated"),
        (lambda f: truncate(f / "model-00003-of-00007.safetensors", 5), r"model-00003-of-00007.\w+ is truncated"),
        (lambda f: (f / "model-00001-of-00007.safetensors").write_bytes(b"\x02" + bytes(7) + b"[]"), "damaged header"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{"), "index.json is damaged"),
        (lambda f: (f / "model.safetensors.index.json").unlink(), "holds neither"),
        (lambda f: (f / "config.json").unlink(), "config.json"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json is damaged"),
        (lambda f: edit(f, model_type="gpt2"), "model_type 'gpt2' is not supported"),
        (lambda f: edit(f, hidden_size=None), "lacks 'hidden_size'"),
        (lambda f: edit(f, hidden_size="wide"), "hidden_size must be a whole number of 1 to"),
        (lambda f: edit(f, scoring_func="softmax"), "scoring_func 'softmax' is not supported"),
        (lambda f: edit(f, rope_parameters={"rope_type": "dynamic", "rope_theta": 1.0}), "rope_type 'dynamic'"),
        (lambda f: edit(f, moe_intermediate_size=33), r"experts.0.down_proj.weight is \(48, 32\), not \(48, 33\)"),
        (lambda f: edit(f, num_hidden_layers=4), "model.layers.3.* is missing"),
        (lambda f: edit(f, n_routed_experts=7), "experts.7.down_proj.weight is unknown"),
    ],
)
def test_damage_is_named(copy, damage, words):
    damage(copy)
    with pytest.raises(UserError, match=words) as raised:
        open_folder(copy)
    assert "\n" not in str(raised.value)


def truncate(path, size):
    data = path.read_bytes()
    path.write_bytes(data[:size])


def test_an_index_cannot_point_outside_its_folder(copy):
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], "../hf/model-00001-of-00007.safetensors")
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with refused("not a file of its folder"):
        open_folder(copy)


def test_prediction_layers_and_rotary_tables_are_left_out(folder, tmp_path):
    def change(tensors):
        tensors["model.layers.3.eh_proj.weight"] = np.ones((2, 2), np.float32)
        tensors["model.layers.3.input_layernorm.weight"] = np.ones(48, np.float32)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)

    source = open_folder(in_one_file(folder, tmp_path, change))
    assert source.notes == ["skipped 2 tensors of multi-token prediction"]
    assert source.tensors.keys() == open_folder(folder).tensors.keys()


def test_the_decoder_of_a_vision_model(folder, tmp_path):
    """Kimi K2.5's layout: text_config, names under language_model., a vision tower that is counted."""

    def change(tensors):
        for name in list(tensors):
            tensors["language_model." + name] = tensors.pop(name)
        tensors["vision_tower.patch_embed.weight"] = np.ones(3, np.float32)

    wrapped = in_one_file(folder, tmp_path, change)
    text = json.loads((folder / "config.json").read_text()) | {"model_type": "kimi_k2"}
    (wrapped / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    source = open_folder(wrapped)
    assert source.notes == ["skipped 1 tensors outside the language model (vision)"]
    assert source.model == open_folder(folder).model


def test_the_published_config_of_kimi_k2(folder):
    """The values of moonshotai/Kimi-K2-Instruct's config.json give the preset."""
    from k2jax.config import model_preset
    from k2jax.convert.hf_config import _parse

    published = {
        "model_type": "kimi_k2", "attention_bias": False, "first_k_dense_replace": 1, "hidden_act": "silu",
        "hidden_size": 7168, "initializer_range": 0.006, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 131072, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1,
        "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6,
        "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "original_max_position_embeddings": 4096, "type": "yarn"},
        "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
        "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128,
        "vocab_size": 163840, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }  # fmt: skip
    parsed = _parse(published)
    assert parsed.model == model_preset("k2") and parsed.quantization["quant_method"] == "fp8"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import", "nowhere", "--workdir=out"], "no checkpoint nowhere"),
        (["import", "nowhere"], "--workdir is required"),
        (["export", "--checkpoint=nowhere", "--to=out"], "no checkpoint nowhere"),
        (["copy"], "say 'import FOLDER"),
        (["import"], "say 'import FOLDER"),
    ],
)
def test_the_command_says_what_is_wrong_and_exits_with_2(tmp_path, arguments, words):
    done = run_command("k2jax.convert", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr


def test_a_pickled_checkpoint_is_never_opened(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(struct.pack("<Q", 0))
    with pytest.raises(UserError):
        k2jax.from_pretrained(tmp_path)
