"""What a lost host costs, against arithmetic by hand; bytes of a run against the arrays of its training state."""

import dataclasses
import json
import math
import re
import sys

import jax
import pytest

from k2jax import cli
from k2jax.agents.collect import wire
from k2jax.aot import __main__ as command
from k2jax.aot import compiling, topology
from k2jax.aot.cost.host_loss import CONSTANTS, RunShape, host_losses, with_assumptions
from k2jax.aot.cost.run_shape import EngineSlices, run_shape
from k2jax.aot.weight_sync import compile_phases
from k2jax.config import defaults, resolve
from k2jax.processes import group, initialize
from k2jax.rl.engines import engine_pool
from k2jax.train.program import Program
from tests.refusal import refused

SHAPE = RunShape(
    trainer_hosts=100,
    state_bytes=20e9,
    host_bandwidth=40e9,
    training_seconds=30.0,
    rollout_seconds=50.0,
    interval=8,
    engines=3,
    engine_hosts=4,
    weight_bytes=80e9,
    workers=50,
)
WORDS = [
    *("node=100", "pods=10", "process=7", "compile=5", "heartbeat=9", "poll=1", "leave=3", "engine=40", "worker=50"),
    *("host_read=1e9", "bucket_read=10e9", "host_network=2e9", "episode=60", "host_mtbf=2400"),
]


def test_every_loss_by_hand():
    trainer, engine, worker = host_losses(SHAPE, with_assumptions(WORDS))
    assert trainer.detection == 9 + 1 and trainer.restart == 3 + 100 + 10 + 7 + 5
    # 100 hosts read 2 TB: 20 s were each host's limit, 200 s is the bucket's; then 20 GB at 40 GB/s to the chips.
    assert trainer.restore == pytest.approx(200 + 0.5)
    assert trainer.repeated == 4 * (30 + 50)
    assert trainer.seconds == pytest.approx(10 + 125 + 200.5 + 320)
    assert trainer.per_day == pytest.approx(1.0) and trainer.share == pytest.approx(655.5 / 86400)
    assert engine.detection == 40 and engine.restart == 100 + 10 + 7 + 5 and engine.repeated == 0
    assert engine.restore == pytest.approx(20 / 2 + 20 / 40)  # a host's quarter of the weights
    assert engine.hosts == 12 and engine.per_day == pytest.approx(0.12)
    assert engine.share == pytest.approx(0.12 * 172.5 / (3 * 86400))
    assert (worker.detection, worker.restart, worker.restore, worker.repeated) == (50, 100 + 10 + 7, 0, 30)
    assert worker.share == pytest.approx(0.5 * 197 / (50 * 86400))


def test_what_decides_each_loss():
    constants = with_assumptions(WORDS)
    few = dataclasses.replace(SHAPE, trainer_hosts=5)
    assert host_losses(few, constants)[0].restore == pytest.approx(20 + 0.5)  # now each host's limit
    kept = dataclasses.replace(SHAPE, groups_kept=True)
    assert host_losses(kept, constants)[0].repeated == 4 * 30 + 30  # complete groups are not sampled again
    alone = dataclasses.replace(SHAPE, engines=0, workers=0)
    assert [loss.what for loss in host_losses(alone, constants)] == ["a trainer's host"]


def test_the_projects_own_figures_are_its_constants():
    own = {name: constant.value for name, constant in CONSTANTS.items() if constant.source.startswith("k2jax.")}
    assert own == {
        "heartbeat": initialize.HEARTBEAT_SECONDS,
        "poll": group.POLL_SECONDS,
        "leave": group.LEAVE_SECONDS,
        "engine": engine_pool.SILENT_SECONDS,
        "worker": wire.MACHINE_SECONDS,
    }
    assert all(each.source.startswith("assumed") for name, each in CONSTANTS.items() if name not in own)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nodes=1", "names no constant; did you mean 'node'?"),
        ("node", "needs a number [s], as in node=300"),
        ("node=-1", "needs a number [s]"),
        ("node=nan", "needs a number [s]"),
        ("host_read=0", "needs a number [bytes/s]"),
        ("host_mtbf=inf", "needs a number [h]"),
    ],
)
def test_assumptions_that_are_none(word, message):
    with refused(re.escape(message)):
        with_assumptions([word])


def run(*words):
    """What the command prints, as JSON, and its exit code."""
    values, _ = cli.parse(["aot", "--mode=restart", *words], command.define, "")
    return command.main(values)


def test_the_command_counts_the_bytes_of_the_training_state(monkeypatch, capsys):
    flags = ["--config=experiments/rl/nano.py", "--topology=v5p:2x2x2", "--config.rl.updates=3"]
    flags += ["--config.checkpoint.every=7", "--workers=2", "--engines=2", "--engine_topology=v5p:2x2x1"]
    flags += ["--config.rl.engines.placement=separate"]
    monkeypatch.setattr(sys, "argv", ["aot", *flags])
    assert run(*flags, "--rollout_seconds=5", "--assume=node=0", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    config = compiling.for_tpu(cli.config_of(cli.parse(sys.argv, command.define, "")[0]))
    state, _ = Program(config, topology.devices("v5p:2x2x2")).abstract()
    stored = sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves((state.params, state.opt_state))
    )
    shape = printed["run"]
    assert shape["trainer_hosts"] == 2 and shape["engine_hosts"] == 1 and shape["interval"] == 7
    assert 2 * shape["state_bytes"] == pytest.approx(stored, rel=0.02)
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    assert shape["weight_bytes"] == pytest.approx(2 * parameters, rel=0.02)
    once = run_shape(
        dataclasses.replace(config, rl=dataclasses.replace(config.rl, updates=1)), "v5p:2x2x2", EngineSlices(), 0
    )
    assert shape["training_seconds"] == pytest.approx(3 * once.training_seconds)
    trainer, engine, worker = printed["losses"]
    assert trainer["repeated"] == pytest.approx(3.5 * (shape["training_seconds"] + 5))
    assert trainer["seconds"] == pytest.approx(sum(trainer[k] for k in ("detection", "restart", "restore", "repeated")))
    assert (engine["hosts"], worker["hosts"]) == (2, 2) and printed["constants"]["node"]["source"] == "--assume"
    assert run(*flags) == 0
    text = capsys.readouterr().out
    assert "nothing was run" in text and all(f"\n{name} " in text for name in CONSTANTS)


def test_engines_and_workers_belong_to_reinforcement_learning():
    config = resolve(defaults("pretrain", model="nano"))
    for engines, workers in ((EngineSlices(1), 0), (EngineSlices(), 1)):
        with refused("are for stage rl, not for stage pretrain"):
            run_shape(config, "v5p:2x2x1", engines, workers)


def test_separate_engines_and_the_switch_exclude_each_other():
    config = resolve(defaults("rl", model="nano"))
    with refused("--engines are those of config.rl.engines.placement separate"):
        run_shape(config, "v5p:2x2x1", EngineSlices(1), 0)
    apart = dataclasses.replace(config.rl.engines, placement="separate")
    with refused("config.rl.engines.placement separate has no switch"):
        compile_phases(dataclasses.replace(config, rl=dataclasses.replace(config.rl, engines=apart)), "v5p:2x2x1")
