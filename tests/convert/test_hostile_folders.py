"""Folders and GGUF files that somebody made to mislead: refused in one line, read to the end, or what they say."""

import json
import os
import struct

import gguf
from gguf import GGMLQuantizationType as Kind
from hypothesis import example, given, settings
from hypothesis import strategies as st
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import k2jax
from k2jax.convert.gguf_file import read_gguf
from k2jax.convert.hf_config import _parse, read_config
from k2jax.convert.importing import import_folder
from k2jax.convert.mapping import hf_shape
from k2jax.convert.source import open_folder
from k2jax.errors import UserError
from k2jax.model.specs import model_specs
from k2jax.params import hf_tensors, named_specs
from k2jax.text.tokenizer import byte_tokenizer
from tests.refusal import refused

LLAMA = {
    "model_type": "llama", "vocab_size": 40, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 16, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
MLA = LLAMA | {
    "model_type": "deepseek_v3", "num_key_value_heads": 2, "moe_intermediate_size": 8, "num_hidden_layers": 2,
    "n_shared_experts": 1, "n_routed_experts": 4, "kv_lora_rank": 4, "q_lora_rank": 4, "qk_rope_head_dim": 4,
    "v_head_dim": 4, "qk_nope_head_dim": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
}  # fmt: skip
WHOLE = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "head_dim", "first_k_dense_replace", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
    "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "moe_intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
NUMBERS = ("rms_norm_eps", "rope_theta", "initializer_range", "routed_scaling_factor")
FLAGS = ("tie_word_embeddings", "norm_topk_prob")
NEVER = ([], {}, "8", "x", float("nan"), float("inf"), -1, 1e300, 10**30, 2**63)


@pytest.fixture(scope="module")
def tensors():
    specs = dict(named_specs(model_specs(_parse(LLAMA).model)))
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=hf_shape(spec)).astype(np.float32)
        for spec in specs.values()
        for name, _ in hf_tensors(spec)
    }


@pytest.fixture
def folder(tmp_path, tensors):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(LLAMA))
    save_file(tensors, tmp_path / "hf" / "model.safetensors")
    return tmp_path / "hf"


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key in WHOLE for value in (*NEVER, True, False, 1.5, 0)]
    + [(key, value) for key in NUMBERS for value in (*NEVER, True, False, None)]
    + [(key, value) for key in FLAGS for value in (*NEVER, 0, 1, None)],
)
def test_a_value_of_another_kind_or_range_is_refused_by_the_name_of_its_key(key, value):
    if (key, value) == ("first_k_dense_replace", 0) and type(value) is int:
        return  # a model whose layers all have experts
    with refused(f"^{key} "):
        _parse((LLAMA if key == "head_dim" else MLA) | {key: value})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 2**31}, "num_hidden_layers must be a whole number of 1 to 10000"),
        ({"num_hidden_layers": 9999, "n_routed_experts": 9999}, "n_routed_experts 9999 in 9999 layers"),
        ({"first_k_dense_replace": 3}, "first_k_dense_replace 3 is above num_hidden_layers 2"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok 5 cannot be chosen"),
        ({"n_group": 3}, "n_group 3 groups of n_routed_experts 4"),
        ({"n_group": 2, "topk_group": 3}, "topk_group 3 of n_group 2"),
        ({"qk_rope_head_dim": 3}, "qk_rope_head_dim 3 must be even"),
        ({"model_type": []}, r"model_type \[\] is not supported"),
        ({"model_type": "kimi_k25", "text_config": 1}, "text_config must be an object"),
        ({"model_type": "kimi_k25"}, "lacks 'text_config'"),
        ({"model_type": "kimi_k25", "text_config": MLA, "vision_config": {"patch_size": True}}, "of vision_config"),
        ({"quantization_config": "int4"}, "quantization_config must be an object"),
        ({"rope_scaling": 1}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": []}}, "type of rope_scaling must be a text"),
        ({"rope_scaling": {"type": "yarn"}}, "lacks 'factor' of rope_scaling"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "factor of rope_scaling must be a number"),
        ({"rope_scaling": {"type": "yarn", "factor": float("nan")}}, "factor of rope_scaling must be a number"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.5}}, "factor of rope_scaling must be a number of 1 to"),
        ({"rope_scaling": {"rope_theta": "1e4"}}, "rope_theta of rope_scaling must be a number"),
        ({"rope_theta": 1.0}, "rope_theta 1.0 must be above 1"),
    ],
)
def test_values_that_do_not_go_together_are_refused_by_name(changes, words):
    with refused(words):
        _parse(MLA | changes)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = [
    *MLA,
    "rope_parameters",
    "rope_scaling",
    "layer_types",
    "attention_bias",
    "architectures",
    "quantization_config",
]


@given(st.sampled_from([LLAMA, MLA]), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3))
@settings(max_examples=80, deadline=None)
def test_any_values_are_read_or_refused_in_one_line(base, changes):
    try:
        model = _parse(base | changes).model
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert 0 < model.layers <= 10_000 and 1 < model.rope_theta < 1e16


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "nesting", "numbers", "pointer", "empty", "page"])
def test_what_is_no_such_file_is_named_and_nothing_waits_for_it(folder, name, kind):
    path = folder / name
    path.unlink(missing_ok=True)
    texts = {
        "nesting": b"[" * 100_000, "numbers": b"9" * 5000, "empty": b"", "page": b"<!DOCTYPE html><html>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }  # fmt: skip
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(texts[kind])
    words = {
        "pipe": "regular file",
        "folder": "regular file",
        "pointer": "Git LFS",
        "empty": "empty",
        "page": "web page",
    }
    with refused(f"{name}.*{words.get(kind, '(damaged|truncated)')}"):
        open_folder(folder)


def header(folder, change):
    """Writes the folder's tensors with a changed header."""
    raw = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    entries = json.loads(raw[8 : 8 + length])
    changed = change(entries) or entries
    text = json.dumps(changed).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def moved(by, size=0):
    def change(entries):
        first = min(entries, key=lambda name: entries[name]["data_offsets"])
        begin, end = entries[first]["data_offsets"]
        entries[first]["data_offsets"] = [begin + by, end + by]

    return change


def same_bytes(entries):
    twins = [name for name in entries if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight"))]
    entries[twins[0]]["data_offsets"] = entries[twins[1]]["data_offsets"]


def set_first(key, value):
    def change(entries):
        entries[min(entries)][key] = value

    return change


@pytest.mark.parametrize(
    "change",
    [moved(4), same_bytes,
     *(set_first("shape", shape) for shape in (["40", "8"], [True, 320], [40.0, 8], None, [1] * 70)),
     *(set_first("data_offsets", place) for place in ([0], [0, 10**30], ["0", "1280"], [False, 1280], [-4, 1276])),
     *(set_first("dtype", dtype) for dtype in ("x", None, [], {})), lambda entries: [1], lambda entries: {"a": 1}],
)  # fmt: skip
def test_a_header_whose_tensors_overlap_or_are_none_is_refused(folder, change):
    header(folder, change)
    with refused("model.safetensors"):
        open_folder(folder)


def test_bytes_behind_the_last_tensor_are_refused(folder):
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"PK\x03\x04")
    with refused("4 bytes behind its last tensor"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not an object"),
        ('{"weight_map": 1}', "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": {"a": null}}', "weight_map"),
        ('{"weight_map": {"a": "model.safetensors", "b": 1}}', "weight_map"),
        *((f'{{"weight_map": {{"a": "{name}"}}}}', "file of its folder") for name in ("../x", "..", "", r"a\u0000b")),
        ('{"weight_map": {"lm_head.weight": "model.safetensors"}}', "which model.safetensors.index.json does not say"),
    ],
)
def test_an_index_that_names_no_files_of_tensors_is_refused(folder, text, words):
    (folder / "model.safetensors.index.json").write_text(text)
    with refused(words):
        open_folder(folder)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_never_read(folder, tensors, dtype, value, tmp_path):
    odd = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
    k2jax_name = "model.layers.0.mlp.up_proj.weight"
    odd[k2jax_name][7, 3] = value
    save_file(odd, folder / "model.safetensors")
    for read in (k2jax.from_pretrained, lambda path: import_folder(path, tmp_path / "run")):
        with refused(f"{k2jax_name} holds NaN or an infinity in rows 0 to 15"):
            read(folder)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_weights_that_are_whole_numbers_are_refused(folder, tensors):
    save_file(tensors | {"model.norm.weight": np.ones(8, np.int32)}, folder / "model.safetensors")
    with refused("model.norm.weight holds int32"):
        open_folder(folder)


@pytest.mark.parametrize("changes", [{"rms_norm_eps": float("nan")}, {"num_hidden_layers": -1}, {"rope_theta": -1.0}])
def test_a_refused_import_writes_nothing(folder, tmp_path, changes):
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    with refused("config.json"):
        import_folder(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_has_no_effect_is_told(folder, tmp_path, capsys):
    odd = {"residual_multiplier": 2.0, "attention_dropout": 0.5, "rope_parameters": {"rope_theta": 7e3}}
    odd |= {"rope_scaling": {"rope_type": "default", "factor": 8.0, "rope_theta": 5e3}, "use_cache": True}
    (folder / "config.json").write_text(json.dumps(LLAMA | odd))
    byte_tokenizer().save(folder)
    import_folder(folder, tmp_path / "run")
    lines = capsys.readouterr().out
    for words in (
        "change nothing here: attention_dropout, residual_multiplier\n", "rope_scaling is used as it stands",
        "rope_theta 10000 is not used", "'default' does not read factor", "the tokenizer has 258 tokens",
        "no chat format",
    ):  # fmt: skip
        assert words in lines
    assert read_config(folder).model.rope_theta == 5e3


@pytest.mark.parametrize("own", [False, True])
def test_a_stored_head_counts_for_more_than_a_flag(folder, tensors, own, tmp_path, capsys):
    head = tensors["model.embed_tokens.weight"] + (0.5 if own else 0.0)
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(LLAMA | {"tie_word_embeddings": True}))
    import_folder(folder, tmp_path / "run")
    model, params = k2jax.from_pretrained(tmp_path / "run")
    assert model.config.tied_head != own and ("the head is not tied" in capsys.readouterr().out) == own
    np.testing.assert_array_equal(params["head" if own else "embed"], head)
    exported = tmp_path / "back"
    from k2jax.convert.exporting import export_checkpoint

    export_checkpoint(tmp_path / "run", exported)
    assert json.loads((exported / "config.json").read_text())["tie_word_embeddings"] != own
    assert ("lm_head.weight" in load_file(exported / "model.safetensors")) == own


def gguf_text(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_bytes(pairs=b"", count=0, infos=b"", tensors=0, data=bytes(4096)):
    head = b"GGUF" + struct.pack("<IQQ", 3, tensors, count) + pairs + infos
    return head + bytes(-len(head) % 32) + data


def info(name="t", dims=(64, 4), kind=0, offset=0):
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return gguf_text(name) + sizes + struct.pack("<IQ", kind, offset)


ALIGNMENTS = [
    struct.pack("<II", 4, 0), struct.pack("<Ii", 5, -1), struct.pack("<If", 6, 0.5),
    struct.pack("<If", 6, float("nan")), struct.pack("<IQ", 10, 2**63), struct.pack("<IIQ", 9, 0, 0),
    struct.pack("<I", 8) + gguf_text("x"),
]  # fmt: skip
NESTED = gguf_text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
GGUFS = [
    *(gguf_bytes(gguf_text("general.alignment") + value, 1, info(), 1) for value in ALIGNMENTS),
    gguf_bytes(NESTED, 1),
    gguf_bytes(gguf_text("a") + struct.pack("<IIQ", 9, 9, 2**40), 1),
    gguf_bytes(gguf_text("a") + struct.pack("<I", 99), 1),
    *(gguf_bytes(infos=info(dims=dims, kind=kind), tensors=1)
      for dims, kind in (((), 0), ((0, 0), 0), ((64, 2**63), 0), ((64, 2**32, 2**32), 0), ((33, 4), 2), ((3, 4), 2),
                         ((2, 2, 2, 2, 2), 0), ((64, 4), 4), ((64, 4), 9999), ((64, 4), 24), ((64, 4), 28))),
    *(gguf_bytes(infos=info(offset=offset), tensors=1) for offset in (3, 4000, 2**63)),
    gguf_bytes(infos=info() + info(offset=1024), tensors=2),
    gguf_bytes(infos=info("a") + info("b"), tensors=2),
]  # fmt: skip


@pytest.mark.parametrize("content", GGUFS)
def test_a_gguf_file_with_odd_kinds_places_or_shapes_is_one_line(tmp_path, content):
    (tmp_path / "model.gguf").write_bytes(content)
    with refused("is not a whole GGUF file"):
        read_gguf(tmp_path / "model.gguf")


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("words", ["a", "b"])
    writer.add_tensor("t", np.zeros((4, 64), np.float32))
    writer.add_tensor("q", gguf.quants.quantize(np.zeros((4, 64), np.float32), Kind.Q4_0), raw_dtype=Kind.Q4_0)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=6))
@example([(8, 255)])
@settings(max_examples=100, deadline=None)
def test_a_gguf_file_with_flipped_bytes_is_read_or_refused(small_gguf, flips):
    content = bytearray(small_gguf.read_bytes())
    for place, value in flips:
        content[place] = value
    small_gguf.with_name("flipped.gguf").write_bytes(content)
    try:
        file = read_gguf(small_gguf.with_name("flipped.gguf"))
    except UserError as error:
        assert "\n" not in str(error)
    else:
        for tensor in file.tensors.values():
            tensor.read()
