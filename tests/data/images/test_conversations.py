"""What an augmentation changes of a conversation: everything that says where something is, or nothing of it."""

import base64
import dataclasses
import io
import json

import numpy as np
from PIL import Image
import pytest

from k2jax.config.schema import ImagesConfig, VisionConfig
from k2jax.data.images.augment import OPERATIONS, Augmentation
from k2jax.data.images.conversations import ConversationRenderer, read_conversation
from k2jax.data.images.reading import FILE_LIMITS
from k2jax.errors import UserError
from tests.text.test_thinking_chat import CHAT, tokenizer

RENDERER = ConversationRenderer(CHAT, tokenizer(), VisionConfig(layers=1, patch=4), ImagesConfig(patches=64))
CALL = {"id": "c", "type": "function", "function": {"name": "crop", "arguments": json.dumps({"side": "left"})}}


def picture_url():
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def conversation(answer, permitted=OPERATIONS):
    asked = {"role": "user", "content": [{"type": "image", "image": picture_url()}, {"type": "text", "text": "Where?"}]}
    return read_conversation({"messages": [asked, answer], "augment": permitted}, ".", FILE_LIMITS)


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "reasoning_content": "It is on the left.", "content": "left"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "left!"}, {"type": "text", "text": "left"}]},
        {"role": "assistant", "content": [{"text": "left"}]},
        {"role": "assistant", "content": ["left"]},
    ],
)
def test_words_for_sides_follow_the_picture_wherever_they_stand(answer):
    read = conversation(answer)
    shown, flipped = (
        tokenizer().decode(RENDERER.render(read, augmentation).ids.tolist())
        for augmentation in (None, Augmentation(flip=True))
    )
    assert "left" in shown and "right" not in shown
    assert flipped == shown.replace("left", "right")
    turns = [RENDERER.draw(read, np.random.default_rng(seed)).turns for seed in range(50)]
    assert {turn % 2 for turn in turns} == {0} and len(set(turns)) > 1  # no quarter turn suits a word for a side


def test_pictures_stay_in_place_beside_calls_of_tools():
    read = conversation({"role": "assistant", "content": "", "tool_calls": [CALL]})
    for seed in range(20):
        drawn = RENDERER.draw(read, np.random.default_rng(seed))
        assert drawn._replace(brightness=1.0, contrast=1.0) == Augmentation() and drawn.brightness != 1.0
    assert RENDERER.draw(conversation({"role": "assistant", "tool_calls": [CALL]}, ["flip"]), None) is None


@pytest.mark.parametrize("permitted", [["spin"], [["flip"]], [None], "flip", 3])
def test_what_may_be_done_is_a_list_of_operations(permitted):
    with pytest.raises(UserError, match=r"augment is .*; it may list flip, turn"):
        conversation({"role": "assistant", "content": "left"}, permitted)


def test_reasoning_is_trained_in_its_own_cycle_after_a_history_without_it_and_with_the_images_so_far():
    image = {"type": "image", "image": picture_url()}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "One?"}]},
        {"role": "assistant", "reasoning_content": "I thought first.", "content": "One."},
        {"role": "user", "content": [image, {"type": "text", "text": "Two?"}]},
        {"role": "assistant", "reasoning_content": "I thought then.", "content": "Two."},
    ]
    read = read_conversation({"messages": messages}, ".", FILE_LIMITS)
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
