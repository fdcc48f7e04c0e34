"""Folders of transformers come in, give its logits, and go out bit for bit, loadable there without a warning."""

import functools
import json
import warnings

import jax
import numpy as np
import pytest
import torch
import transformers

import k2jax
from k2jax.convert import exporting
from k2jax.convert.exporting import export_checkpoint
from k2jax.convert.importing import import_folder
from tests.convert.folders import MODELS, logits, network, tensors_of

TOKENS = np.random.default_rng(0).integers(0, 97, (2, 150))  # longer than the original context of YaRN and llama3


@pytest.fixture(scope="module", params=MODELS, ids=lambda name: name.replace(" ", "-"))
def case(request, tmp_path_factory):
    """(transformers model, its folder, the workdir imported from it, the folder exported from that)."""
    root = tmp_path_factory.mktemp("convert")
    model = network(request.param)
    model.save_pretrained(root / "hf", max_shard_size="100KB")
    import_folder(root / "hf", root / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "SHARD_BYTES", 150_000)
        export_checkpoint(root / "run", root / "back")
    return model, root


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, tokens):
    """Logits; models of the same config share the program."""
    return model.apply({"params": params}, tokens).logits


def test_logits_are_those_of_transformers(case):
    model, root = case
    ours, params = k2jax.from_pretrained(root / "hf")
    expected = logits(model, TOKENS)
    assert np.abs(expected).max() > 0.1
    assert np.abs(np.asarray(apply(ours, params, TOKENS)) - expected).max() <= 2e-4
    imported = k2jax.from_pretrained(root / "run")
    assert imported[0].config == ours.config
    jax.tree.map(np.testing.assert_array_equal, imported[1], params)


def test_every_tensor_comes_back_bit_for_bit(case):
    _, root = case
    before, after = tensors_of(root / "hf"), tensors_of(root / "back")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype and torch.equal(tensor, after[name]), name
    shards = list((root / "back").glob("*.safetensors"))
    assert len(shards) > 1
    assert all(int.from_bytes(file.read_bytes()[:8], "little") % 8 == 0 for file in shards)  # data that may be mapped


def test_transformers_loads_the_export_without_a_warning(case, caplog):
    model, root = case
    transformers.utils.logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, info = transformers.AutoModelForCausalLM.from_pretrained(
            root / "back", output_loading_info=True, attn_implementation="eager"
        )
    transformers.utils.logging.disable_propagation()
    assert not caplog.records, caplog.text
    assert not any(info.values()), info
    assert type(again) is type(model)
    np.testing.assert_array_equal(logits(again.eval(), TOKENS), logits(model, TOKENS))


def test_the_published_dialect_of_rotary_positions_means_the_same(case, tmp_path):
    """``rope_theta`` and ``rope_scaling`` with ``type``, as older files have them."""
    _, root = case
    config = json.loads((root / "hf" / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else {"type": rope.pop("rope_type"), **rope}
    for file in (root / "hf").glob("model*"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert k2jax.from_pretrained(tmp_path)[0].config == k2jax.from_pretrained(root / "hf")[0].config


def test_each_weight_keeps_its_own_dtype_and_export_casts_where_it_is_asked_to(tmp_path):
    model = network("deepseek_v3", torch.bfloat16)
    for layer in model.model.layers[1:]:
        layer.mlp.gate.e_score_correction_bias = layer.mlp.gate.e_score_correction_bias.float()
    model.save_pretrained(tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "run")
    before = tensors_of(tmp_path / "hf")
    assert {tensor.dtype for tensor in before.values()} == {torch.bfloat16, torch.float32}
    for asked, dtype in ((None, torch.bfloat16), ("float16", torch.float16)):
        export_checkpoint(tmp_path / "run", tmp_path / str(asked), dtype=asked)
        for name, tensor in tensors_of(tmp_path / str(asked)).items():
            expected = torch.float32 if name.endswith("e_score_correction_bias") else dtype
            assert tensor.dtype == expected and torch.equal(tensor, before[name].to(expected)), name
        assert json.loads((tmp_path / str(asked) / "config.json").read_text())["dtype"] == str(dtype).split(".")[1]
