"""The studies of several turns: their runs fit together, and their summary says what rewards add to the start."""

import json
from pathlib import Path

import pytest

from k2jax.client import ScriptedClient
from k2jax.reproduce import RunResult
from k2jax.reproduce.study import run_configs
from k2jax.reproduce.study_file import load_study_file
from k2jax.reproduce.turns import AVERAGE, PASS, calls_of
from tests.agents.tool_episodes import BYTES, episode, task

STUDIES = {name: load_study_file(name) for name in ("tools", "code", "terminal")}
PLAIN = {"tools": 2, "code": 2, "terminal": 4}
"""Messages of a conversation in which the teacher does not do what rewards should find."""
tools = STUDIES["tools"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_learns_from_the_demonstrations_of_the_study_and_starts_from_a_run_before_it(
    name, tmp_path, monkeypatch
):
    monkeypatch.setattr(STUDIES[name], "DEMONSTRATIONS", 20)
    STUDIES[name].prepare(tmp_path)
    before = set()
    for run, config in run_configs(STUDIES[name].STUDY, tmp_path).items():
        assert (config.init_from in before) == (run.partition("_")[2] != "sft"), run
        for teacher, source in config.data.sources.items():
            records = [json.loads(line) for line in Path(source.path).read_text().splitlines()]
            styles = {True} if teacher == "easier" else {True, False}
            assert {len(record["messages"]) > PLAIN[name] for record in records} == styles
        before.add(str(tmp_path / run))


def test_an_episodes_calls_are_those_that_the_model_writes():
    """Two in the first answer, one in the second, none in the last."""
    said = iter(["!get a\n!get b", "!calc 12+30", "42"])
    client = ScriptedClient(lambda prompt, sampling: [*BYTES.encode(next(said)), BYTES.eos])
    assert calls_of(episode(client, task())) == 3


def results(record):
    """Made-up results: ``record(run, seed)``."""
    made = {}
    for run, config in run_configs(tools.STUDY, "runs").items():
        curves = [{"step": step, "seconds": 60.0 * step, "accuracy": 0.5} for step in (1, 2)]
        made[run] = RunResult(config, curves, 0, record(run.partition("_")[2], config.train.seed))
    return made


def test_the_gain_is_taken_seed_by_seed():
    """Starts of 0.2, 0.3 and 0.4 gain 40, 41 and 42 points by rewards; more fine-tuning gains nothing."""

    def record(run, seed):
        share = 0.2 + 0.1 * seed + (0.4 + 0.01 * seed) * (run in ("rl", "rl_workers"))
        keys = ["eval/greedy", AVERAGE, PASS, "called", "right_called", "calls", "eval/length"]
        kinds = [f"{key}/{kind}" for key in keys[:2] for kind in tools.study.kinds]
        return dict.fromkeys(keys + kinds, share) | {"right_direct": None if run == "rl" else 0.0}

    text = tools.summarize(results(record)).markdown
    assert "adds +41.0 (+40.0 to +42.0) points of greedy success" in text
    assert "a start that solves 0.300 (0.200 to 0.400) greedily" in text
    row = next(line for line in text.splitlines() if line.startswith("| as much more SFT"))
    assert row.count("+0.0 (+0.0 to +0.0)") == 2
    assert "took 4.0 (4.0 to 4.0) minutes" in text
    assert "in lockstep 120, 120, 120 s, without waiting 120, 120, 120 s" in text
    assert next(line for line in text.splitlines() if line.startswith("| RL, no waiting")).count("+41.0") == 2
    assert next(line for line in text.splitlines() if line.startswith("| RL")).count("none") == 1
