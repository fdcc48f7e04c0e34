"""Messages with images and video: tokens against renderers and transformers, patches, and pads that fit features."""

from __future__ import annotations

import base64
import re
import types

import numpy as np
from PIL import Image
import pytest
from transformers.models.kimi_k25.processing_kimi_k25 import Kimi_K25Processor
from transformers.video_utils import VideoMetadata

from k2jax.config.schema import ImagesConfig, VisionConfig
from k2jax.data.images import processor
from k2jax.data.images.frames import Clip, read_clip, read_frames, sampled_frames
from k2jax.data.images.patch_packing import pack_chunks
from k2jax.data.images.places import MediaPlaces
from k2jax.data.images.processor import ImageProcessor, feature_index, run_processor
from k2jax.data.images.reading import ImageError
from k2jax.errors import UserError
from k2jax.text import ChatBuilder
from k2jax.text.media import MEDIA_PAD
from tests.data.images.hostile import encoded, movie
from tests.refusal import refused
from tests.text import kimi
from tests.text.test_thinking_chat import CHAT, renderer, tokenizer

PROCESSOR = ImageProcessor(VisionConfig(patch=4))
ROW = run_processor(VisionConfig(patch=4), ImagesConfig(patches=64))
PAD = tokenizer().special_id(MEDIA_PAD)


def picture(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def conversation():
    url = "data:image/png;base64," + base64.b64encode(encoded(picture(8, 16))).decode()
    look = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": url}}, " and ",
            {"type": "image", "image": picture(24, 8)}, {"type": "text", "text": "\nWhat is it?"}]  # fmt: skip
    return [
        {"role": "user", "content": look},
        {"role": "assistant", "content": "Noise."},
        {"role": "user", "content": [{"type": "image", "image": encoded(picture(8, 8))}]},
    ]


def rendered(messages):
    builder = ChatBuilder(CHAT)
    for message in messages:
        builder.add(message)
    return builder.tokens


def test_images_are_written_as_renderers_writes_them_with_a_pad_for_each_feature():
    messages = conversation()
    prepared = PROCESSOR.prepare(messages)
    tokens = rendered(prepared.messages)
    assert [chunk.grid for chunk in prepared.chunks] == [(1, 4, 2), (1, 2, 6), (1, 2, 2)]
    assert tokens.count(PAD) == 2 + 3 + 1
    for message in messages:
        if message["role"] == "user":
            message["content"] = [{"type": "text", "text": p} if isinstance(p, str) else p for p in message["content"]]
    oracle = renderer().render(messages, process_multimodal=False)
    ours = re.sub(rf"(?:{re.escape(MEDIA_PAD)})+", MEDIA_PAD, kimi.text_of(tokens, tokenizer()))
    # An answer of the past without reasoning is the same text to both.
    assert ours == kimi.text_of(list(oracle.token_ids), tokenizer())


@pytest.mark.parametrize("count", range(1, 10))
def test_clips_are_written_as_transformers_writes_them(count):
    times = [0.5 * frame + 3725.25 for frame in range(count)]
    clip = Clip([picture(8, 16, seed) for seed in range(count)], times)
    prepared = PROCESSOR.prepare([{"role": "user", "content": [{"type": "video", "video": clip}, "?"]}])
    assert [chunk.grid[0] for chunk in prepared.chunks] == [4] * (count // 4) + ([count % 4] if count % 4 else [])
    grid = np.array([chunk.grid for chunk in prepared.chunks])
    metadata = VideoMetadata(count, fps=4, frames_indices=[int(4 * time) for time in times])
    sizes = types.SimpleNamespace(merge_size=2, temporal_patch_size=4)
    inputs = {"num_chunks_per_video": [len(grid)], "video_grid_thw": grid, "video_metadata": [metadata]}
    oracle = types.SimpleNamespace(video_processor=sizes, video_token=MEDIA_PAD)
    expected = Kimi_K25Processor.replace_video_token(oracle, inputs, 0)
    text = kimi.text_of(rendered(prepared.messages), tokenizer())
    assert text == f"<|im_user|>user<|im_middle|>{expected}?<|im_end|>"
    assert expected.startswith("01:02:05.250<|media_begin|>")


def test_frames_of_a_list_are_read_as_images_are():
    frames = [picture(8, 16, seed) for seed in range(5)]
    urls = ["data:image/png;base64," + base64.b64encode(encoded(frame)).decode() for frame in frames]
    expected = PROCESSOR.prepare([{"content": [{"type": "video", "video": Clip(frames, [0, 0.5, 1, 1.5, 2])}]}])
    for given in (frames, urls, tuple(encoded(frame) for frame in frames)):
        prepared = PROCESSOR.prepare([{"content": [{"type": "video", "video": given, "fps": 2}]}])
        assert prepared.messages == expected.messages
        for chunk, other in zip(prepared.chunks, expected.chunks, strict=True):
            np.testing.assert_array_equal(chunk.pixels, other.pixels)


def test_lists_that_are_no_video_are_refused():
    frames = [picture(8, 8), 5]
    for video, fps, words in (
        ([picture(8, 8)], float("nan"), "frames per second in fps"),
        (frames, 2, "frame 2 of the video must be a path, a URL, bytes or an image, not 5"),
        ([picture(8, 8), picture(8, 16)], 2, "must have one size"),
    ):
        with refused(words):
            PROCESSOR.prepare([{"content": [{"type": "video", "video": video, "fps": fps}]}])


def test_frames_are_sampled_twice_a_second_with_the_first_and_the_last():
    assert sampled_frames(10, 4.0).tolist() == [0, 2, 4, 7, 9]
    assert sampled_frames(3, 1.0).tolist() == [0, 1, 2]  # never more than there are
    assert sampled_frames(1, 30.0).tolist() == [0]
    assert sampled_frames(300, 30.0).tolist()[:2] == [0, 16] and len(sampled_frames(300, 30.0)) == 20


def test_a_number_of_frames_is_refused_before_the_first_is_read():
    def refuse(count):
        raise UserError(f"{count} frames")

    with refused("^3 frames$"):
        read_frames(["a"] * 6, 4, None, refuse)


def test_a_video_file_gives_its_sampled_frames_with_their_times():
    clip = read_clip(movie())
    assert list(clip.times) == [0, 6 / 8, 11 / 8]
    grey = [np.asarray(frame).mean() for frame in clip.frames]
    assert np.abs(np.array(grey) - [0, 120, 220]).max() < 8
    chunks = PROCESSOR.clip(clip)
    assert [chunk.grid for chunk in chunks] == [(3, 4, 8)]
    means = chunks[0].pixels.reshape(3, -1).mean(1)
    assert np.abs(means - (np.array([0, 120, 220]) / 127.5 - 1)).max() < 0.1


def test_images_are_opened_from_paths_only_where_that_is_allowed(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(picture(8, 8)))
    content = [{"type": "image", "image": str(tmp_path / "a.png")}]
    opening = ImageProcessor(VisionConfig(patch=4), places=MediaPlaces(str(tmp_path)))
    assert opening.prepare([{"role": "user", "content": content}]).chunks[0].grid == (1, 2, 2)
    with refused("must come in a data URL", ImageError):
        PROCESSOR.prepare([{"role": "user", "content": content}])
    with refused(r"image 1 is '.*, which does not exist below", ImageError):
        opening.prepare([{"role": "user", "content": [{"type": "image", "image": str(tmp_path / "b.png")}]}])


def test_pads_point_at_the_features_of_their_images():
    prepared = PROCESSOR.prepare(conversation())
    tokens = np.array(rendered(prepared.messages))
    packed = pack_chunks(prepared.chunks, rows=2, length=16, patch=4)
    index = feature_index(tokens, PAD, packed.features)
    np.testing.assert_array_equal(index >= 0, tokens == PAD)
    np.testing.assert_array_equal(index[index >= 0], np.concatenate(packed.features))


def test_an_image_whose_pads_and_features_differ_in_number_is_named():
    features = [np.arange(2), np.arange(3)]
    with refused("image or chunk of video 2 has 3 features for 2 pads"):
        feature_index([1, PAD, PAD, 1, PAD, PAD, 1], PAD, features)
    with refused("places for 1 images and chunks of video, and there are 2"):
        feature_index([1, PAD, PAD, 1], PAD, features)


def test_a_run_reduces_what_fills_more_than_a_row_and_refuses_longer_clips_before_they_are_cut(monkeypatch):
    assert ROW.image(picture(400, 100)).patches <= 64 < PROCESSOR.image(picture(400, 100)).patches
    (chunk,) = ROW.clip(Clip([picture(32, 32)] * 4, [0.0, 0.5, 1.0, 1.5]))
    assert chunk.grid == (4, 4, 4)  # four frames of a quarter of the row
    monkeypatch.setattr(processor, "to_patches", None)
    with refused("a clip of 5 frames has 80 patches, more than the 64 of"):
        ROW.clip(Clip([picture(32, 32)] * 5, [0.0, 0.5, 1.0, 1.5, 2.0]))
