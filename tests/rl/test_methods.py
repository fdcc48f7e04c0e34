"""The hooks of methods: each has a use, all updates are prepared before the first, and what a checkpoint keeps."""

import json

import numpy as np
import pytest

from k2jax.agents.mixture import TaskMixture
from k2jax.checkpoint.extra import decode, encode
from k2jax.config import resolve
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train
from k2jax.rl.methods import METHODS, Method, Methods, Parts
from k2jax.rl.methods.mcla import MCLA
from k2jax.rl.methods.toggle import Toggle
from k2jax.rl.updates import Trainer
from tests.rl import methods
from tests.rl.tiny import tiny

HOOKS = [name for name in vars(Method) if not name.startswith("_")]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_used_by_a_method(hook):
    assert any(hook in vars(method) for method in METHODS)


def test_the_runs_that_are_killed_have_every_method(tmp_path, monkeypatch):
    config = resolve(methods.config_of(str(tmp_path), monkeypatch.setattr))
    assert [method.__name__ for method in METHODS if not method.used(config)] == []


def test_log_pi_old_of_all_updates_is_that_of_the_weights_before_the_first_and_the_engine_s(tmp_path, monkeypatch):
    """Forward passes of a model without noise: each sees the weights of the iteration's beginning."""
    score, update, events = Parts.score, Trainer.update, []

    def scored(self, rows):
        events.append(("score", int(self.run.state.step)))
        return score(self, rows)

    def trained(self, number, rows):
        events.append(("update", number))
        for row in rows:
            apart = np.abs(row.targets.old_logprob - row.targets.behavior_logprob)
            assert 0 < apart[row.targets.mask > 0].max() < 1e-4
        return update(self, number, rows)

    monkeypatch.setattr(Parts, "score", scored)
    monkeypatch.setattr(Trainer, "update", trained)
    loss = {"rl.loss.old": "recompute", "rl.loss.mcla.passes": 2, "rl.loss.icepop.on": True}
    short = {"train.steps": 2, "rl.eval_prompts": 0, "rl.tasks.low.max_tokens": 20, "train.compute_dtype": "float32"}
    assert train(tiny(**loss, **short), tmp_path / "run") == 0
    passes = 2 * [("score", 0)], 2 * [("score", 2)]
    assert events == [*passes[0], ("update", 0), ("update", 1), *passes[1], ("update", 0), ("update", 1)]
    for record in read_metrics(tmp_path / "run"):
        assert record["updates"] == 2 and record["mcla_std"] < 1e-5 and record["recompute_seconds"] > 0
        assert record["tokens/mismatch"] < 1e-5 and record["tokens/zeroed"] == 0


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
