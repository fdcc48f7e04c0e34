"""What an augmentation changes of a conversation: everything that says where something is, or nothing of it."""

import base64
import dataclasses
import json

import numpy as np
from PIL import Image
import pytest

from k2jax.config.schema import ImagesConfig, VisionConfig
from k2jax.data.images.augment import OPERATIONS, Augmentation
from k2jax.data.images.conversations import ConversationRenderer, read_conversation
from k2jax.data.images.places import NOWHERE, MediaPlaces
from k2jax.data.images.reading import FILE_LIMITS, ImageError
from tests.data.images.hostile import encoded
from tests.refusal import refused
from tests.text.test_thinking_chat import CHAT, tokenizer

RENDERER = ConversationRenderer(CHAT, tokenizer(), VisionConfig(layers=1, patch=4), ImagesConfig(patches=64))
CALL = {"id": "c", "type": "function", "function": {"name": "crop", "arguments": json.dumps({"side": "left"})}}


def picture_url(first=0, side=8):
    pixels = (first + np.arange(3 * side * side)).astype(np.uint8).reshape(side, side, 3)
    return f"data:image/png;base64,{base64.b64encode(encoded(Image.fromarray(pixels))).decode()}"


def conversation(answer, permitted=OPERATIONS):
    asked = {"role": "user", "content": [{"type": "image", "image": picture_url()}, {"type": "text", "text": "Where?"}]}
    return read_conversation({"messages": [asked, answer], "augment": permitted}, NOWHERE, FILE_LIMITS)


def drawn(read):
    return [RENDERER.draw(read, np.random.default_rng(seed)) for seed in range(50)]


def in_place(augmentation):
    return dataclasses.replace(augmentation, brightness=1.0, contrast=1.0) == Augmentation()


def shown(read, augmentation=None):
    return tokenizer().decode(RENDERER.render(read, augmentation).ids.tolist())


@pytest.mark.parametrize("kind", ["text", "thinking"])
def test_words_for_sides_follow_the_picture_in_texts_that_are_marked(kind):
    marked = {"type": kind, kind: "It is on the left.", "directions": True}
    read = conversation({"role": "assistant", "content": [marked, {"type": "text", "text": "Good."}]})
    before = shown(read)
    assert "left" in before and "right" not in before and "directions" not in before
    assert shown(read, Augmentation(flip=True)) == before.replace("left", "right")
    turns = [augmentation.turns for augmentation in drawn(read)]
    assert {turn % 2 for turn in turns} == {0} and len(set(turns)) > 1  # no quarter turn suits a word for a side
    with refused("directions is 'yes'; it must be true or false"):
        shown(conversation({"role": "assistant", "content": [marked | {"directions": "yes"}]}))


DIRECTED = [
    *("Is that right?", "It is on the left.", "turn clockwise", "then go east", "at 3 o'clock", "the first column"),
    *("topleft", "leftwards", "lefthand", "sit down", "at [120, 40]", '<rect x="4"/>', "click(3, 4)", "links oben"),
    *("在左边", "à côté", "bottommost", "the lower price", "above all", "a horizontal line"),
]
SAFE = ["Two red circles.", "The leftovers are cold, on this topic.", "It is a righteous man's 3.5 kg"]


@pytest.mark.parametrize("text", DIRECTED + SAFE)
@pytest.mark.parametrize(
    "answer",
    [
        lambda text: {"content": text},
        lambda text: {"content": [text]},
        lambda text: {"content": [{"type": "text", "text": text, "directions": False}]},
        lambda text: {"content": "Yes.", "reasoning_content": text},
        lambda text: {"content": [{"type": "thinking", "thinking": text}, {"type": "text", "text": "Yes."}]},
    ],
)
def test_no_other_text_is_rewritten_and_beside_one_that_may_say_where_something_is_pictures_stay_in_place(text, answer):
    read = conversation({"role": "assistant", **answer(text)})
    assert shown(read, Augmentation(flip=True)) == shown(read, Augmentation(turns=2)) == shown(read)
    assert all(map(in_place, drawn(read))) == (text in DIRECTED)


def test_a_marked_text_with_words_that_cannot_be_exchanged_keeps_pictures_in_place():
    marked = {"type": "text", "text": "left, then clockwise", "directions": True}
    assert all(map(in_place, drawn(conversation({"role": "assistant", "content": [marked]}))))


def test_pictures_stay_in_place_beside_calls_of_tools():
    read = conversation({"role": "assistant", "content": "", "tool_calls": [CALL]})
    for seed in range(20):
        drawn = RENDERER.draw(read, np.random.default_rng(seed))
        assert dataclasses.replace(drawn, brightness=1.0, contrast=1.0) == Augmentation() and drawn.brightness != 1.0
    assert RENDERER.draw(conversation({"role": "assistant", "tool_calls": [CALL]}, ["flip"]), None) is None


@pytest.mark.parametrize("permitted", [["spin"], [["flip"]], [None], "flip", 3])
def test_what_may_be_done_is_a_list_of_operations(permitted):
    with refused(r"augment is .*; it may list flip, turn"):
        conversation({"role": "assistant", "content": "left"}, permitted)


def test_reasoning_is_trained_in_its_own_cycle_after_a_history_without_it_and_with_the_images_so_far():
    image = {"type": "image", "image": picture_url()}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "One?"}]},
        {"role": "assistant", "reasoning_content": "I thought first.", "content": "One."},
        {"role": "user", "content": [image, {"type": "text", "text": "Two?"}]},
        {"role": "assistant", "reasoning_content": "I thought then.", "content": "Two."},
    ]
    read = read_conversation({"messages": messages}, NOWHERE, FILE_LIMITS)
    texts, trained = [], []
    for branch, count in ((0, 1), (1, 2)):
        rendered = RENDERER.render(dataclasses.replace(read, branch=branch))
        assert len(rendered.chunks) == count and (rendered.feature >= 0).sum() == count * rendered.chunks[0].features
        texts.append(tokenizer().decode(rendered.ids.tolist()))
        trained.append(tokenizer().decode(rendered.ids[rendered.trained].tolist()))
    assert "thought first" in texts[0] and "Two" not in texts[0]
    assert "thought first" not in texts[1] and "thought then" in texts[1]
    assert "One." in trained[0] and "One." not in trained[1] and "Two." in trained[1]
    assert len(RENDERER.branches(read)) == 2
    plain = [message | {"reasoning_content": ""} if message["role"] == "assistant" else message for message in messages]
    assert len(RENDERER.branches(dataclasses.replace(read, messages=plain))) == 1


def clip(frames, fps, limits=FILE_LIMITS):
    content = [{"type": "video", "video": frames} | ({} if fps is None else {"fps": fps})]
    return read_conversation({"messages": [{"role": "user", "content": content}]}, MediaPlaces("."), limits)


def test_a_video_may_be_a_list_of_frames_of_which_two_a_second_are_read():
    urls = [picture_url(first) for first in range(9)]
    read = clip([urls[0], "no file", urls[2], "no file", "no file", urls[5]], 4)
    frames, times = read.messages[0]["content"][0]["video"]
    assert [np.asarray(frame)[0, 0, 0] for frame in frames] == [0, 2, 5] and list(times) == [0.0, 0.5, 1.25]
    assert clip([urls[0], urls[2], urls[5]], 2).digests == read.digests != clip(urls[:3], 2).digests


@pytest.mark.parametrize(
    ("frames", "fps", "limits", "words"),
    [
        ([picture_url()], None, {}, "frames per second in fps"),
        ([picture_url()], 0, {}, "frames per second in fps"),
        ([], 2, {}, "a list with the URL of each frame"),
        ([picture_url(), picture_url(side=4)], 2, {}, "one size"),
        ([picture_url(), "data:image/png;base64,AAAA"], 2, {}, "frame 2 of the video"),
        ([picture_url()] * 3, 2, {"clip_megapixels": 150e-6}, "frame 3 of the video"),
    ],
)
def test_a_list_of_frames_that_is_no_clip_is_refused(frames, fps, limits, words):
    with pytest.raises(ImageError, match=words):
        clip(frames, fps, FILE_LIMITS._replace(**limits))
