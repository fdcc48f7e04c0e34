"""Stored episodes with images as training data: the ids that were sampled, and the images shown between them."""

import dataclasses

import numpy as np

from k2jax.config import defaults, resolve, source
from k2jax.config.presets import vision_preset
from k2jax.data.images.corpus import prepare_visual
from k2jax.data.images.placement import PatchRows
from k2jax.data.images.processor import ImageProcessor
from k2jax.data.training_data import ImageShape, prepare_data
from k2jax.text.chat import ChatBuilder
from k2jax.trajectory import Reward, TrajectoryStore
from tests.refusal import refused
from tests.rl.test_images import CHAT, PAD, TOKENIZER, asked, picture
from tests.rl.test_images import episode as recorded

VISION = vision_preset("nano_vision")
PROCESSOR = ImageProcessor(VISION)


def episode(first, second, sample=0, value=1.0):
    trajectory, *_ = recorded(first, second, sample)
    assert trajectory.status == "finished", trajectory.error
    trajectory.reward = Reward(value)
    return trajectory


def data_config(folder, **fields):
    config = defaults("sft", model="micro")
    config.data.sources = {"sampled": source(kind="image_trajectories", path=str(folder / "trajectories"), **fields)}
    config.data.tokenizer.update({"kind": "bytes", "media": True})
    config.data.update({"chat_format": "plain", "sequence_length": 128, "held_out": 0.3})
    config.data.cache_dir, config.data.images.patches = str(folder / "cache"), 72
    config.model.vocab, config.model.vision.layers = TOKENIZER.vocab_size, 1
    return resolve(config).data


def corpus_of(folder, trajectories, **fields):
    TrajectoryStore(folder / "trajectories").write(0, trajectories)
    return prepare_visual("sampled", data_config(folder, **fields), TOKENIZER, VISION)


def test_ids_are_those_sampled_and_every_image_stands_where_it_was_shown(tmp_path):
    kept = [episode(first, first + 1, sample) for first in (0, 2, 4, 6) for sample in (0, 1)]
    corpus = corpus_of(tmp_path, [*kept, episode(8, 9, value=0.0)])
    assert len(corpus.sizes) == len(kept) and corpus.manifest["skipped"]["count"] == 0
    for number, trajectory in enumerate(kept):
        rendered = corpus.renderer.render(corpus.conversation(number))
        path = trajectory.path(trajectory.leaves()[0])
        np.testing.assert_array_equal(rendered.ids, trajectory.path_tokens(path[-1]))
        sampled = np.concatenate(
            [np.full(len(trajectory.nodes[i].tokens), trajectory.nodes[i].turn >= 0) for i in path]
        )
        np.testing.assert_array_equal(rendered.trained, sampled)
        first = trajectory.key[1]
        for chunk, shown in zip(rendered.chunks, (first, first + 1), strict=True):
            np.testing.assert_array_equal(chunk.pixels, PROCESSOR.image(picture(shown)).pixels)
        seen = np.flatnonzero(rendered.feature >= 0)
        np.testing.assert_array_equal(rendered.feature[seen], np.arange(sum(c.features for c in rendered.chunks)))
        np.testing.assert_array_equal(seen, np.flatnonzero((rendered.ids == PAD) & ~sampled))
        assert (rendered.ids[sampled] == PAD).sum() == 4  # which the model wrote
    held_out = corpus.sizes["held_out"].reshape(4, 2)
    assert (held_out[:, 0] == held_out[:, 1]).all() and 0 < held_out.sum() < 8  # both answers to a prompt on one side


def test_a_path_that_no_row_holds_is_reported_and_a_limit_of_records_holds(tmp_path):
    large = episode(0, 1)
    message = large.nodes[0].message
    third = {**message, "content": [*message["content"], *asked(picture(2), "")["content"][:1]]}
    builder = ChatBuilder(CHAT)
    builder.add(PROCESSOR.prepare([third]).messages[0])
    builder.open_assistant()
    large.nodes[0] = type(large.nodes[0]).observed(-1, builder.tokens, third)
    corpus = corpus_of(tmp_path, [large, *(episode(first, first + 1) for first in (2, 4, 6))], max_documents=2)
    assert len(corpus.sizes) == 2 and "108 patches, more than the 72" in corpus.manifest["skipped"]["first"][0]


def test_paths_of_a_trajectory_are_on_one_side_of_the_split(tmp_path):
    """Its second leaf trains on its own end alone, after an answer that the first one trains on."""
    trajectories = [episode(first, first + 1) for first in range(0, 12, 2)]
    for trajectory in trajectories:
        shown, answered = trajectory.nodes[2:4]
        other = trajectory.add(dataclasses.replace(shown))
        trajectory.add(dataclasses.replace(answered, parent=other, turn=2))
    corpus = corpus_of(tmp_path, trajectories)
    held_out = corpus.sizes["held_out"].reshape(6, 2)
    assert (held_out[:, 0] == held_out[:, 1]).all() and 0 < held_out.sum() < 12


def test_batches_hold_the_images(tmp_path):
    TrajectoryStore(tmp_path / "trajectories").write(0, [episode(first, first + 1) for first in range(0, 16, 2)])
    images = ImageShape(VISION, PatchRows(2, 2, 72, 1))
    data = prepare_data(data_config(tmp_path), batch_size=2, seed=0, steps=2, images=images)
    batch = data.loader.batch(0)
    assert (np.asarray(batch.media) >= 0).sum() == 4 * PROCESSOR.image(picture(0)).features
    weights, tokens = np.asarray(batch.targets["weights"]), np.asarray(batch.tokens)
    assert (tokens[weights > 0] == 70).sum() == 4
    with refused("the model no vision"):
        prepare_data(data_config(tmp_path), batch_size=2, seed=0, steps=2)
