"""Stored trajectories as training data: the ids that were sampled, weighted where they were."""

from collections import Counter
import dataclasses

import numpy as np
import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.vocabulary import MEDIA_TOKENS
from k2jax.text import byte_tokenizer
from k2jax.text.media import MEDIA_PAD
from k2jax.trajectory import Node, Reward, Trajectory, TrajectoryStore
from tests.data.corpora import data_config
from tests.data.test_conversations import conversations_of
from tests.refusal import refused

BYTES = byte_tokenizer()


def sampled(prompt, answers, value=1.0, sample=0):
    """A prompt with a branch for each answer; ids are not those of any text's encoding."""
    trajectory = Trajectory("t", "d", (0, prompt, sample), status="finished", reward=Reward(value))
    root = trajectory.add(Node.observed(-1, [0, 100 + prompt, 101]))
    for turn, ids in enumerate(answers):
        sampled = np.ones(len(ids), np.bool_), np.full(len(ids), -0.5, np.float32)
        versions = np.zeros(len(ids), np.int64)
        trajectory.add(Node(root, np.array(ids, np.int32), *sampled, versions=versions, turn=turn, finish="stop"))
    return trajectory


def prepared(folder, trajectories, filters=(), tokenizer=BYTES, log=None, **fields):
    """The shards of a store of two files with these trajectories."""
    store = TrajectoryStore(folder / "trajectories")
    for step in (0, 1):
        store.write(step, trajectories[step::2])
    source = SourceConfig(kind="trajectories", path=str(store.folder), filters=filters)
    return prepare_shards("s", data_config(folder / "cache", {"s": source}, **fields), tokenizer, log=log)


def test_what_was_sampled_is_what_is_trained_on(tmp_path):
    trajectories = [sampled(prompt, [[7, 7, prompt, 1]]) for prompt in range(20)]
    train, held_out = conversations_of(prepared(tmp_path, trajectories), 16)
    expected = [([0, 100 + prompt, 101, 7, 7, prompt, 1], [0.0] * 3 + [1.0] * 4) for prompt in range(20)]
    assert sorted(train + held_out) == sorted(expected)


def deep(prompt):
    """An answer after which two others follow: the second path trains on its own end alone."""
    trajectory = sampled(prompt, [[7, prompt, 1]])
    for turn in (1, 2):
        shown = trajectory.add(Node.observed(1, [50 + turn]))
        for node in sampled(prompt, [[8, turn, 1]]).nodes[1:]:
            trajectory.add(dataclasses.replace(node, parent=shown, turn=turn))
    return trajectory


def test_all_answers_to_a_prompt_are_on_one_side_of_the_split(tmp_path):
    splits = conversations_of(prepared(tmp_path, [deep(prompt) for prompt in range(40)], held_out=0.5), 16)
    for split in splits:  # the first path of a trajectory trains on both of its answers, the second on its own end
        assert sorted({(len(ids), sum(weights)) for ids, weights in split}) == [(10, 3.0), (10, 6.0)]
    counts = [Counter(ids[1] for ids, _ in split) for split in splits]
    assert set(counts[0].values()) == set(counts[1].values()) == {2} and not counts[0].keys() & counts[1].keys()


def test_a_trajectory_that_a_filter_refuses_is_no_data(tmp_path):
    right = [sampled(prompt, [[5, 1]]) for prompt in range(10)]
    wrong = [sampled(prompt, [[6, 1]], value=0.0) for prompt in range(10)]
    cut = [dataclasses.replace(sampled(prompt, [[8, 8]]), status="truncated") for prompt in range(10)]
    counts = {}
    for filters in ((), ("correct_answer",), ("finished",)):
        folder = tmp_path / "-".join(("f", *filters))
        folder.mkdir()
        shards = prepared(folder, right + wrong + cut, filters)
        answers = [ids[3] for split in conversations_of(shards, 16) for ids, _ in split]
        counts[filters] = tuple(answers.count(token) for token in (5, 6, 8))
    assert counts == {(): (10, 0, 0), ("correct_answer",): (10, 0, 10), ("finished",): (10, 10, 0)}


@pytest.mark.parametrize(
    ("ids", "reason"), [([5] * 20, "more than the 16 of config.data.sequence_length"), ([300, 1], "the token 300")]
)
def test_an_unusable_trajectory_is_counted_with_its_name(tmp_path, ids, reason):
    shards = prepared(tmp_path, [sampled(prompt, [[5, 1]]) for prompt in range(8)] + [sampled(40, [ids])])
    skipped = shards.manifest["skipped"]
    assert skipped["count"] == 1 and reason in skipped["first"][0] and "trajectory (0, 40, 0)" in skipped["first"][0]


def test_an_unknown_filter_and_an_empty_folder_are_refused_in_one_line(tmp_path):
    with refused(r"no trajectory filter 'correct'.*did you mean"):
        prepared(tmp_path, [sampled(prompt, [[5, 1]]) for prompt in range(4)], ("correct",))
    (tmp_path / "empty").mkdir()
    source = SourceConfig(kind="trajectories", path=str(tmp_path / "empty"))
    with refused(r"holds no \*.k2t files"):
        prepare_shards("s", data_config(tmp_path / "cache", {"s": source}), BYTES)


def test_trajectories_that_show_images_are_reported_and_not_trained_on_blindly(tmp_path):
    tokenizer = byte_tokenizer(MEDIA_TOKENS)
    pad = tokenizer.special_id(MEDIA_PAD)
    shown = [sampled(prompt, [[5, 1]]) for prompt in range(6)]
    for trajectory in shown[:3]:
        trajectory.nodes[0] = dataclasses.replace(trajectory.nodes[0], tokens=np.array([0, pad, 101], np.int32))
    wrote = [sampled(prompt, [[pad, 1]]) for prompt in range(6, 8)]  # a pad that the model wrote is no image
    shards = prepared(tmp_path, shown + wrote, tokenizer=tokenizer, log=(lines := []).append)
    assert shards.train.documents + shards.held_out.documents == 5
    assert sum("it shows images" in line for line in lines) == 3
