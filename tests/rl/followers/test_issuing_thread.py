"""One thread issues every program of a run and places every array: programs of all processes keep one order."""

import threading

from jax._src import pjit
from jax._src.interpreters import pxla
import pytest

from k2jax.report.metrics import read_metrics
from k2jax.rl.followers import opening
from k2jax.rl.followers.controller import Controller
from k2jax.rl.loop import train
from tests.rl.tiny import tiny

CHANGES = {
    "rl.rollout.sampler": "workers",
    "rl.rollout.look_ahead": 2,
    "rl.rollout.prompts": 2,
    "rl.rollout.samples": 2,
    "rl.tasks.low.options": ("letters=2", "turns=2"),
    "rl.tasks.low.max_tokens": 8,
    "rl.loss.old": "recompute",
    "rl.updates": 1,
    "rl.eval_prompts": 1,
    "rl.eval_samples": 1,
    "eval.every": 1,
    "checkpoint.every": 1,
    "train.batch_size": 2,
    "train.steps": 3,
}


class NobodyElse:
    """A tree in which process 0 is alone."""

    def __init__(self):
        self.sent = 0

    def send(self, message):
        self.sent += 1


@pytest.fixture
def threads(monkeypatch):
    """Names of the threads that run programs and place arrays, by what they do."""
    seen = {"program": set(), "placement": set()}

    def noting(what, function):
        def noted(*arguments, **options):
            seen[what].add(threading.current_thread().name)
            return function(*arguments, **options)

        return noted

    # Programs that have run once would otherwise be called from C++.
    monkeypatch.setattr(pjit, "_get_fastpath_data", lambda *arguments, **options: None)
    monkeypatch.setattr(pxla.ExecuteReplicated, "__call__", noting("program", pxla.ExecuteReplicated.__call__))
    monkeypatch.setattr(pxla, "batched_device_put", noting("placement", pxla.batched_device_put))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["workers", "lockstep"])
def test_no_other_thread_calls_jax_in_a_whole_run(sampler, tmp_path, threads, monkeypatch):
    tree = NobodyElse()
    monkeypatch.setattr(opening, "ALONE", Controller(tree))
    changes = CHANGES | {"rl.rollout.sampler": sampler} | ({} if sampler == "workers" else {"rl.rollout.look_ahead": 1})
    assert train(tiny(**changes), tmp_path / "run") == 0
    assert [record["step"] for record in read_metrics(tmp_path / "run") if "reward" in record] == [1, 2, 3]
    assert tree.sent > 20
    assert threads == {"program": {"MainThread"}, "placement": {"MainThread"}}
