"""What the report of a run compares."""

from types import SimpleNamespace

import pytest

from k2jax.rl import report
from k2jax.train.history import Change
from tests.rl.tiny import tiny

RECORDS = [
    {"step": 0, "eval/greedy": 0.1, "eval/greedy/low": 0.0, "eval/greedy/high": 0.2},
    {"step": 10, "eval/greedy": 0.4, "eval/greedy/low": 0.3, "eval/greedy/high": 0.5},
    {"step": 20, "eval/greedy": 0.5, "eval/greedy/low": 0.4, "eval/greedy/high": 0.6},
]


@pytest.mark.parametrize(
    ("key", "first"), [("rl.eval_prompts", "0.400"), ("optimizer.learning_rate", "0.100"), ("", "0.100")]
)
def test_evaluations_of_other_tasks_are_not_compared(monkeypatch, key, first):
    """A run may be continued with another number of held-out tasks."""
    written = {}
    monkeypatch.setattr(report, "read_metrics", lambda workdir, most_lists: RECORDS)
    monkeypatch.setattr(report, "write_run", lambda run, status, command, shown, **more: written.update(more))
    changes = [Change(5, key, 32, 128)] if key else []
    report.write_results(SimpleNamespace(config=tiny(), workdir="run", changes=changes), "finished", None)
    assert written["held_out_shares"] == [
        ("greedy", f"{first} (0.{int(first[2]) - 1}00 to 0.{int(first[2]) + 1}00)", "0.500 (0.400 to 0.600)")
    ]
    assert ("after step 5" in written["held_out"]) == (key == "rl.eval_prompts")
