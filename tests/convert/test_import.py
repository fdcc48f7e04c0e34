"""An import streams, survives being killed, and never takes a folder that is somebody's."""

import json
import math
import re
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import k2jax
from k2jax.checkpoint import Checkpoints
from k2jax.checkpoint.streaming import ParamsReader
from k2jax.config import to_json
from k2jax.convert import mapping
from k2jax.convert.exporting import export_checkpoint
from k2jax.convert.importing import give_tokenizer, import_folder
from k2jax.errors import UserError
from k2jax.model import model_specs
from k2jax.params import abstract, initialize, named_specs
from k2jax.text.tokenizer import byte_tokenizer, load_tokenizer, train_bpe
from tests.convert.folders import network
from tests.refusal import refused
from tests.train.tiny import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("import") / "hf"
    network("deepseek_v3").save_pretrained(path, max_shard_size="100KB")
    byte_tokenizer().save(path)
    return path


@pytest.fixture(scope="module")
def imported(folder, tmp_path_factory):
    """The workdir of an import, which is only read."""
    run = tmp_path_factory.mktemp("imported") / "run"
    import_folder(folder, run)
    return run


def test_orbax_restores_what_was_streamed(folder, imported):
    """The layout is orbax's own: its restore gives the arrays, in the dtype asked for."""
    model, params = k2jax.from_pretrained(folder)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, jnp.float32, sharding=device), abstract(model_specs(model.config))
    )
    assert Checkpoints(imported, read_only=True).steps() == [0]
    arguments = ocp.checkpoint_utils.construct_restore_args(shapes)
    step = imported / "checkpoints" / "0"
    restored = ocp.PyTreeCheckpointer().restore(step / "params", item=shapes, restore_args=arguments)
    jax.tree.map(np.testing.assert_array_equal, restored, params)
    reader = ParamsReader(step, ["embed"])
    assert reader.dtype("embed") == np.float32 and reader.shape("embed") == (97, 48)


@pytest.mark.parametrize("elements", [40, 1500])
def test_blocks_of_any_size_give_the_same_weights(folder, tmp_path, monkeypatch, elements):
    expected = k2jax.from_pretrained(folder)[1]
    monkeypatch.setattr(mapping, "BLOCK_ELEMENTS", elements)
    import_folder(folder, tmp_path / "run")
    export_checkpoint(tmp_path / "run", tmp_path / "back")
    for path in ("run", "back"):
        jax.tree.map(np.testing.assert_array_equal, k2jax.from_pretrained(tmp_path / path)[1], expected)


def test_blocks_cover_every_element_once(folder):
    for name, spec in named_specs(model_specs(k2jax.from_pretrained(folder)[0].config)):
        counts = np.zeros(spec.shape, int)
        for block in mapping.blocks(spec):
            counts[block.index] += 1
        assert (counts == 1).all(), name


def test_the_tokenizer_comes_along_both_ways_and_no_other_takes_its_place(imported, tmp_path):
    export_checkpoint(imported, tmp_path / "back")
    wanted = byte_tokenizer()
    for path in (imported / "tokenizer", tmp_path / "back"):
        assert load_tokenizer(path).fingerprint == wanted.fingerprint
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (wanted.bos, wanted.eos)
    train_bpe(["some text, some more text"] * 10, 270).save(tmp_path / "other")
    with refused("with a tokenizer of its own"):
        give_tokenizer(tmp_path / "other", imported)


def test_an_import_without_a_tokenizer_can_be_given_one(tmp_path, capsys):
    run, fitting = tmp_path / "run", train_bpe(["some text, some more text"] * 10, 270)
    network("deepseek_v3", vocab_size=fitting.vocab_size).save_pretrained(tmp_path / "hf")
    import_folder(tmp_path / "hf", run)
    said = capsys.readouterr().out
    assert f"python -m k2jax.convert tokenizer FILE --workdir={run}" in said
    size = sum(path.stat().st_size for path in (tmp_path / "hf").glob("*.safetensors"))
    told = re.search(r"imported ([\d.]+) kB into", said)
    assert float(told[1]) == pytest.approx(size / 1000, rel=0.2)  # the file has names and shapes as well
    with refused("cannot read the tokenizer"):
        k2jax.load_tokenizer(run)
    larger = train_bpe(["some text, some more text, and other words"] * 10, 290)
    larger.save(tmp_path / "larger")
    with refused(f"{larger.vocab_size} tokens, the model only {fitting.vocab_size}"):
        give_tokenizer(tmp_path / "larger", run)
    fitting.save(tmp_path / "fitting")
    for path in (tmp_path / "fitting" / "tokenizer.json", tmp_path / "fitting"):  # the second changes nothing
        give_tokenizer(path, run)
        assert k2jax.load_tokenizer(run).fingerprint == fitting.fingerprint


def test_a_folder_is_exported_like_a_run(folder, imported, tmp_path):
    """In another dtype, say; the tokenizer comes along."""
    export_checkpoint(folder, tmp_path / "half", dtype="bfloat16")
    export_checkpoint(imported, tmp_path / "wanted", dtype="bfloat16")
    names = sorted(path.name for path in (tmp_path / "half").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "wanted").iterdir()) and "tokenizer.json" in names
    for name in names:
        assert (tmp_path / "half" / name).read_bytes() == (tmp_path / "wanted" / name).read_bytes(), name


def test_a_taken_folder_is_refused(folder, imported, tmp_path):
    with refused("holds a run already"):
        import_folder(folder, imported)
    (tmp_path / "some.safetensors").touch()
    with refused("holds weights already"):
        export_checkpoint(imported, tmp_path)


def test_killed_and_repeated_it_completes(folder, tmp_path):
    """Killed at its slowest, after some blocks; the second call skips those and ends with the same weights."""
    slow = (
        "import sys, time; from k2jax.checkpoint import streaming; from k2jax.convert.importing import import_folder\n"
        "write = streaming.ParamsWriter.write\n"
        "def crawl(*a): time.sleep(0.05); write(*a)\n"
        "streaming.ParamsWriter.write = crawl\n"
        "import_folder(*sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", slow, str(folder), str(tmp_path / "run")])
    done = tmp_path / "run" / "import" / "done.txt"
    deadline = time.monotonic() + 120
    while (not done.exists() or done.read_text().count("\n") < 5) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    written = set(done.read_text().splitlines())
    assert len(written) >= 5 and not (tmp_path / "run" / "checkpoints").exists()
    with pytest.raises(UserError):
        k2jax.from_pretrained(tmp_path / "run")

    from k2jax.checkpoint import streaming

    again, original = [], streaming.ParamsWriter.mark
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming.ParamsWriter, "mark", lambda self, key: (again.append(key), original(self, key)))
        import_folder(folder, tmp_path / "run")
    assert again and not written & set(again)
    jax.tree.map(
        np.testing.assert_array_equal, k2jax.from_pretrained(tmp_path / "run")[1], k2jax.from_pretrained(folder)[1]
    )
    assert not (tmp_path / "run" / "import").exists()


def test_an_unfinished_import_of_another_source_is_begun_anew(folder, tmp_path):
    network("deepseek_v3 with yarn and groups").save_pretrained(tmp_path / "other")
    from k2jax.checkpoint import streaming

    def stop(self, key):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(streaming.ParamsWriter, "mark", stop)
        import_folder(tmp_path / "other", tmp_path / "run")
    import_folder(folder, tmp_path / "run")
    assert k2jax.from_pretrained(tmp_path / "run")[0].config == k2jax.from_pretrained(folder)[0].config


def test_parameters_of_a_run_are_read_by_workdir_or_by_step(tmp_path):
    config = tiny(tmp_path)
    trees = {step: initialize(model_specs(config.model), jax.random.key(step), 0.02) for step in (1, 2)}
    (tmp_path / "config.json").write_text(to_json(config))
    checkpoints = Checkpoints(tmp_path)
    for step, params in trees.items():
        checkpoints.save(step, params, {"count": jnp.int32(step)}, {})
    checkpoints.close()
    for path, step in ((tmp_path, 2), (tmp_path / "checkpoints" / "1", 1)):
        model, params = k2jax.from_pretrained(path)
        assert model.config == config.model
        jax.tree.map(np.testing.assert_array_equal, params, trees[step])
    with refused(r"no checkpoint .*/3; there are steps \[1, 2\]"):
        k2jax.from_pretrained(tmp_path / "checkpoints" / "3")
    half = k2jax.from_pretrained(tmp_path, dtype=jnp.bfloat16)
    assert half[0].dtype == jnp.bfloat16 and half[1]["embed"].dtype == jnp.bfloat16


def test_a_damaged_array_is_one_line(imported, tmp_path):
    shutil.copytree(imported, tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints" / "0" / "params" / "d").iterdir():
        file.write_bytes(b"")
    with refused("checkpoints/0 is damaged"):
        k2jax.from_pretrained(tmp_path / "run")


@pytest.mark.slow
def test_host_memory_does_not_grow_with_the_model(tmp_path):
    """A folder of 0.8 GB, one tensor of it 0.4 GB, imports within 0.5 GB more than an import of next to nothing."""
    folders = [write_sparse(tmp_path / str(vocab), vocab) for vocab in (1000, 800_000)]
    code = """
import sys
from k2jax.convert.importing import import_folder
for folder in sys.argv[1:]:
    import_folder(folder, folder + "/run")
    print([line for line in open("/proc/self/status") if line.startswith("VmHWM:")])
"""
    done = subprocess.run([sys.executable, "-c", code, *folders], capture_output=True, text=True, check=True)
    small, large = (1024 * int(kilobytes) for kilobytes in re.findall(r"VmHWM:\\t +(\d+) kB", done.stdout))
    assert 0 < large - small < 0.5e9, (small, large)


def write_sparse(folder, vocab):
    """A folder of zeros whose embedding and head have ``vocab`` rows of 128 float32; returns its path."""
    network_config = {
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "rms_norm_eps": 1e-6, "vocab_size": vocab, "rope_theta": 1e4,
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(network_config))
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [vocab, 128], "lm_head.weight": [vocab, 128], "model.norm.weight": [128]}
    shapes |= {layer + f"self_attn.{x}_proj.weight": [128, 128] for x in "qkvo"}
    shapes |= {layer + f"mlp.{x}_proj.weight": [64, 128] for x in ("gate", "up")}
    shapes |= {layer + "mlp.down_proj.weight": [128, 64]}
    shapes |= {layer + f"{x}_layernorm.weight": [128] for x in ("input", "post_attention")}
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:  # a sparse file: zeros that take no disk
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return str(folder)
