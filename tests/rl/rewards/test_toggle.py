"""Toggle against its formula in loops, its table against sorted lengths, and whole runs with it."""

import asyncio
import math

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents.mixture import CRITIC, DrawnTask, TaskMixture
from k2jax.checkpoint import Checkpoints
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.rl.groups import PromptGroup, class_of, reward_terms, total_reward, training_samples
from k2jax.rl.loop import train
from k2jax.rl.methods import toggle as toggle_module
from k2jax.rl.methods.toggle import Toggle, length_budget, sample_budgets, toggle_phase
from k2jax.rl.schedules import reward_weights
from k2jax.trajectory import Node, Reward, Trajectory
from k2jax.trajectory.store import TrajectoryStore
from tests.rl.tiny import tiny

FOUR_PROMPTS = {"rl.tasks.low.options": ("letters=2",), "rl.toggle.period": 1}
RUN = FOUR_PROMPTS | {
    "rl.toggle.accuracy": 0.0,
    "rl.correct_reward": 0.0,
    "rl.toggle.percentile": 0.0,
    "rl.eval_prompts": 0,
    "optimizer.schedule.kind": "constant",
    "optimizer.schedule.warmup_steps": 1,
    "rl.tasks.low.temperature_decay": 0.0,
    "checkpoint.every": 1,
}


def response(lengths, status="finished", reward=0.0):
    """A response of one turn for each length, with a prompt before each that nobody sampled."""
    trajectory = Trajectory("task", "math", (0, 0, 0), status=status)
    for turn, length in enumerate(lengths):
        prompt = trajectory.add(Node.observed(len(trajectory.nodes) - 1, [7] * 5))
        arrays = np.zeros(length, np.int32), np.ones(length, bool), np.zeros(length)
        trajectory.add(Node(prompt, *arrays, versions=np.zeros(length, int), turn=turn, finish="stop"))
    trajectory.reward = None if status == "masked" else Reward(reward)
    return trajectory


def rewarded(config, rule, step, group):
    """The rewards of a group in a step."""
    task = class_of(config.rl, group)
    group.terms = reward_terms(group, task, reward_weights(task, step - 1, config.train.steps))
    asyncio.run(rule.rewards(step, [group]))
    return total_reward(group.terms)


@st.composite
def problems(draw):
    """A group's responses as (lengths of turns, status, reward), a budget, lambda, and an iteration with its period."""
    lengths = st.lists(st.integers(1, 6), min_size=1, max_size=3)
    status = st.sampled_from(["finished", "finished", "truncated", "masked"])
    reward = st.sampled_from([0.0, 1.0, 1.0, 0.25, -0.5])
    responses = draw(st.lists(st.tuples(lengths, status, reward), min_size=1, max_size=8))
    budget = draw(st.sampled_from([1.0, 4.0, 6.5, 9.0, math.inf]))
    accuracy = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    return responses, budget, accuracy, draw(st.integers(0, 12)), draw(st.integers(1, 4))


@given(problems())
@example(([([8], "truncated", 1.0), ([2], "finished", 1.0)], 4.0, 0.5, 0, 1))  # the penalty stays
def test_rewards_are_those_of_the_report_and_trajectories_keep_their_own(problem):
    responses, budget, accuracy, iteration, period = problem
    overrides = {"rl.toggle.period": period, "rl.toggle.accuracy": accuracy, "rl.tasks.low.overlong_penalty": 0.125}
    config = tiny(**FOUR_PROMPTS | overrides)
    mixture = TaskMixture(config.rl.tasks, 0)
    prompt = list(mixture.training_prompts())[2]
    rule = Toggle(config, mixture)
    rule.restore({"budgets": np.array([0.0, 0.0, budget, 0.0])})
    group = PromptGroup(0, (iteration + 1, 0), prompt, [response(*each) for each in responses])
    found, counted = rewarded(config, rule, iteration + 1, group), group.counted_K

    raw = [reward for _, status, reward in responses if status != "masked"]
    taken = 0
    for sample, (lengths, status, reward) in enumerate(responses):
        assert counted[sample] == (status != "masked")
        if status == "masked":
            assert found[sample] == 0
            continue
        fits = sum(raw) / len(raw) < accuracy or sum(lengths) <= budget
        kept = fits or math.floor(iteration / period) % 2 == 1
        taken += not kept and reward != 0
        assert found[sample] == reward * kept - 0.125 * (status == "truncated")
        assert group.trajectories[sample].reward.value == reward
    record = rule.record(iteration + 1, [group])
    assert record["toggle/phase"] == math.floor(iteration / period) % 2
    np.testing.assert_allclose(record["toggle/taken"], taken / max(1, len(raw)))


def test_phases_begin_with_budgets_and_last_as_long_as_each_other():
    assert [toggle_phase(iteration, 1) for iteration in range(4)] == [0, 1, 0, 1]
    assert [toggle_phase(iteration, 3) for iteration in range(8)] == [0, 0, 0, 1, 1, 1, 0, 0]
    assert {toggle_phase(iteration, 0) for iteration in range(8)} == {1}


@given(st.lists(st.tuples(st.integers(1, 99), st.booleans()), min_size=1, max_size=9), st.floats(0, 100))
def test_a_budget_is_the_percentile_of_the_sorted_lengths_of_right_responses(responses, percentile):
    lengths = np.array([length for length, _ in responses])
    right = np.array([is_right for _, is_right in responses])
    found = length_budget(lengths, right, percentile)
    known = sorted(length for length, is_right in responses if is_right)
    if not known:
        assert found == math.inf
        return
    whole, part = divmod(percentile / 100 * (len(known) - 1), 1)
    low, high = known[int(whole)], known[min(int(whole) + 1, len(known) - 1)]
    np.testing.assert_allclose(found, low + part * (high - low), rtol=1e-12)


def test_the_table_has_a_budget_for_every_prompt_from_responses_that_have_a_verdict():
    """Three prompts at a time; the lengths of prompt n are n + 1, n + 2, ..., of which only the even ones are right."""
    config = tiny(**FOUR_PROMPTS | {"rl.toggle.samples": 5, "rl.rollout.prompts": 3, "rl.toggle.percentile": 100.0})
    calls = []

    class Answers:
        async def run(self, step, groups):
            calls.append((step, [(group.purpose, *group.key) for group in groups]))
            for group in groups:
                lengths = [group.key[1] + 1 + sample for sample in range(len(group.trajectories))]
                group.trajectories = [response([length], reward=float(length % 2 == 0)) for length in lengths]
                group.trajectories[-1] = response([1000], "masked")

    prompts = list(TaskMixture(config.rl.tasks, 0).training_prompts())
    budgets = asyncio.run(sample_budgets(config, prompts, Answers(), print))
    np.testing.assert_array_equal(budgets, [4, 4, 6, 6])
    assert [len(keys) for _, keys in calls] == [3, 1] and {step for step, _ in calls} == {1}
    keys = [key for _, of_call in calls for key in of_call]
    assert len(set(keys)) == 4 and {purpose for purpose, _, _ in keys} == {"budget"}


def test_verdicts_of_the_policy_as_a_judge_have_no_budget():
    config = tiny(**FOUR_PROMPTS | {"rl.toggle.accuracy": 0.0})
    mixture = TaskMixture(config.rl.tasks, 0)
    rule = Toggle(config, mixture)
    rule.restore({"budgets": np.zeros(4)})
    for prompt, taken in ((mixture.prompt(0), True), (DrawnTask(CRITIC, mixture.prompt(0).task), False)):
        group = PromptGroup(-1, (1, 0), prompt, [response([5], reward=1.0)])
        assert rewarded(config, rule, 1, group)[0] == 1.0 - taken and rule.record(1, [group])["toggle/taken"] == taken


def test_advantages_come_of_the_toggled_rewards():
    config = tiny(**FOUR_PROMPTS | {"rl.updates": 1, "rl.toggle.accuracy": 0.75})
    mixture = TaskMixture(config.rl.tasks, 0)
    rule = Toggle(config, mixture)
    rule.restore({"budgets": np.full(4, 9.0)})
    responses = [response([length], reward=reward) for length, reward in ((8, 1.0), (9, 1.0), (10, 1.0), (2, 0.0))]
    group = PromptGroup(0, (1, 0), mixture.prompt(0), responses)

    for step, expected in ((1, [0.5, 0.5, -0.5, -0.5]), (2, [0.25, 0.25, 0.25, -0.75])):  # phases 0 and 1
        rewarded(config, rule, step, group)
        (samples,), _ = training_samples(config.rl, [group])
        assert [sample.advantage for sample in samples] == expected


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run of two steps that was resumed for a third one."""
    folder = tmp_path_factory.mktemp("toggle") / "run"
    assert train(tiny(**RUN, **{"train.steps": 2}), folder) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toggle_module, "sample_budgets", None)  # the table is never sampled again
        assert train(tiny(**RUN, **{"train.steps": 3}), folder) == 0
    return folder


def kept_budgets(workdir):
    checkpoints = Checkpoints(workdir, 2)
    return {step: checkpoints.extra(step)["budgets"] for step in checkpoints.steps()}


@pytest.mark.slow
def test_a_resumed_run_has_the_table_of_its_checkpoint_bit_for_bit(workdir):
    budgets = kept_budgets(workdir)
    assert list(budgets) == [2, 3] and budgets[2].shape == (4,)
    assert budgets[2].tobytes() == budgets[3].tobytes()
    assert np.isfinite(budgets[2]).any()


@pytest.mark.slow
def test_a_run_trains_on_the_toggled_rewards_of_its_trajectories(workdir):
    """The record, by hand from the trajectories on disk and the table of the checkpoint."""
    config = tiny(**RUN)
    prompts = list(TaskMixture(config.rl.tasks, 0).training_prompts())
    budgets = {prompt.task.id: budget for prompt, budget in zip(prompts, kept_budgets(workdir)[3], strict=True)}
    shares = []
    for record in read_metrics(workdir):
        groups = {}
        for trajectory in TrajectoryStore(workdir / "trajectories").read(record["step"]):
            groups.setdefault(trajectory.key[:2], []).append(trajectory)
        taken, flat, right, wrong = [], [], [], []
        for group in groups.values():
            raw = [trajectory.reward.value for trajectory in group]
            over = [trajectory.sampled_tokens > budgets[trajectory.task] for trajectory in group]
            holds = record["step"] % 2 == 1 and np.mean(raw) >= 0
            rewards = [0.0 if holds and is_over else r for r, is_over in zip(raw, over, strict=True)]
            taken += [now != before for now, before in zip(rewards, raw, strict=True)]
            flat.append(len(set(rewards)) == 1)
            for trajectory in group:
                (right if trajectory.reward.value >= 0 else wrong).append(trajectory.sampled_tokens)
        assert record["toggle/phase"] == (record["step"] - 1) % 2
        assert record["toggle/taken"] == np.mean(taken) and record["flat_groups"] == np.mean(flat)
        for name, lengths in (("length_right", right), ("length_wrong", wrong)):
            assert (name in record) == bool(lengths)
            np.testing.assert_allclose(record.get(name, 0.0), np.mean(lengths or [0.0]))
        shares.append(record["toggle/taken"])
    assert shares[0] > 0 and shares[1] == 0


def test_prompts_that_the_run_does_not_come_back_to_are_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"of 64 tasks in config.rl.tasks the run draws 16: lower their number, or"):
        train(tiny(**{"rl.toggle.period": 1}), tmp_path / "run")


def test_a_checkpoint_without_a_table_is_refused_in_one_line():
    config = tiny(**FOUR_PROMPTS)
    with pytest.raises(UserError, match=r"holds no budgets for config.rl.toggle.*use a new --workdir"):
        Toggle(config, TaskMixture(config.rl.tasks, 0)).restore({"drawn": 4, "waiting": []})
