"""Whole runs with images: resumed bit for bit, started from a model of text, with parts that do not learn, exported."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from k2jax.config import resolve, source
from k2jax.convert.exporting import export_checkpoint
from k2jax.convert.loading import load_pretrained
from k2jax.errors import UserError
from k2jax.losses import NLL
from k2jax.report.metrics import read_metrics
from k2jax.text.tokenizer import load_tokenizer
from k2jax.train import train
from k2jax.train.run import Run
from tests.emulated import ROOT
from tests.train.programs import shared_program
from tests.train.tiny import tiny_config, write_corpus
from tests.train.together import end, marked, trainers

TOWER = {"layers": 2, "width": 16, "heads": 2, "ffn": 24, "grid": 4}


def visual_config(folder):
    """The editable config of a run on pictures and text, two micro-batches a step, half of the pictures augmented."""
    config = tiny_config(folder)
    config.stage = "sft"
    config.model.layers = 1  # a dense one
    config.model.vision.update(TOWER)
    config.data.sources = {
        "pictures": source(kind="synthetic_images", max_documents=12, side=64, pictures=("count", "locate")),
        "chat": source(kind="chat", path=f"{folder}/chat.jsonl"),
    }
    config.data.tokenizer.media = True
    config.data.chat_format = "plain"
    config.data.sequence_length = 128
    config.data.images.patches = 72
    config.data.images.augment = 0.5
    config.data.images.share, config.data.images.share_from = (0.3, 0.7), (0.0, 0.5)
    config.train.steps = 4
    config.checkpoint.every = 2
    config.checkpoint.keep = 4
    config.eval.every = 4
    config.optimizer.frozen = ("projector",)
    return config


def visual(folder, **overrides):
    config = visual_config(str(folder))
    config.update_from_flattened_dict(overrides)
    return resolve(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("visual")
    lines = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(9) for b in range(9)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def finished(folder):
    """The workdir of an uninterrupted run."""
    assert train(visual(folder), folder / "finished") == 0
    return folder / "finished"


def curve(workdir):
    return [[record["loss"], record.get("val_loss", 0)] for record in read_metrics(workdir)]


@pytest.mark.slow
def test_two_processes_train_on_images_as_one_does(folder, finished):
    lines = "from tests.train.test_visual import visual_config\n\n\ndef get_config():\n    return visual_config({!r})\n"
    (folder / "config.py").write_text(lines.format(str(folder)))
    told = end(trainers(folder, folder / "two", 2))
    assert [code for code, _, _ in told] == [0, 0], told
    np.testing.assert_allclose(curve(folder / "two"), curve(finished), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [{"data.images.rows": 0.75}, {"data.images.rows": 2, "data.images.patches": 36}],
    ids=["three rows for four", "two short rows for each"],
)
def test_a_run_with_other_rows_of_patches_has_the_same_losses(folder, finished, tmp_path, rows):
    assert train(visual(folder, **rows), tmp_path / "other") == 0
    np.testing.assert_allclose(curve(tmp_path / "other"), curve(finished), rtol=1e-5)


def params_of(workdir):
    return jax.device_get(load_pretrained(workdir, vision=True).params)


def losses(workdir):
    keys = ("step", "loss", "grad_norm", "val_loss", "vision_max_logit")
    return [[record.get(key) for key in keys] for record in read_metrics(workdir)]


def changed(before, after):
    """Names of the weights that differ."""
    pairs = zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/") for (path, a), b in pairs if not np.array_equal(a, b)
    }


def test_a_run_that_is_resumed_repeats_losses_and_weights_bit_for_bit(folder, finished):
    resumed = folder / "resumed"
    shutil.copytree(finished, resumed)
    shutil.rmtree(resumed / "checkpoints" / "4")
    assert train(visual(folder), resumed) == 0
    assert losses(resumed) == losses(finished)
    assert not changed(params_of(resumed), params_of(finished))
    assert "conversations with" in (finished / "report.md").read_text()


WORKERS_CONFIG = """
from tests.train.test_visual import visual_config

def get_config():
    config = visual_config({folder!r})
    config.data.workers = 2
    config.train.steps = 30
    return config
"""


@pytest.mark.slow
def test_killed_at_random_moments_with_augmentation_in_two_processes_it_ends_bit_identical(folder):
    config, workdir, mark = folder / "workers.py", folder / "killed", f"K2JAX_TEST_MARK={os.getpid()}"
    config.write_text(WORKERS_CONFIG.format(folder=str(folder)))
    command = ["env", mark, f"PYTHONPATH={ROOT}", sys.executable, "-m", "k2jax.train", f"--config={config}"]
    for last in (False, False, True):
        process = subprocess.Popen([*command, f"--workdir={workdir}"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        if not last:
            deadline, before = time.monotonic() + 300, len(steps_of(workdir))
            while len(steps_of(workdir)) < before + 4:
                assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
                time.sleep(0.02)
            assert len(marked(mark)) >= 3, "it has no workers"
            time.sleep(random.random())
            process.kill()
        _, errors = process.communicate()
        assert last == (process.returncode == 0), errors
        deadline = time.monotonic() + 20
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not marked(mark), "processes of the run are left"
    assert train(visual(folder, **{"train.steps": 30}), folder / "not killed") == 0
    assert losses(workdir) == losses(folder / "not killed")
    assert not changed(params_of(workdir), params_of(folder / "not killed"))


def steps_of(workdir):
    return read_metrics(workdir) if (workdir / "metrics.jsonl").exists() else []


def test_what_is_frozen_keeps_every_bit_and_the_rest_learns(folder, finished):
    before = jax.device_get(shared_program(visual(folder), loss=NLL()).init().params)
    learned = changed(before, params_of(finished))
    assert not any(name.startswith("vision/projector/") for name in learned)
    assert {"embed", "dense/attention/q_b", "vision/patch", "vision/grid", "vision/layers/attention/q"} <= learned


def begun(config, workdir):
    """The parameters with which a run begins, and those of its config alone."""
    program = shared_program(config, loss=NLL())
    workdir.mkdir()
    with Run(program, workdir, {}) as run:
        return jax.device_get((run.state.params, program.init().params))


def saved_at_once(config, workdir):
    """The workdir of a run that saved its initial parameters."""
    config.checkpoint.every = 1
    workdir.mkdir()
    with Run(shared_program(resolve(config), loss=NLL()), workdir, {}) as run:
        run.save_when_due(next(run.steps()))
    return workdir


@pytest.fixture(scope="module")
def text(folder):
    """The workdir of a model of text."""
    config = visual_config(str(folder))
    del config.data.sources.pictures
    config.update_from_flattened_dict(
        {"model.vision.layers": 0, "optimizer.frozen": (), "data.images.share": (), "train.seed": 7}
    )
    return saved_at_once(config, folder / "text")


def test_a_run_may_start_from_a_model_of_text(folder, text):
    params, own = begun(visual(folder, init_from=str(text)), folder / "seeing")
    decoder = jax.device_get(load_pretrained(text).params)
    assert not changed({**decoder, "vision": own["vision"]}, params)
    assert "embed" in changed(own, params)


def test_a_run_is_exported_with_its_tower_and_read_again(finished, tmp_path):
    export_checkpoint(finished, tmp_path / "folder")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert config["model_type"] == "kimi_k25"
    tokenizer = load_tokenizer(tmp_path / "folder")
    ids = {"image_token_id": "<|media_pad|>", "vision_start_token_id": "<|media_begin|>"}
    for key, token in {**ids, "vision_end_token_id": "<|media_end|>"}.items():
        assert config[key] == tokenizer.special_id(token), key
    assert not changed(params_of(finished), params_of(tmp_path / "folder"))


def test_to_freeze_everything_is_refused(folder):
    with pytest.raises(UserError, match="nothing is left to learn"):
        visual(folder, **{"optimizer.frozen": ("text", "tower", "projector")})


def test_a_tower_goes_from_a_small_decoder_to_another_without_its_projector(folder, finished):
    config = visual_config(str(folder))
    config.model.d_model, config.init_tower_from, config.optimizer.frozen = 48, str(finished), ("text", "tower")
    params, own = begun(resolve(config), folder / "larger")
    tower = {name: part for name, part in params_of(finished)["vision"].items() if name != "projector"}
    given = {**own, "vision": {**own["vision"], **tower}}
    assert not changed(given, params) and "vision/layers/attention/q" in changed(own, params)
    config.model.vision.width = 24
    with pytest.raises(UserError, match=r"init_tower_from .* is another model"):
        begun(resolve(config), folder / "other")


def siglip_folder(folder, vision, side=5):
    """A folder of SigLIP with a tower of these sizes and random weights."""
    folder.mkdir()
    width, ffn, patch = vision.width, vision.ffn, vision.patch
    norm = {"weight": (width,), "bias": (width,)}
    layer = {"layer_norm1": norm, "layer_norm2": norm}
    layer |= {f"self_attn.{name}_proj": {**norm, "weight": (width, width)} for name in ("q", "k", "v", "out")}
    layer |= {"mlp.fc1": {"weight": (ffn, width), "bias": (ffn,)}, "mlp.fc2": {**norm, "weight": (width, ffn)}}
    parts = {f"encoder.layers.{n}.{name}": part for n in range(vision.layers) for name, part in layer.items()}
    parts |= {"embeddings.patch_embedding": {**norm, "weight": (width, 3, patch, patch)}, "post_layernorm": norm}
    parts |= {"embeddings.position_embedding": {"weight": (side * side, width)}, "head.layernorm": norm}
    rng = np.random.default_rng(0)
    tensors = {
        f"vision_model.{name}.{kind}": rng.normal(size=shape).astype(np.float32)
        for name, part in parts.items()
        for kind, shape in part.items()
    }
    save_file(tensors, folder / "model.safetensors")
    sizes = {"hidden_size": width, "intermediate_size": ffn, "num_hidden_layers": vision.layers, "patch_size": patch}
    sizes |= {"num_attention_heads": vision.heads, "image_size": side * patch, "model_type": "siglip_vision_model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "siglip", "vision_config": sizes}))
    return tensors


def test_a_tower_begins_from_siglip_and_the_projector_anew(folder, tmp_path):
    config = visual(folder, init_tower_from=str(tmp_path / "siglip"))
    tensors = siglip_folder(tmp_path / "siglip", config.model.vision)
    params, own = begun(config, tmp_path / "run")
    of_tower = {name for name in changed(own, params) if not name.startswith("vision/projector/")}
    assert changed(own, params) == of_tower and all(name.startswith("vision/") for name in of_tower)
    assert {"vision/patch", "vision/grid", "vision/layers/attention/q_bias", "vision/final_norm/bias"} <= of_tower
    up = tensors["vision_model.encoder.layers.1.mlp.fc1.weight"]
    np.testing.assert_array_equal(params["vision"]["layers"]["ffn"]["up"][1], up.T)
    (tmp_path / "siglip" / "config.json").write_text('{"model_type": "siglip2_vision_model"}')
    with pytest.raises(UserError, match=r"init_tower_from: .*siglip2_vision_model"):
        begun(config, tmp_path / "other")


def test_a_model_of_text_has_no_tower_to_give(folder, text):
    with pytest.raises(UserError, match="is a model without vision"):
        begun(visual(folder, init_tower_from=str(text)), folder / "of text")


@pytest.mark.slow
@pytest.mark.devices(2)
def test_every_device_gets_its_part_of_a_transferred_tower(folder):
    config = visual_config(str(folder))
    config.parallel.tensor = 2
    config.train.seed = 3
    given = saved_at_once(config, folder / "given")
    config.train.seed, config.init_tower_from = 0, str(given)
    program = shared_program(resolve(config), loss=NLL())
    (folder / "on devices").mkdir()
    with Run(program, folder / "on devices", {}) as run:
        assert jax.tree.map(lambda leaf: leaf.sharding, run.state.params) == program.layout.shardings(
            program.layout.storage
        )
        params = jax.device_get(run.state.params)
    tower = params_of(given)["vision"] | {"projector": params["vision"]["projector"]}
    assert not changed({**params, "vision": tower}, params)
    assert changed(params_of(given), params) >= {"vision/projector/up", "embed"}


@pytest.mark.slow
def test_a_run_with_siglips_loss_logs_it_learns_its_temperature_and_is_exported_without(folder):
    overrides = {"train.contrast.weight": 0.5, "model.vision.contrast": True, "optimizer.frozen": ("text",)}
    config = visual(folder, **overrides, **{"train.steps": 3, "eval.every": 3})
    assert train(config, folder / "contrast") == 0
    first, *_, last = read_metrics(folder / "contrast")
    assert first["loss"] == pytest.approx(first["loss/nll"] + first["loss/contrast"], rel=1e-6)
    assert first["loss/contrast"] > 0 and last["val_loss"] > 0
    learned = params_of(folder / "contrast")["vision"]["contrast"]
    assert np.any(learned["scale"]) and np.any(learned["bias"])
    params, _ = begun(visual(folder, init_tower_from=f"{folder}/contrast", **overrides), folder / "given")
    assert not any(leaf.any() for leaf in params["vision"]["contrast"].values())
    export_checkpoint(folder / "contrast", folder / "exported")
    given, read = (params_of(folder / name) for name in ("contrast", "exported"))
    del given["vision"]["contrast"]
    assert not changed(given, read)
    # A stage with it begins from one without, and the other way round.
    for name, origin, options in (("with", "exported", overrides), ("without", "contrast", {})):
        params, _ = begun(visual(folder, init_from=f"{folder}/{origin}", **options), folder / name)
        fresh = params["vision"].pop("contrast", {})
        assert bool(fresh) == bool(options) and not any(leaf.any() for leaf in fresh.values())
        assert not changed(given, params)


@pytest.mark.slow
def test_a_run_on_text_and_pictures_together_writes_its_report(folder):
    config = visual_config(str(folder))
    config.stage = "pretrain"
    config.data.sources = {
        "text": source(kind="text", path=f"{folder}/corpus/one"),
        "pictures": config.data.sources.pictures,
    }
    write_corpus(folder / "corpus")
    assert train(resolve(config), folder / "together") == 0
    report = (folder / "together" / "report.md").read_text()
    assert re.search(r"\d+ documents and conversations with [1-9]\d* tokens of the assistant", report)
    assert "| pictures |" in report and "| text     |" in report
    assert "bits per byte" not in report  # of records with pictures, which are mostly not text
    last = read_metrics(folder / "together")[-1]
    assert last["val_loss"] > 0 and "val_bits_per_byte" not in last


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"train.contrast.weight": 0.5}, "go together"),
        ({"model.vision.contrast": True}, "go together"),
        ({"train.contrast.weight": 0.5, "model.vision.contrast": True, "parallel.tensor": 2}, "whole captions"),
    ],
)
def test_siglips_loss_is_refused_in_one_line_where_it_cannot_be(folder, overrides, words):
    with pytest.raises(UserError, match=words):
        visual(folder, **overrides)
