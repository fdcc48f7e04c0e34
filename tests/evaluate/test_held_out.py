"""A run's held-out tasks as suites: its own greedy accuracy again, and what has no meaning."""

import json

import pytest

from k2jax.errors import UserError
from k2jax.evaluate.held_out import HeldOutSuites
from tests.command import run_command
from tests.rl.tiny import CONFIG_FILE, tiny


def test_each_class_is_a_greedy_suite_and_a_sampled_one_with_the_settings_of_the_run():
    changed = {"rl.eval_prompts": 6, "rl.eval_temperature": 0.5, "rl.tasks.low.thinking": False}
    held_out = HeldOutSuites(tiny(**changed))
    suites = held_out.suites({"samples": 3})
    assert list(suites) == ["low-greedy", "low"]
    greedy, sampled = suites.values()
    assert (greedy.samples, greedy.temperature, greedy.metrics) == (1, 0.0, ())
    assert (sampled.samples, sampled.temperature, sampled.metrics) == (3, 0.5, ("pass", "pass_hat"))
    for name, suite in suites.items():
        assert (suite.max_tokens, suite.correct, suite.thinking) == (60, 0.6, False)
        assert [task.id for task in held_out.tasks(name, suite)] == ["ww", "wx", "wy", "wz", "xw", "xx"]


@pytest.mark.parametrize(
    ("change", "why"),
    [({"rl.eval_prompts": 0}, "config.rl.eval_prompts is 0"), ({"stage": "pretrain"}, "stage pretrain has no")],
)
def test_a_run_without_held_out_tasks_is_refused(change, why):
    with pytest.raises(UserError, match=why):
        HeldOutSuites(tiny(**change))


@pytest.mark.slow
def test_a_checkpoint_gets_the_greedy_accuracy_that_its_run_has_measured(tmp_path):
    config, run, folder = tmp_path / "tiny.py", tmp_path / "run", tmp_path / "evaluation"
    config.write_text(CONFIG_FILE)
    prompts = "--config.rl.eval_prompts=12"
    assert run_command("k2jax.rl", f"--config={config}", f"--workdir={run}", prompts).returncode == 0
    measured = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    words = (f"--config={config}", f"--model={run}", f"--workdir={folder}", prompts, "--at_once=1")
    done = run_command("k2jax.evaluate", *words)
    assert done.returncode == 0, done.stderr
    suites = json.loads((folder / "results.json").read_text())["suites"]
    greedy = suites["low-greedy"]["scores"]["accuracy"]
    assert 0 < greedy["value"] < 1
    for end, name in (("value", ""), ("low", "/low"), ("high", "/high")):
        assert greedy[end] == measured[f"eval/greedy{name}"]
    assert {"accuracy", "pass@2", "pass^2"} <= suites["low"]["scores"].keys()
