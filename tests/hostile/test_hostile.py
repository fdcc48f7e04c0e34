"""The attacks' runner sees what it is there for, and a few attacks; all of them are a slow test."""

import subprocess
import sys

import pytest

from tests.hostile import git_attacks, runner, sandbox_attacks
from tests.hostile.__main__ import line, summary
from tests.hostile.attack import Outcome
from tests.hostile.harm import ATTACKS
from tests.hostile.runner import Result

FEW = [
    next(attack for attack in module.ATTACKS if words in attack.label)
    for module, words in ((git_attacks, "hooks"), (sandbox_attacks, "leases on files"))
]


@pytest.fixture(scope="module")
def results():
    """Of an attack that succeeds, made once, and of some that do not, which may be made again for a stall alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "TRIES", 1)
        harmful = list(runner.run(ATTACKS, ["bwrap"]))
    return [*harmful, *runner.run(FEW, ["bwrap"])]


def test_what_an_attack_costs_is_seen(results):
    result = results[0]
    assert 340e6 < result.growth < 400e6 and result.stall - result.control > 0.5 and result.errors_of_servers == 1
    assert result.problem == f"memory grew by {result.growth / 1e6:.0f} MB" and result.problem in line(result)
    assert summary(results)[-2].split()[-2:] == ["2,", "1"]


def test_a_few_attacks_cost_little(results):
    assert [result.problem for result in results[1:]] == [""] * len(FEW)


@pytest.mark.parametrize(
    ("figures", "problem"),
    [
        ({}, ""),
        ({"growth": 301e6}, "memory grew by 301 MB"),
        ({"stall": 0.7, "control": 0.1}, "stood still for 0.70 s"),
        ({"stall": 0.7, "control": 0.3}, ""),
        ({"outcome": Outcome(statuses=(500, 200, 503))}, "2 answers of 5xx"),
        ({"outcome": Outcome("it was read")}, "it was read"),
    ],
)
def test_each_limit_is_kept(figures, problem):
    result = Result(**{"attack": ATTACKS[0], "backend": "", "outcome": Outcome()} | figures)
    assert problem in result.problem and bool(problem) == bool(result.problem)


@pytest.mark.slow
def test_all_attacks_cost_little_on_every_backend():
    done = subprocess.run([sys.executable, "-m", "tests.hostile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
