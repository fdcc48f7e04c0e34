"""No value that is not finite is saved, wherever in the state it appears, and what the run then advises helps."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import pack_row, stack_rows
from k2jax.checkpoint import Checkpoints, committed_steps
from k2jax.errors import UserError
from k2jax.train.run import NON_FINITE, Run
from k2jax.train.state import non_finite_leaves
from k2jax.train.workdir import lock_workdir
from tests.train.programs import shared_program
from tests.train.tiny import tiny, write_corpus

SOME = (
    "params.moe.router_bias",
    r"optimizer.*mu.*moe.*q_a$",  # Muon's momentum
    r"optimizer.*nu.*embed",  # an embedding's second moment
)
"""Patterns of leaves that the default tests corrupt; the slow one takes every leaf."""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return tiny(folder, **{"checkpoint.every": 2, "checkpoint.keep": 2, "train.steps": 6, "log.every": 1})


@pytest.fixture(scope="module")
def program(config):
    return shared_program(config)


@pytest.fixture(scope="module")
def batch(config):
    rng = np.random.default_rng(0)
    rows = [pack_row([rng.integers(0, config.model.vocab, 20)], 32) for _ in range(config.train.batch_size)]
    return stack_rows(rows)


def names(program) -> list[str]:
    state = jax.eval_shape(program.init)
    leaves, _ = jax.tree_util.tree_flatten_with_path({"params": state.params, "optimizer": state.opt_state})
    floats = [path for path, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path in floats]


def with_nan(state, name):
    """The state with one NaN, in the last place of a leaf."""

    def visit(path, leaf):
        here = jax.tree_util.keystr(path, simple=True, separator=".") == name
        return leaf.at[(-1,) * leaf.ndim].set(jnp.nan) if here else leaf

    tree = jax.tree_util.tree_map_with_path(visit, {"params": state.params, "optimizer": state.opt_state})
    return state.replace(params=tree["params"], opt_state=tree["optimizer"])


def run_to_the_end(program, workdir, batch, poison=None, at=3) -> int:
    """Trains on one batch; at the beginning of step ``at`` a leaf is corrupted."""
    with lock_workdir(workdir, program.config) as path, Run(program, path, {}) as run:
        for step in run.steps():
            if poison and step == at:
                run.state = with_nan(run.state, poison)
            run.update([batch])
            run.log(step, {})
            run.save_when_due(step)
    return run.exit_code


def check(program, workdir, batch, name, capsys, at=3):
    assert run_to_the_end(program, workdir, batch, name, at) == NON_FINITE
    told = " ".join(capsys.readouterr().out.split())
    assert f"{name} was not when it began" in told, told
    layout, checkpoints = program.checkpoint_layout(), Checkpoints(workdir)
    kept = checkpoints.steps()
    assert kept == [step for step in (2, 4) if step < at]
    for step in kept:
        params, optimizer = layout.load(*checkpoints.restore(step, *layout.abstract))
        assert not non_finite_leaves(program.init().replace(params=params, opt_state=optimizer))
    checkpoints.close()
    assert f"run again to go on from step {kept[-1]}" in told if kept else "run again from the start" in told


@pytest.mark.parametrize("pattern", SOME)
def test_a_nan_in_the_state_stops_the_run_and_is_not_saved(config, program, batch, pattern, tmp_path, capsys):
    [name] = [name for name in names(program) if re.search(pattern, name)][:1]
    check(program, tmp_path / "run", batch, name, capsys)
    assert run_to_the_end(program, tmp_path / "run", batch) == 0  # what was advised: run again
    assert committed_steps(tmp_path / "run") == [4, 6]


@pytest.mark.slow
def test_a_nan_in_any_leaf_stops_the_run_and_is_not_saved(config, program, batch, tmp_path, capsys):
    for number, name in enumerate(names(program)):
        workdir = tmp_path / str(number)
        check(program, workdir, batch, name, capsys, at=1 + number % 5)
        assert run_to_the_end(program, workdir, batch) == 0
        shutil.rmtree(workdir)


def test_a_checkpoint_that_is_not_finite_is_refused(config, program, tmp_path):
    """Written by a version that did not look; the older step is named."""
    layout, state = program.checkpoint_layout(), program.init()
    checkpoints = Checkpoints(tmp_path / "run")
    for step, one in ((1, state), (2, with_nan(state, "params.embed"))):
        checkpoints.save(step, *layout.save(one.params, one.opt_state), {"identity": {}})
    checkpoints.close()
    with pytest.raises(UserError, match=r"params\.embed is not finite.*go on from step 1, which is whole"):
        Run(program, tmp_path / "run", {})


def test_what_is_advised_after_weights_were_destroyed_helps(program, batch, tmp_path, capsys):
    """Finite weights with which no step is finite, as too high a learning rate leaves them."""
    workdir, layout = tmp_path / "run", program.checkpoint_layout()
    state = program.init()
    checkpoints = Checkpoints(workdir)
    for step, scale in ((1, 1.0), (2, 1e30)):
        params = jax.tree.map(lambda leaf, scale=scale: leaf * scale, state.params)
        checkpoints.save(step, *layout.save(params, state.opt_state), {"identity": {}})
    checkpoints.close()
    assert run_to_the_end(program, workdir, batch) == NON_FINITE
    told = "".join(capsys.readouterr().out.split())
    assert "movethecheckpointawaytogoonfromstep1." in told and f"{workdir}/checkpoints/2:" in told
    (workdir / "checkpoints" / "2").rename(tmp_path / "away")
    assert run_to_the_end(program, workdir, batch) == 0


@pytest.mark.parametrize("token", [-1, 300, 60_000])
def test_tokens_outside_the_vocabulary_are_refused(program, batch, tmp_path, token):
    wrong = batch.replace(tokens=batch.tokens.copy())
    wrong.tokens[2, 7] = token
    with (
        lock_workdir(tmp_path / "run", program.config) as path,
        pytest.raises(UserError, match=rf"the token {token}, and config\.model\.vocab is 300"),
        Run(program, path, {}) as run,
    ):
        run.update([wrong])
