"""The studies of MCLA and of turn-level GSPO: their summaries of known curves, the noise of one, the runs of both."""

import dataclasses

import jax
import numpy as np
import pytest

from k2jax.config import PackingConfig
from k2jax.model.selection_noise import noise_of_scoring, noisy_bias, selection_noise
from k2jax.parallel.mesh import make_mesh
from k2jax.params import abstract
from k2jax.reproduce import RunResult, relative_spread
from k2jax.reproduce.study import check_held_out, run_configs
from k2jax.reproduce.study_file import load_study_file
from k2jax.rl.methods.scoring_pass import ScoringPass
from k2jax.rl.packing.rows import pack
from k2jax.rl.packing.training_paths import TrainingSample
from tests.parallel.tiny import config_of
from tests.rl.trees import single_turn

mcla, turns = load_study_file("mcla"), load_study_file("turn_level_gspo")


def results(study, curves, evaluations=None):
    """One seed; ``curves`` are metrics of runs by rewards as functions of the run and the step."""
    found = {}
    for run, config in run_configs(study.STUDY, "runs", only="seed0_*").items():
        name = run.partition("_")[2]
        records = [{"step": step} | (curves(name, step) if config.stage == "rl" else {}) for step in range(1, 41)]
        found[run] = RunResult(config, records, 0, (evaluations or {}).get(name, {}))
    return found


def cells(markdown, begin):
    (line,) = (line for line in markdown.splitlines() if line.startswith(begin))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_spread_is_within_windows_so_that_a_trend_counts_little():
    wave = np.tile([0.9, 1.1], 50)
    assert relative_spread(wave, 20) == pytest.approx(0.1)
    falling = wave * np.repeat([100.0, 10.0, 1.0, 0.1, 0.01], 20)
    assert relative_spread(falling, 20) == pytest.approx(0.1) and falling.std() / falling.mean() > 1
    assert relative_spread([2.0, 2.0, 2.0], 20) == 0


def test_mcla_s_table_holds_every_number_of_passes_in_every_way():
    def curves(name, step):
        way, _, passes = name.partition("_m")
        width = 0.4 / int(passes) if way == "plain" else 0.1
        record = {"grad_norm": 1 + width * (-1) ** step, "policy/clipped": 0.25, "tokens/mismatch": 0.5}
        record |= {"tokens/zeroed": 0.125} if way == "icepop" else {}
        return record | {"accuracy": step / 40} | ({"mcla_std": 0.75} if int(passes) > 1 else {})

    found = results(mcla, curves)
    summary = mcla.summarize(found)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in summary.markdown.splitlines() if "|" in line]
    by_name = {(row[0], row[1]): row[2:] for row in rows[2:]}
    assert len(by_name) == 12
    one = lambda value, digits: f"{value:.{digits}f} ({value:.{digits}f} to {value:.{digits}f})"  # noqa: E731
    assert by_name["as it is", "1"][0] == one(0.4, 3) and by_name["as it is", "8"][0] == one(0.05, 3)
    assert by_name["with IcePop", "4"][1:] == [one(1.1, 2), one(0.25, 5), one(0.125, 5), one(0.5, 4), one(0.75, 4),
                                               one(np.mean(np.arange(21, 41)) / 40, 3)]  # fmt: skip
    assert by_name["with routing replay", "1"][3] == by_name["with routing replay", "1"][5] == "none"
    assert "falls on 1 of 1 as it is, 0 of 1 with IcePop, 0 of 1 with routing replay" in summary.markdown
    assert {result.config.rl.loss.mcla.passes for result in found.values()} == {1, 2, 4, 8}


def test_mcla_s_noise_is_of_the_place_in_programs_within_its_context_alone():
    biases = lambda: noisy_bias(np.full(16, 3.0), (4, 256, 16)) - 3  # noqa: E731
    with selection_noise(mcla.STUDY.selection_noise):
        noise, again = biases(), biases()
        with noise_of_scoring():
            scored = biases()
    assert noisy_bias(exact := np.zeros(16), (4, 256, 16)) is exact
    assert np.isclose(scored.std(), mcla.NOISE, rtol=0.02) and not np.isclose(noise, scored, atol=1e-6).all(-1).any()
    np.testing.assert_array_equal(noise, again)
    assert noise.shape == (4, 256, 16) and len(np.unique(noise)) > 0.99 * noise.size
    np.testing.assert_allclose([noise.mean(), noise.std()], [0, mcla.NOISE], atol=0.02 * mcla.NOISE)


def test_programs_that_score_have_noise_of_their_own():
    config, row = config_of({}), single_turn(np.random.default_rng(0), 7, 9)
    rows = pack([TrainingSample(row, 1.0)], config.data.sequence_length, PackingConfig()).rows
    asked = []

    def noise(shape, scoring):
        asked.append(scoring)
        return np.zeros(shape, np.float32)

    scoring = ScoringPass(config, make_mesh(config))
    with selection_noise(noise):
        jax.eval_shape(scoring._score, abstract(scoring.layout.specs), scoring._put(rows))
    assert set(asked) == {True}


def test_levels_differ_in_nothing_but_level_and_band_and_are_shown_beside_the_start():
    kinds = [f"turns_{count}" for count in turns.TURNS]
    evaluations = {name: dict.fromkeys(kinds, 0.25) for name in turns.LABELS}
    evaluations["turn"] = {kind: 0.5 + 0.1 * number for number, kind in enumerate(kinds)}
    evaluations["token"] |= {f"{kind}/worked": 0.75 for kind in kinds}

    def curves(name, step):
        return {"reward": step / 40, "reward/turns_16": 0.25, "policy/clipped": 0.125, "tokens/kl": 0.5}

    found = results(turns, curves, evaluations)
    summary = turns.summarize(found)
    tables = summary.markdown.split("\n\n")
    right, gains, worked, trained = (table for table in tables if table.startswith("|"))
    assert cells(right, "| SFT, the start")[1:] == ["0.250 (0.250 to 0.250)"] * 5
    rows = [cells(line, "|") for line in gains.splitlines()[2:]]
    points = [f"{25 + 10 * number:+}.0" for number in range(5)]
    assert {name for name, *shown in rows if shown == [f"{each} ({each} to {each})" for each in points]} == {
        "ratio of a turn", "ratio of a turn over ratio of the episode", "ratio of a turn over ratio of a token"
    }  # fmt: skip
    assert cells(worked, "| ratio of a token")[1:] == ["0.75 (0.75 to 0.75)"] * 5
    clipped, kl, reward = "0.1250 (0.1250 to 0.1250)", "0.50000 (0.50000 to 0.50000)", "0.512 (0.512 to 0.512)"
    assert cells(trained, "| ratio of the episode")[2:] == [clipped, kl, reward, "0.250 (0.250 to 0.250)"]
    runs = {level: found[f"seed0_{level}"].config for level in turns.BANDS}
    assert {level: config.rl.loss.level for level, config in runs.items()} == {level: level for level in runs}
    bare = [dataclasses.replace(config, rl=dataclasses.replace(config.rl, loss=None)) for config in runs.values()]
    assert bare[0] == bare[1] == bare[2]


def test_dialogues_of_each_number_of_turns_are_held_out():
    """Of those of one turn there are few: as many as a run trains on are not held out."""
    check_held_out("turn_level_gspo", turns.STUDY)
    assert {task.options[-1] for task in turns.held_out_config().rl.tasks.values()} == {"count=40", "count=80"}
