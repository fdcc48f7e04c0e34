"""What the trainer leaves out of an iteration, says and counts."""

from types import SimpleNamespace

import numpy as np
import pytest

from k2jax.agents.mixture import DrawnTask
from k2jax.agents.task import Task
from k2jax.rl.groups import PromptGroup, RewardTerm
from k2jax.rl.updates import PATIENCE, Trainer
from k2jax.trajectory import Node
from tests.refusal import refused
from tests.rl.tiny import tiny
from tests.rl.trees import sampled, single_turn


def trainer(notes, **overrides):
    """The trainer of a run that has no program."""
    sharding = SimpleNamespace(rows=[0, 1, 2, 3])
    program = SimpleNamespace(batch_sharding=lambda: sharding)
    config = tiny(**{"rl.updates": 1, **overrides})
    return Trainer(SimpleNamespace(program=program, config=config, note=notes.append, step=1))


def group(*answers, rewards=(1.0, 0.0)):
    task = Task("ab", "letter", ({"role": "user", "content": "ab"},), "share_of_low_bytes")
    return PromptGroup(
        0, (1, 0), DrawnTask("low", task), list(answers), terms=[RewardTerm("verifier", np.array(rewards))]
    )


def several_paths(rng):
    """Seven answers to seven conversations of one episode: 149 tokens."""
    trajectory = single_turn(rng)
    for turn in range(1, 8):
        seen = trajectory.add(Node.observed(-1, rng.integers(0, 50, 10)))
        trajectory.add(sampled(rng, seen, 10, turn))
    return trajectory


@pytest.mark.parametrize(("loss", "left_out"), [("k2", 1), ("k2.5", 0)])
def test_a_response_larger_than_a_row_is_left_out_and_counted_where_the_loss_needs_its_whole_sum(loss, left_out):
    notes, rng = [], np.random.default_rng(0)
    training = trainer(notes, **{"rl.loss.name": loss})
    packed = training.pack([group(several_paths(rng), single_turn(rng))])
    assert training.record().get("responses_too_large", 0) == left_out == len(notes)
    assert all("the task 'task' with 8 paths" in note and "data.sequence_length" in note for note in notes)
    masks = sum(row.targets.mask.sum() for row in packed[0].rows)
    assert masks == 4 + (0 if left_out else 74)


def many_turns(rng, turns=33):
    """One path of 2 tokens a turn: more turns than a quarter of a row, and fewer tokens than the row."""
    trajectory, node = single_turn(rng), -1
    trajectory.nodes.clear()
    for turn in range(turns):
        node = trajectory.add(Node.observed(node, rng.integers(0, 50, 1)))
        node = trajectory.add(sampled(rng, node, 1, turn))
    return trajectory


@pytest.mark.parametrize("loss", ["k2", "k2.5"])
def test_a_path_of_more_turns_than_a_row_has_entries_is_left_out_and_counted(loss):
    notes, rng = [], np.random.default_rng(0)
    training = trainer(notes, **{"rl.loss.name": loss, "data.sequence_length": 128})
    packed = training.pack([group(many_turns(rng, 33), many_turns(rng, 32))])
    assert training.record()["responses_too_large"] == 1 == len(notes)
    assert "1 paths of up to 66 tokens and 33 turns; raise config.data.sequence_length (4 tokens for" in notes[0]
    assert sum(row.targets.mask.sum() for row in packed[0].rows) == 32


def test_a_run_ends_where_no_response_fits_and_goes_on_where_one_does():
    notes, rng = [], np.random.default_rng(0)
    training = trainer(notes, **{"rl.loss.name": "k2"})
    large, mixed = (group(several_paths(rng), other(rng)) for other in (several_paths, single_turn))
    for _ in range(PATIENCE - 1):
        assert not training.pack([large])
    assert training.pack([mixed])
    for _ in range(PATIENCE - 1):
        assert not training.pack([large])
    with refused(f"nothing was trained on in {PATIENCE} iterations: 2 responses are larger than a row"):
        training.pack([large])
