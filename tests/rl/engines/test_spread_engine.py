"""An engine of several processes: its tokens, its weights, and what becomes of it when one of them is lost."""

import contextlib
import json
from pathlib import Path
import re
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest

from k2jax import processes
from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.rl.engines.run_record import RunRecord
from k2jax.rl.followers.commands import ALONE
from k2jax.serve import engine_part
from k2jax.serve.engine_part import EnginePart
from tests.rl.engines.played_run import PlayedRun, engine_of
from tests.rl.engines.test_engine_runs import assert_trained_well, steps_of
from tests.rl.engines.test_other_machines import WHOLE
from tests.rl.followers.noisy import LOG
from tests.rl.tiny import tiny
from tests.train.together import end, free_port, python

SPREAD = {"rl.rollout.expert": 2, "rl.rollout.slots": 4, "rl.rollout.max_length": 64}
SEPARATE = WHOLE | {"rl.rollout.data": 2, "rl.engines.start": 0}
"""A run whose engine has two devices."""
PROMPTS = [tuple(range(3, 3 + length)) for length in (5, 9, 20, 1)]


def wait(condition, processes, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline and all(each.poll() is None for each in processes), end(processes, 5)
        time.sleep(0.02)


def answers(run, version):
    """What the engine of a run says with weights of a version, one prompt after another."""
    run.run(run.pool.need(version))
    for seed, prompt in enumerate(PROMPTS):
        sampling = Sampling(max_tokens=12, temperature=0.8, seed=seed)
        yield run.run(run.pool.generate(prompt, sampling))


def part_of(monkeypatch, states, problem=None):
    """This process's part of an engine, whose processes say that they are in these states one after another."""
    left, weights = [np.array(each) for each in states], SimpleNamespace(complete=True)
    part = EnginePart(Path("run"), ALONE)

    def leaves():
        weights.complete = False
        if problem == "on the way":
            raise UserError("it is damaged")
        weights.complete = True
        return iter(())

    def load():
        if problem == "before":
            raise UserError("it is gone")
        return 7, leaves

    weights.digest = lambda: "sums"
    part._own = SimpleNamespace(weights=weights, version=6, update_params=lambda leaves, version: leaves())
    part.source, said = SimpleNamespace(load=load), []
    monkeypatch.setattr(engine_part, "_of_all", lambda state: said.append(state) or left.pop(0))
    return part, said


@pytest.mark.parametrize(
    ("problem", "states", "own", "words", "complete"),
    [
        (None, [0, 0], 0, None, True),
        (None, [0, 1], 0, "another process of the engine could not read its part", False),
        (None, [0, 2], 0, "another process of the engine could not read its part", False),
        ("before", [1, 1], 1, "it is gone", True),
        ("before", [1, 0], 1, "it is gone", False),
        ("on the way", [2, 1], 2, "it is damaged", False),
    ],
)
def test_an_engine_has_whole_weights_where_all_of_its_processes_have_those_of_one_version(
    problem, states, own, words, complete, monkeypatch
):
    part, said = part_of(monkeypatch, [states], problem)
    if words is None:
        assert part.take(None) == (7, "sums")
    else:
        with pytest.raises(UserError, match=words):
            part.take(None)
    assert said == [own] and part._own.weights.complete == complete


def test_processes_whose_devices_are_not_those_of_the_engine_are_refused(monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    with pytest.raises(UserError, match=r"2 processes have 1 devices together, and the run has .*data 1 x expert 4"):
        engine_part._make_engine(tiny(**SPREAD | {"rl.rollout.expert": 4}), RunRecord("here", dtype="float32"))


@pytest.mark.slow
@pytest.mark.parametrize("data", [1, 2])
def test_two_processes_answer_as_one_with_as_many_devices_whichever_way_their_weights_come(data, tmp_path):
    told, config = {}, tiny(**SPREAD | {"rl.rollout.data": data})
    kinds = {"one": (1, False), "two": (2, False)} | ({"two here": (2, True)} if data == 1 else {})
    for name, (count, here) in kinds.items():
        with contextlib.ExitStack() as opened:
            run = PlayedRun(tmp_path / name.replace(" ", "-"), config, opened)
            processes = engine_of(run.workdir, count, 2 * data // count, here=here)
            run.publish(0)
            wait(run.has_engine, processes)
            told[name] = list(answers(run, 0))
            run.publish(1)
            told[name] += list(answers(run, 1))
            assert len(run.pool.engines) == 1
        ended = end(processes, 60)
        assert [code for code, _, _ in ended] == [0] * count, ended
        assert "has ended" in ended[0][1], ended
    for name in list(kinds)[1:]:
        for answer, expected in zip(told[name], told["one"], strict=True):
            assert answer.tokens.tolist() == expected.tokens.tolist()
            assert answer.versions.tolist() == expected.versions.tolist()
            np.testing.assert_allclose(answer.logprobs, expected.logprobs, rtol=0, atol=1e-5)
    assert [set(each.versions) for each in told["one"]] == [{0}] * 4 + [{1}] * 4


def trainers(workdir, count, **changes):
    """The processes of a run that takes engines of other machines."""
    config = SEPARATE | {"rl.engines.listen": f"127.0.0.1:{free_port()}"} | changes
    arguments, port = ["-m", "tests.rl.followers.member", str(workdir), json.dumps(config)], free_port()
    alone = {} if count > 1 else dict.fromkeys(("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"), "")
    return [python(arguments, index, count, port, **alone | {LOG: f"{workdir}.calls"}) for index in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_both_processes_take_every_version_of_a_run_from_all_of_its_processes(count, tmp_path):
    run, engine = trainers(tmp_path / "run", count), engine_of(tmp_path / "run", 2, 1)
    told = end([*run, *engine], 600)
    assert [code for code, _, _ in told] == [0] * (count + 2), told
    assert_trained_well(tmp_path / "run", 3, 1)
    said = told[count][1]
    assert "serving version 2 of the weights" in said and "has ended" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "how"),
    [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP), (1, signal.SIGTERM)],
    ids=["the other is killed", "the first is killed", "one stands still", "one is told to end"],
)
def test_of_a_lost_process_the_engine_ends_and_the_run_goes_on_with_the_next_one(victim, how, tmp_path):
    run, steps = trainers(tmp_path / "run", 1, **{"train.steps": 6, "rl.keep_trajectories": 100}), 6
    engine = engine_of(tmp_path / "run", 2, 1)
    wait(lambda: steps_of(tmp_path / "run") >= 1, [*run, *engine], 300)
    since, other = time.monotonic(), 1 - victim
    engine[victim].send_signal(how)
    engine[other].wait(30)
    print(f"{how.name}: {time.monotonic() - since:.1f} s")
    if how == signal.SIGSTOP:
        engine[victim].kill()
    ended, asked = end(engine, 30), how == signal.SIGTERM
    assert (ended[victim][0], ended[other][0]) == ((143, 143) if asked else (-9, 1)), ended
    reason = "stopped: SIGTERM ends it" if asked else "does not respond: the engine stops; restart it"
    own = f"process {other}: " if other else ""
    assert re.search(rf"^error: {own}process {victim} \(\S+\) {reason}$", ended[other][2], re.M), ended
    assert steps_of(tmp_path / "run") < steps and run[0].poll() is None
    told = end([*run, *engine_of(tmp_path / "run", 2, 1)], 600)
    assert [code for code, _, _ in told] == [0] * 3, told
    assert_trained_well(tmp_path / "run", steps, 1)


@pytest.mark.slow
def test_an_engine_of_two_processes_outlives_a_run_that_is_killed(tmp_path):
    changes = {"train.steps": 6, "rl.keep_trajectories": 100, "rl.engines.listen": f"127.0.0.1:{free_port()}"}
    run, engine = trainers(tmp_path / "run", 1, **changes), engine_of(tmp_path / "run", 2, 1)
    wait(lambda: steps_of(tmp_path / "run") >= 1, [*run, *engine], 300)
    run[0].kill()
    run[0].communicate()
    assert steps_of(tmp_path / "run") < 6
    told = end([*trainers(tmp_path / "run", 1, **changes), *engine], 600)
    assert [code for code, _, _ in told] == [0] * 3 and "lost the run" in told[1][1], told
    assert_trained_well(tmp_path / "run", 6, 1)
