"""Typed configuration: what is accepted, what is refused and in which words."""

import dataclasses
import json
from pathlib import Path
import sys
from unittest import mock

import pytest

from k2jax import cli
from k2jax.checkpoint import run_config
from k2jax.config import (
    ModelConfig,
    PackingConfig,
    defaults,
    from_json,
    load_experiment,
    model_preset,
    replace_keys,
    resolve,
    source,
    to_json,
)
from k2jax.config.presets import METHODS, PRESETS
from k2jax.config.reference import keys, reference_markdown
from k2jax.convert.loading import open_pretrained
from k2jax.errors import UserError
from k2jax.optim import learning_rate
from k2jax.rl.setup import check_config
from k2jax.train.workdir import open_workdir

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("[pr]*/*.py"))
EXPERIMENTS += sorted((Path(__file__).parents[2] / "experiments").glob("sft/*.py"))  # others have configs of their own
FILE = "from k2jax.config import defaults\ndef get_config():\n    return defaults('pretrain')\n"


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "experiment.py"
    path.write_text(FILE)
    return path


def parse(*arguments):
    argv = ["k2jax", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv):  # config_flags looks for overrides there
        values, _ = cli.parse(argv, cli.define_config, "doc")
    return cli.config_of(values)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_experiment_loads_and_resolves(path):
    module = load_experiment(path)
    assert module.__doc__ and "python -m k2jax." in module.__doc__
    assert len(path.read_text().splitlines()) < (200 if hasattr(module, "summarize") else 100)
    resolve(module.get_config())
    given = module.get_config()
    # A schedule given in steps, as a report has it, fits its own length alone; others fit any --config.train.steps.
    lengths = (given.train.steps,) if given.optimizer.schedule.warmup_steps is not None else (2, 30)
    for steps in lengths:
        config = module.get_config()
        if not hasattr(module, "runs"):
            config.train.steps = steps
            config = resolve(config)
            if config.stage == "rl":
                check_config(config)
            learning_rate(config.optimizer, config.train.steps)
    for overrides in getattr(module, "runs", dict)().values():
        config = module.get_config()
        config.update_from_flattened_dict(overrides)
        resolve(config)


def test_a_capacity_needs_an_exchange_that_has_one():
    config = defaults("pretrain")
    config.parallel.update({"expert_slots": 0.5, "expert_backend": "dense"})
    with pytest.raises(UserError, match="dense, which sends all tokens to all devices; take auto or a2a"):
        resolve(config)
    config.parallel.expert_backend = "a2a"
    resolve(config)


@pytest.mark.parametrize("preset", PRESETS)
def test_json_round_trip(preset):
    config = defaults("pretrain", model=preset)
    if config.model.gqa.qk_norm:
        config.optimizer.name = "muon"
    config = resolve(config)
    assert config.model == model_preset(preset)
    assert from_json(to_json(config)) == config


def test_overrides_reach_every_kind_of_value(config_file):
    config = parse(
        f"--config={config_file}", "--config.train.steps=30", "--config.optimizer.learning_rate=1",
        "--config.model.mla.q_lora_rank=None", "--config.train.profile_steps=(3,5)", "--config.model.tied_head=True",
        "--config.data.sources.stdlib.weight=2", "--config.init_from=elsewhere",
    )  # fmt: skip
    assert config.train.steps == 30 and config.optimizer.learning_rate == 1.0
    assert config.model.mla.q_lora_rank is None and config.train.profile_steps == (3, 5) and config.model.tied_head
    assert config.data.sources["stdlib"].weight == 2.0 and config.init_from == "elsewhere"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--config.train.stepz=3", "did you mean 'train.steps'"),
        ("--config.modl.layers=3", "did you mean 'model.layers'"),
        ("--config.train.steps=many", "train.steps"),
        ("--config.train.steps=3.5", "train.steps"),
        ("--config.data.sources.other.weight=2", "other"),
        ("--config.optimizer.name=moun", "did you mean 'muon'"),
        ("--config.train.micro_batches=7", "leaves the last of 7 micro-batches empty; train.micro_batches=4 would"),
        ("--config.parallel.expert_copies=0.5", "must be finite and at least 1, not 0.5"),
        ("--config.parallel.expert_copies=inf", "must be finite"),
        ("--config.parallel.expert_slots=0", "must be in (0, 1], not 0"),
        ("--config.parallel.expert_slots=1.5", "must be in (0, 1], not 1.5"),
        ("--config.model.moe.expert_groups=5", "32 does not divide into 5 expert_groups"),
        ("--config.model.moe.active_experts=40", "cannot be chosen"),
        ("--config.model.mla.qk_rope_dim=31", "even"),
        ("--config.model.attention=gpa", "did you mean 'gqa'"),
        ("--config.model.gqa.qkv_bias=True", "model.attention gqa"),
        ("--config.model.gqa.qk_norm=True", "model.attention gqa"),
        ("--config.train.steps=0", "at least 1"),
        ("--confg=3", "did you mean 'config'"),
        ("stray", "unexpected argument 'stray'"),
    ],
)
def test_mistakes_name_the_key_in_one_line(config_file, argument, words):
    with pytest.raises(UserError) as error:
        parse(f"--config={config_file}", argument)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"gqa.kv_heads": 3}, "4 does not divide into groups for 3 kv_heads"),
        ({"gqa.kv_heads": 0}, "model.gqa.kv_heads must be at least 1"),
        ({"gqa.head_dim": 31}, "model.gqa.head_dim 31 must be even"),
        ({"gqa.qk_norm": True}, "muonclip cannot clip a model with model.gqa.qk_norm.*use muon"),
        ({"yarn.factor": 4.0, "llama3_rope.factor": 8.0}, "cannot both be above 1"),
        ({"llama3_rope.factor": 8.0, "llama3_rope.low_freq_factor": 4.0}, "low_freq_factor < high_freq_factor"),
    ],
)
def test_mistakes_in_a_grouped_query_model_are_one_line(overrides, words):
    config = defaults("pretrain")
    config.model.attention = "gqa"
    resolve(config)
    config.update_from_flattened_dict({f"model.{key}": value for key, value in overrides.items()})
    with pytest.raises(UserError, match=words) as error:
        resolve(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"ratio_low": 1.0}, "ratio_low 1.0 and ratio_high 2.0 do not enclose 1"),
        ({"name": "gspo", "ratio_high": 0.9}, "ratio_low 0.9997 and ratio_high 0.9 do not enclose 1"),
        ({"aggregation": "token"}, "aggregation is read by the losses kat, gspo, and rl.loss.name is k2.5"),
        ({"name": "k2", "ratio_high": 2.0}, "ratio_high is read by the losses k2.5, kat, gspo, ppo, and rl.loss.name"),
        ({"ptx": 0.1}, "ptx 0.1 and ptx_rows 0 go together"),
        ({"ptx_rows": 2}, "ptx 0.0 and ptx_rows 2 go together"),
    ],
)
def test_mistakes_in_a_policy_objective_are_one_line(overrides, words):
    config = defaults("rl")
    resolve(config)
    config.update_from_flattened_dict({f"rl.loss.{key}": value for key, value in overrides.items()})
    with pytest.raises(UserError, match=words) as error:
        resolve(config)
    assert "\n" not in str(error.value)


def test_each_policy_objective_takes_its_own_keys():
    for overrides in ({"name": "gspo", "aggregation": "token"}, {"name": "ppo", "ratio_low": 0.7}, {"name": "k2"}):
        config = defaults("rl")
        config.rl.loss.update({"ptx": 0.1, "ptx_rows": 1, **overrides})
        assert resolve(config).rl.loss.name == overrides["name"]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_s_name_alone_gives_what_its_report_trains_with(method):
    rl = resolve(defaults("rl", method=method)).rl
    assert rl.loss.name == method and rl.loss.ratio_low is None and rl.advantage.baseline == "mean"
    assert rl.advantage.scale == ("std" if method in ("kat", "gspo") else "none")
    tree = rl.packing == PackingConfig("tree", "paths") and rl.loss.icepop.on and rl.loss.mcla.passes > 1
    assert tree == (method == "kat") == (rl.loss.old == "recompute")
    check_config(resolve(defaults("rl", method=method)))
    with pytest.raises(UserError, match=r"unknown method 'k3'; there are k2, k2\.5, kat, gspo"):
        defaults("rl", method="k3")


def test_keys_of_the_other_attention_are_not_read():
    config = defaults("pretrain")
    config.model.gqa.update({"kv_heads": 3, "head_dim": 31})
    assert resolve(config).model.attention == "mla"
    config.model.update({"attention": "gqa", "gqa": {"kv_heads": 2, "head_dim": 32}, "mla": {"qk_rope_dim": 31}})
    assert resolve(config).model.attention == "gqa"
    with pytest.raises(UserError, match="31"):
        config.model.attention = "mla"
        resolve(config)


def test_a_missing_file_names_the_nearest(config_file):
    with pytest.raises(UserError, match=r"did you mean 'experiment.py'"):
        parse(f"--config={config_file.parent}/experimant.py")


def test_a_missing_file_is_not_mistaken_for_a_file_that_is_no_experiment(config_file, tmp_path):
    (tmp_path / "setup.py").write_text("from setuptools import setup\n")
    with pytest.raises(UserError, match=r"^no config file '.*nope.py'; there are experiment.py$"):
        parse(f"--config={tmp_path}/nope.py")
    config_file.unlink()
    with pytest.raises(UserError, match=r"^no config file '.*nope.py'; experiments/ of the repository holds some$"):
        parse(f"--config={tmp_path}/nope.py")


def test_a_typo_inside_the_file_is_one_line(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(FILE.replace("return defaults('pretrain')", "c = defaults('pretrain'); c.train.stps = 3; return c"))
    with pytest.raises(UserError, match='Did you mean "steps"') as error:
        parse(f"--config={path}")
    assert "\n" not in str(error.value)


def test_wrong_types_in_a_stored_config_are_named():
    stored = dataclasses.asdict(resolve(defaults("pretrain")))
    stored["train"]["steps"] = "many"
    with pytest.raises(UserError, match=r"config.train.steps must be int, not 'many'"):
        resolve(stored)
    with pytest.raises(UserError, match=r"unknown key config.train.stps; did you mean 'steps'"):
        resolve({"train": {"stps": 3}})
    stored["train"] = 3
    with pytest.raises(UserError, match=r"config.train must be a group of keys"):
        resolve(stored)


FLAT = {"model": {"layers": 4, "experts": 32, "kv_lora_rank": 64}, "train": {"steps": 600}}


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (FLAT, r"written by an earlier version of k2jax \(configuration format 1, this version reads 4\)"),
        ({"format": 5, "model": {}}, r"written by another version of k2jax \(configuration format 5"),
        ([], "no configuration"),
    ],
    ids=["earlier", "later", "a list"],
)
def test_a_stored_config_of_another_version_is_refused_in_one_line(tmp_path, stored, words):
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match=words) as error:
        run_config(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    "read",
    [lambda workdir: open_workdir(workdir, resolve(defaults("rl"))), open_pretrained],
    ids=["to resume", "for init_from"],
)
def test_a_workdir_whose_config_holds_a_key_that_is_gone_is_refused_in_one_line(tmp_path, read):
    stored = json.loads(to_json(resolve(defaults("rl"))))
    stored["optimizer"]["update_rms"] = 0.2
    (tmp_path / "config.json").write_text(json.dumps(stored | {"format": 3}))
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    with pytest.raises(UserError, match=r"an earlier version of k2jax .*use that version, or start a new") as error:
        read(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path / "config.json") in str(error.value)


def test_replaced_keys_reach_nested_groups_and_leave_the_rest():
    model = ModelConfig()
    changed = replace_keys(model, {"layers": 2, "moe.experts": 8, "yarn.factor": 4.0, "moe.active_experts": 2})
    assert (changed.layers, changed.moe.experts, changed.moe.active_experts, changed.yarn.factor) == (2, 8, 2, 4.0)
    assert changed.mla == model.mla and changed.moe.expert_ffn == model.moe.expert_ffn and model.moe.experts == 32
    whole = replace_keys(resolve(defaults("pretrain")), {"model": changed, "model.moe.experts": 16})
    assert whole.model == replace_keys(changed, {"moe.experts": 16})
    for wrong in ("experts", "moe.exprts", "layers.experts"):
        with pytest.raises(TypeError):
            replace_keys(model, {wrong: 1})


def test_sources_are_checked():
    with pytest.raises(UserError, match="did you mean 'path'"):
        source(paht="x")
    config = defaults("pretrain")
    config.data.sources.mine = source(kind="text", path="x")
    del config.data.sources.stdlib
    assert list(resolve(config).data.sources) == ["mine"]


def test_every_key_has_a_meaning_and_stands_in_the_documentation():
    assert all(key.meaning for key in keys())
    committed = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    assert reference_markdown() in committed, "python -m k2jax.config > docs/config.md"


def test_help_prints_keys_and_exits(capsys, monkeypatch):
    with pytest.raises(SystemExit) as stop:
        cli.parse(["k2jax", "--help"], cli.define_config, "What it does.")
    out = capsys.readouterr().out
    assert stop.value.code == 0 and "What it does." in out and "optimizer.qk_clip_tau" in out


def test_user_errors_exit_with_2(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["k2jax"])

    def fail(values):
        raise UserError("no such thing")

    with pytest.raises(SystemExit) as stop:
        cli.run(fail, lambda values: None, "doc")
    assert stop.value.code == 2 and capsys.readouterr().err == "error: no such thing\n"
