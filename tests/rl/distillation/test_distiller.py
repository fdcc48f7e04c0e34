"""Distillation in the loop: exact zeros, teachers by class of tasks, advantages in float64, and a resume."""

import json

import numpy as np
import pytest

from k2jax.config import resolve, task
from k2jax.convert.loading import from_pretrained
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.rl.inputs import open_chat
from k2jax.rl.loop import train
from k2jax.rl.methods.distillation import OnPolicyDistillation
from k2jax.rl.methods.teacher_table import chosen_teachers
from k2jax.rl.methods.teachers import Teachers
from k2jax.rl.packing.rows import PackedRows, equalize_domains, pack
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.rl.sync import offload
from k2jax.train.program import Program
from k2jax.train.run import Run
from tests.rl.test_scoring_pass import expected
from tests.rl.tiny import register, tiny_config
from tests.rl.trees import single_turn

SHORT = {"train.steps": 1, "rl.eval_prompts": 0, "checkpoint.every": 1}
ALONE = {"rl.distill.weight": 0.5, "rl.distill.rewards": False, "rl.loss.name": "reinforce"}


def two_classes(**overrides):
    """The tiny config with two classes of tasks, ``high`` at temperature 1.3, and models that differ by far."""
    register()
    config = tiny_config()
    config.rl.tasks.high = task(dataset="low_bytes", max_tokens=20, temperature=1.3, temperature_final=1.3)
    config.model.init_std = 0.1
    config.update_from_flattened_dict(SHORT | overrides)
    return resolve(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Workdirs of untrained teachers: ``same`` with the student's seed, ``other``, and ``small`` of one layer."""
    folder = tmp_path_factory.mktemp("distill")
    for name, changes in (("same", {}), ("other", {"train.seed": 5}), ("small", {"train.seed": 6, "model.layers": 1})):
        config = two_classes(**changes)
        open_chat(config, folder / name)
        with Run(Program(config), folder / name, {}) as run:
            run.save_when_due(1)
    (folder / "table.json").write_text(json.dumps({"high": {"a": 0.2, "b": 0.6}, "low": {"a": 0.7, "b": 0.1}}))
    return folder


def teachers_of(folder, a, b):
    checkpoints = (f"a={folder / a}", f"b={folder / b}")
    return {"rl.distill.teachers": checkpoints, "rl.distill.table": str(folder / "table.json")}


def rows_of(config, count=12):
    """Rows of responses of both classes, with advantages."""
    rng = np.random.default_rng(0)
    samples = [
        TrainingSample(single_turn(rng, 6, 5, temperature=(1.3, 0.5)[n % 2]), float(rng.normal()), n % 2)
        for n in range(count)
    ]
    return pack(samples, config.data.sequence_length, config.rl.packing).rows


def opened(config, workdir):
    program = Program(config)
    tokenizer, _ = open_chat(config, workdir)
    return program, Teachers(config, program, tokenizer, chosen_teachers(config, workdir))


@pytest.mark.parametrize("into", ["advantage", "component"])
def test_a_teacher_with_the_students_weights_has_nothing_to_say(folder, tmp_path, into):
    """Gaps are exactly 0 in every batch, also in one that is not full."""
    config = two_classes(**ALONE, **teachers_of(folder, "same", "same"), **{"rl.distill.into": into})
    program, teachers = opened(config, tmp_path)
    rows = rows_of(config, 42)
    assert 4 < len(rows) < 8 == 2 * config.train.batch_size
    with Run(program, tmp_path, {}) as run:
        distillation = OnPolicyDistillation(config, teachers)
        distillation.begin(run, None)
        distillation.prepare(1, {0: PackedRows(rows[:1], 0, 0), 1: PackedRows(rows[1:], 0, 0)})
        for row in rows:
            row.targets.advantage[:] = 0
        assert distillation.before_update(1, 0, rows[:1]) is None is distillation.before_update(1, 1, rows[1:])
    assert not any(row.targets.advantage.any() or row.targets.distill.any() for row in rows)
    assert {value for name, value in distillation.record(1, []).items() if "kl" in name} == {0.0}


@pytest.mark.parametrize("resting", [pytest.param(False, marks=pytest.mark.slow), True])
def test_each_class_is_judged_by_its_own_teacher_at_the_temperature_of_each_token(
    folder, tmp_path, monkeypatch, resting
):
    """Teacher ``b`` has another architecture; at rest the weights lie in the host's memory, on a CPU too."""
    if resting:
        monkeypatch.setattr(offload, "has_host_memory", lambda platform: True)
    config = two_classes(**ALONE, **teachers_of(folder, "other", "small"))
    _, teachers = opened(config, tmp_path)
    rows = rows_of(config)
    (found,), domain = teachers.score([rows]), np.stack([row.targets.domain for row in rows])
    if resting:
        (found,) = teachers.score([rows])  # what came back from the devices is what went there
    wanted_of = {name: expected(*from_pretrained(folder / name), rows) for name in ("other", "small")}
    assert np.abs(wanted_of["other"] - wanted_of["small"])[domain >= 0].min() > 1e-3
    for number, name in ((1, "other"), (0, "small")):  # low is class 1, of teacher a
        wanted = wanted_of[name]
        np.testing.assert_allclose(found[domain == number], wanted[domain == number], rtol=1e-5, atol=2e-5)
    assert not found[domain < 0].any()


@pytest.mark.parametrize("into", ["advantage", pytest.param("component", marks=pytest.mark.slow)])
def test_advantages_are_those_of_float64(folder, tmp_path, into):
    config = two_classes(**ALONE, **teachers_of(folder, "other", "small"), **{"rl.distill.into": into})
    program, teachers = opened(config, tmp_path)
    rows, before = rows_of(config), rows_of(config)
    routes = np.zeros((config.data.sequence_length, 1, 2), np.int32)  # all to expert 0: neither model follows them
    with Run(program, tmp_path, {}) as run:
        distillation = OnPolicyDistillation(config, teachers)
        distillation.begin(run, None)
        rows = [row.replace(experts=routes) for row in rows]
        distillation.prepare(1, {0: PackedRows(rows[:1], 0, 0), 3: PackedRows(rows, 0, 0)})
        assert distillation.before_update(1, 3, rows) is rows
    student = expected(*from_pretrained(folder / "same"), rows)
    teacher = {number: expected(*from_pretrained(folder / name), rows) for number, name in ((1, "other"), (0, "small"))}
    gaps = {0: [], 1: []}
    for r, (row, old) in enumerate(zip(rows, before, strict=True)):
        for t in range(len(row.tokens)):
            sampled, number = old.targets.mask[t] > 0, int(old.targets.domain[t])
            gap = teacher[number][r, t] - student[r, t] if sampled else 0.0
            advantage = old.targets.advantage[t] + (0.5 * gap if into == "advantage" else 0.0)
            np.testing.assert_allclose(row.targets.advantage[t], advantage, atol=5e-5)
            np.testing.assert_allclose(row.targets.distill[t], gap if into == "component" else 0.0, atol=5e-5)
            if sampled:
                gaps[number].append(gap)
    record = distillation.record(1, [])
    for number, name in ((0, "high"), (1, "low")):
        np.testing.assert_allclose(record[f"distill/reverse_kl/{name}"], -np.mean(gaps[number]), atol=5e-5)
    np.testing.assert_allclose(record["distill/reverse_kl"], -np.mean(gaps[0] + gaps[1]), atol=5e-5)


def test_classes_count_equally_however_many_tokens_they_have():
    rng, config = np.random.default_rng(1), two_classes()
    samples = [TrainingSample(single_turn(rng, 4, 3 + n), 1.0, (0, 1, 1, 1, 3)[n % 5]) for n in range(10)]
    rows = pack(samples, config.data.sequence_length, config.rl.packing).rows
    values = [rng.normal(size=len(row.tokens)) for row in rows]
    equalize_domains(rows)
    by_class = {0: [], 1: [], 3: []}
    for row, value in zip(rows, values, strict=True):
        for t in np.flatnonzero(row.targets.mask):
            by_class[int(row.targets.domain[t])].append(value[t])
    weights = [row.targets.weight.astype(np.float64) for row in rows]
    total = sum((weight * value).sum() for weight, value in zip(weights, values, strict=True))
    mean = total / sum(weight.sum() for weight in weights)
    np.testing.assert_allclose(mean, np.mean([np.mean(each) for each in by_class.values()]), rtol=1e-6)
    assert not any(row.targets.weight[row.targets.mask == 0].any() for row in rows)


@pytest.mark.slow
def test_a_run_with_rewards_and_teachers_keeps_its_table_and_its_teachers(folder, tmp_path):
    """With the table that it has measured itself, classes that count equally, and another objective beside."""
    teachers = (f"a={folder / 'other'}", f"b={folder / 'small'}")
    changes = {"rl.distill.weight": 0.3, "rl.distill.teachers": teachers, "rl.loss.per_domain": True, "train.steps": 2}
    changes |= {"rl.eval_prompts": 16, "rl.eval_samples": 4, "rl.correct_reward": 0.25, "eval.every": 100}
    config = two_classes(**changes)
    assert train(config, tmp_path / "whole") == 0
    records = [record for record in read_metrics(tmp_path / "whole") if record["step"]]
    assert all(record["updates"] == 2 and record["distill/reverse_kl"] != 0 for record in records)
    table = json.loads((tmp_path / "whole" / "teachers.json").read_text())
    assert {name: set(row) for name, row in table.items()} == {"low": {"a", "b"}, "high": {"a", "b"}}

    moved = tuple(f"{name}={folder / 'same'}" for name in "ab")
    with pytest.raises(UserError, match="the set of teachers changed since"):
        train(two_classes(**changes | {"rl.distill.teachers": moved}), tmp_path / "whole")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"rl.distill.weight": 1.0}, "without teachers; set rl.distill.teachers"),
        (ALONE | {"rl.distill.teachers": ("a=x",), "rl.loss.name": "k2"}, "rl.distill.into=component would do"),
        (ALONE | {"rl.distill.teachers": ("a=x",), "rl.skip_flat_groups": True}, "skip_flat_groups leaves out"),
        ({"rl.distill.rewards": False}, "nothing is left to train on"),
        ({"rl.loss.per_domain": True, "rl.loss.name": "gspo"}, "per_domain weighs tokens"),
    ],
)
def test_keys_that_do_not_go_together_are_refused_in_one_line(overrides, words):
    with pytest.raises(UserError, match=words):
        two_classes(**overrides)


def test_teachers_with_other_tokens_are_refused(folder, tmp_path):
    register()
    config = two_classes(**ALONE, **teachers_of(folder, "other", "small"), **{"model.vocab": 300})
    with pytest.raises(UserError, match=r"teacher a .* knows 258 tokens, config.model.vocab is 300"):
        opened(config, tmp_path / "larger")
    config, program = two_classes(**ALONE, **teachers_of(folder, "other", "small")), None
    tokenizer, _ = open_chat(config, tmp_path / "bytes")
    monkeyed = type("Other", (), {"fingerprint": "another", "vocab_size": tokenizer.vocab_size})()
    program = Program(config)
    with pytest.raises(UserError, match="has another tokenizer than the run"):
        Teachers(config, program, monkeyed, {"low": "a", "high": "b"})
