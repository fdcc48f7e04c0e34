"""The hooks of methods: each has a use, all updates are prepared before the first, and what a checkpoint keeps."""

import json

import numpy as np
import pytest

from k2jax.checkpoint.extra import decode, encode
from k2jax.config import resolve
from k2jax.rl.loop import train
from k2jax.rl.methods import METHODS, Method, Methods, Parts
from k2jax.rl.methods.mcla import MCLA
from k2jax.rl.methods.toggle import Toggle
from k2jax.rl.tasks import TaskMixture
from k2jax.rl.updates import Trainer
from tests.rl import methods
from tests.rl.runs import assert_equal_runs, kill_and_resume
from tests.rl.tiny import tiny

HOOKS = [name for name in vars(Method) if not name.startswith("_")]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_used_by_a_method(hook):
    assert any(hook in vars(method) for method in METHODS)


def test_log_pi_old_of_all_updates_is_that_of_the_weights_before_the_first(tmp_path, monkeypatch):
    """A forward pass that returns the number of updates which its weights have seen."""
    trained, update = [], Trainer.update

    def score(self, rows):
        return np.full((len(rows), len(rows[0].tokens)), float(self.run.state.step), np.float32)

    def note(self, number, rows):
        sampled = [row.targets.mask > 0 for row in rows]
        values = np.concatenate([row.targets.old_logprob[s] for row, s in zip(rows, sampled, strict=True)])
        trained.append((number, {*values.tolist()}))
        return update(self, number, rows)

    monkeypatch.setattr(Parts, "score", score)
    monkeypatch.setattr(Trainer, "update", note)
    loss = {"rl.loss.old": "recompute", "rl.loss.mcla.passes": 2}
    short = {"train.steps": 2, "rl.eval_prompts": 0, "rl.tasks.low.max_tokens": 20}
    assert train(tiny(**loss, **short), tmp_path / "run") == 0
    assert trained[:3] == [(0, {0.0}), (1, {0.0}), (0, {2.0})]


class _NoSampler:
    """Fails where a method samples."""

    def __getattr__(self, name):
        raise AssertionError(f"a restored method asks for {name}")


def toggled():
    config = tiny(**{"rl.tasks.low.options": ("letters=2",), "rl.toggle.period": 1, "rl.loss.old": "recompute"})
    mixture = TaskMixture(config.rl.tasks, 0)
    return Methods([Toggle(config, mixture), MCLA(config, None, print)])


def test_what_methods_keep_comes_back_bit_for_bit_and_begins_nothing_again():
    budgets = np.array([np.inf, 1 / 3, 17.0, 1e6 / 7])
    first, second = toggled(), toggled()
    first.restore({"budgets": budgets})
    kept = first.extra()
    second.restore(decode(json.loads(json.dumps(encode({"drawn": 4} | kept)))))
    for name, value in second.extra().items():
        assert value.tobytes() == kept[name].tobytes()
    for method in second:
        method.begin(None, _NoSampler())


def test_a_method_that_needs_no_update_ends_the_others():
    class Skips(Method):
        def before_update(self, step, number, rows):
            return None if number else rows

    class Adds(Method):
        def before_update(self, step, number, rows):
            return [*rows, "more"]

    both = Methods([Skips(), Adds()])
    assert both.before_update(1, 0, ["row"]) == ["row", "more"] and both.before_update(1, 1, ["row"]) is None


@pytest.mark.slow
def test_killed_with_every_method_at_once_it_ends_bit_identical(tmp_path, monkeypatch):
    methods.write_teachers(tmp_path)
    (tmp_path / "config.py").write_text(methods.CONFIG_FILE.format(folder=str(tmp_path)))
    assert train(resolve(methods.config_of(str(tmp_path), monkeypatch.setattr)), tmp_path / "finished") == 0
    kill_and_resume(tmp_path / "config.py", tmp_path / "killed", times=3)
    assert_equal_runs(tmp_path / "killed", tmp_path / "finished")
