"""Phases of one run: what each holds, what is refused, and what of them a checkpoint is tied to."""

import pytest

from k2jax.checkpoint.manager import check_config
from k2jax.config import defaults, from_json, load_experiment, phase, resolve, source, to_json
from k2jax.config.identity import fixed_keys
from k2jax.config.phases import phase_at, phase_named, run_phases
from tests.refusal import refused

LONG = ("data.sequence_length=64", "train.remat=full", "parallel.context=2", "model.yarn.factor=4")


def phased(**phases):
    """A configuration of 100 steps with two sources and these phases."""
    config = defaults("pretrain")
    config.data.sources.prose = source(kind="text", path="prose")
    config.train.steps = 100
    for name, fields in phases.items():
        config.phases[name] = phase(**fields)
    return config


def test_a_phase_is_a_whole_configuration_and_lasts_until_the_next_begins():
    config = resolve(
        phased(zero={}, long={"begin": 60, "overrides": LONG, "mixture": ("prose=3",)}, half={"begin": 40})
    )
    phases = run_phases(config)
    assert [(each.name, each.first, each.last) for each in phases] == [
        ("zero", 0, 40),
        ("half", 40, 60),
        ("long", 60, 100),
    ]
    long = phases[2].config
    assert (long.data.sequence_length, long.train.remat, long.parallel.context, long.model.yarn.factor) == (
        64,
        "full",
        2,
        4.0,
    )
    assert {name: each.weight for name, each in long.data.sources.items()} == {"prose": 3.0}
    assert phases[1].config.data == config.data and phases[2].tokens == 40 * 8 * 64
    assert [phase_at(config, step).name for step in (0, 1, 40, 41, 100, 900)] == [
        "zero",
        "zero",
        "zero",
        "half",
        "long",
        "long",
    ]
    assert from_json(to_json(config)) == config and phase_named(config, "half").first == 40
    with refused("no phase 'hlf'; did you mean 'half'"):
        phase_named(config, "hlf")


def test_a_run_without_phases_is_one_phase_and_is_tied_to_the_keys_that_it_was():
    config = resolve(defaults("pretrain"))
    [whole] = run_phases(config)
    assert whole.config is config and (whole.name, whole.first, whole.last) == ("", 0, config.train.steps)
    assert not any("phase" in key for key in fixed_keys(config))


def test_a_run_may_end_before_its_last_phases():
    config = phased(zero={}, later={"begin": 60})
    config.train.steps = 50
    config = resolve(config)
    assert [(each.name, each.last) for each in run_phases(config)] == [("zero", 50)]
    with refused("config.phases.later.begin is not before the end of the run"):
        phase_named(config, "later")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"begin": 0}, "must begin at different steps, the first at 0, not next at 0, zero at 0"),
        ({"overrides": ("data.sequence_lenght=4",)}, "'data.sequence_lenght' is no key .*did you mean"),
        ({"overrides": ("optimizer.name=muon",)}, "'optimizer.name' is no key that a phase may change"),
        ({"overrides": ("data.sequence_length",)}, "'data.sequence_length' must be KEY=VALUE"),
        ({"overrides": ("data.sequence_length=many",)}, "data.sequence_length must be int at least 2, not 'many'"),
        ({"overrides": ("data.sequence_length=1",)}, "in phase next: config.data.sequence_length must be at least 2"),
        ({"overrides": ("train.micro_batches=5",)}, "in phase next: .*micro-batches empty"),
        ({"overrides": ("train.remat=ful",)}, "in phase next: config.train.remat is 'ful'"),
        ({"overrides": ("parallel.data=2", "parallel.data=1")}, "overrides names parallel.data twice"),
        ({"mixture": ("prse=1",)}, "mixture: config.data.sources has no 'prse'; did you mean 'prose'"),
        ({"mixture": ("prose=0",)}, "in phase next: config.data.sources.prose.weight must be"),
        ({"rate": "linear"}, "rate linear and rate_to None do not go together"),
        ({"rate_to": 1e-3}, "rate schedule and rate_to 0.001 do not go together"),
        ({"rate": "constant"}, "config.phases.next.rate is constant, and config.phases.zero.rate is schedule"),
    ],
)  # fmt: skip
def test_mistakes_in_phases_are_one_line(fields, words):
    with refused(words):
        resolve(phased(zero={}, next={"begin": 50, **fields}))


def test_keys_that_nothing_reads_beside_phases_are_refused():
    config = phased(zero={"rate": "constant"})
    config.optimizer.schedule.decay_steps = 5
    with refused("optimizer.schedule has keys beside warmup_steps"):
        resolve(config)
    config = phased(zero={})
    config.stage = "rl"
    with refused("config.phases is for stage pretrain"):
        resolve(config)
    with refused("must begin at different steps, the first at 0, not late at 3"):
        resolve(phased(late={"begin": 3}))


def saved(config, step):
    return {"config": fixed_keys(config, step), "step": step}


def test_a_checkpoint_is_tied_to_the_phases_that_had_begun():
    """What comes later may change, be added or left out; so may meshes and rates at any time."""
    first, second = {"mixture": ("prose=1",)}, {"begin": 40, "overrides": LONG}
    config = resolve(phased(first=first, second=second))
    later = {"begin": 50, "overrides": LONG[1:]}
    for now in (
        phased(first=first),
        phased(first=first, second=later),
        phased(first=first, second=second, third={"begin": 70}),
    ):
        check_config(saved(config, 40), resolve(now), "run")
    elsewhere = {**second, "overrides": (LONG[0], "model.yarn.factor=4", "parallel.context=1")}
    check_config(saved(config, 41), resolve(phased(first=first, second=elsewhere)), "run")
    for now, key in (
        (phased(first=first), "phases.second.begin"),
        (phased(first=first, second=later), "phases.second.begin"),
        (phased(first=first, second={"begin": 40}), "phases.second.data.sequence_length"),
        (phased(first={}, second=second), "phases.first.sources"),
        (phased(first=first, new={"begin": 20}, second=second), "phases.new.begin"),
        (phased(), "phases.first.begin"),
    ):
        with refused(f"run: config.{key} is "):
            check_config(saved(config, 41), resolve(now), "run")
    with refused("run: config.phases.first.begin is None in the checkpoint and 0 here"):
        check_config(saved(resolve(phased()), 41), config, "run")


K2 = [("constant", 10e12), ("decay", 5.5e12), ("anneal", 400e9), ("long", 60e9)]
K25 = [("joint", 9e12), ("decay", 6e12), ("long", 500e9), ("longest", 200e9)]


@pytest.mark.parametrize(("file", "tokens"), [("k2_1t.py", K2), ("k2_5.py", K25)])
def test_reports_runs_have_their_tokens(file, tokens):
    """Kimi K2, section 2.5; Kimi K2.5, table 3, its 15T in two rates."""
    phases = run_phases(resolve(load_experiment(f"experiments/pretrain/{file}").get_config()))
    assert [each.name for each in phases] == [name for name, _ in tokens]
    assert [each.tokens for each in phases] == pytest.approx([each for _, each in tokens], rel=2e-3)
    assert [each.config.data.sequence_length for each in phases] == [4096] * (3 if file == "k2_1t.py" else 2) + (
        [32768] if file == "k2_1t.py" else [32768, 262144]
    )
