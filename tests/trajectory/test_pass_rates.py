"""Tasks by how often a model solves them: rates of stored samples, and the training tasks that are kept by them."""

import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.mixture import TaskMixture
from k2jax.config import defaults, resolve, task
from k2jax.errors import UserError
from k2jax.trajectory import Reward, Trajectory
from k2jax.trajectory.pass_rates import moderate, pass_rates

TASKS = load_tasks("characters", ("count=5",))
SAMPLES = [[0, 0], [1, 0], [1, 1], [0.5, 1, None], []]


def sampled():
    for each, rewards in zip(TASKS, SAMPLES, strict=True):
        for reward in rewards:
            yield Trajectory(
                each.id, each.domain, (0, 0, 0), reward=None if reward is None else Reward(reward), status="finished"
            )


def test_a_rate_is_the_share_of_right_samples_of_those_with_a_verdict():
    rates = pass_rates(sampled())
    assert [rates[each.domain][each.id] for each in TASKS[:4]] == [0, 0.5, 1, 0.5]
    assert sum(map(len, rates.values())) == 4
    assert moderate(TASKS, rates, 0.1, 0.9) == [TASKS[1], TASKS[3]]
    assert moderate(TASKS, rates, 0, 1) == TASKS[:4]


def mixture(path, **options):
    config = defaults("rl")
    config.rl.tasks = {"some": task(dataset="characters", options=("count=5",), pass_rates=str(path), **options)}
    return TaskMixture(resolve(config).rl.tasks, 0)


def test_a_class_of_tasks_trains_on_those_of_moderate_difficulty(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(pass_rates(sampled())))
    assert list(mixture(path)) == [TASKS[1], TASKS[3]]
    assert list(mixture(path, pass_band=(0.6, 1.0))) == [TASKS[2]]
    held_out = [each.task for each in mixture("").held_out(20)]
    assert [each.task for each in mixture(path).held_out(20)] == held_out  # of which there are no rates


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (None, {}, "cannot read the pass rates"),
        ("[1]", {}, "holds no pass rates"),
        ('{"add3": {"a": 2}}', {}, r"a pass rate outside \[0, 1\]"),
        ("{}", {}, "rl.tasks.some.pass_rates leaves none of 5 tasks"),
        ("{}", {"pass_band": (0.9, 0.1)}, "rl.tasks.some.pass_band .* must be"),
        ("{}", {"pass_band": (0.9,)}, "rl.tasks.some.pass_band .* must be"),
    ],
)
def test_rates_that_are_none_or_leave_nothing_are_refused_in_one_line(tmp_path, text, options, words):
    path = tmp_path / "rates.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=words) as error:
        mixture(path, **options)
    assert "\n" not in str(error.value)
