"""A collection of tasks with pictures: the model is shown them, as in the loop of reinforcement learning."""

import asyncio

import numpy as np
import pytest

from k2jax.agents.collect.engine_socket import EngineSocketClient
from k2jax.agents.dataset import load_tasks
from k2jax.client import PromptTooLongError, Sampling, ScriptedClient
from k2jax.config.schema import VisionConfig
from k2jax.data.images.patch_packing import PatchChunk
from k2jax.data.images.processor import ImageProcessor
from k2jax.data.vocabulary import MEDIA_TOKENS
from k2jax.errors import UserError
from k2jax.inference.media import PlacedChunk, placed_chunk
from k2jax.inference.media_reader import ImageReader
from k2jax.text.media import MEDIA_PAD
from k2jax.text.tokenizer import byte_tokenizer
from tests.agents.collect.engines import collected, served

TOKENIZER = byte_tokenizer(MEDIA_TOKENS)
PAD = TOKENIZER.special_id(MEDIA_PAD)
VISION = VisionConfig(layers=2, width=16, heads=2, ffn=24, grid=4)


def reader():
    """What a worker reads images with."""
    return ImageReader(ImageProcessor(VISION), TOKENIZER)


def test_the_model_is_shown_the_pictures_of_tasks_and_several_verdicts_are_made_at_a_time(tmp_path):
    tasks = load_tasks("pictures", ("count=3", "side=64", "kinds=count"))
    scripted = ScriptedClient(lambda prompt, sampling: [*TOKENIZER.encode("2"), TOKENIZER.eos])
    options = {
        "chat": "plain",
        "sampling": {"kind": {"max_tokens": 8}},
        "scoring": {"workers": 2, "timeout": 30.0, "retries": 0, "sandbox": "unsafe"},
    }
    maker = {"maker": f"{__name__}:reader"}
    stored, _ = asyncio.run(
        collected(tmp_path, tasks, [scripted], 2, tokenizer=TOKENIZER, placed=placed_chunk, media=maker, **options)
    )
    assert all(each.status == "finished" and each.reward is not None for each in stored)
    shown = {}
    for (prompt, _), media in zip(scripted.calls, scripted.media, strict=True):
        [placed] = media
        assert isinstance(placed, PlacedChunk) and placed.chunk.grid == (1, 6, 6)
        assert [place for place, token in enumerate(prompt) if token == PAD] == list(range(placed.start, placed.stop))
        shown[placed.digest] = placed.chunk.pixels
    expected = {}
    for task in tasks:
        reading = reader().start()
        message = reading.read(task.instruction[0])
        [chunk] = reading._chunks
        assert message != task.instruction[0]
        expected[PlacedChunk(0, chunk, b"").chunk.pixels.tobytes()] = task.id
    assert {pixels.tobytes() for pixels in shown.values()} == expected.keys()


def test_an_engine_of_text_alone_refuses_images_and_too_many_of_them_are_too_long(tmp_path, monkeypatch):
    chunk = PatchChunk(np.arange(48, dtype=np.float32).reshape(4, 12), (1, 2, 2))
    media = [PlacedChunk(1, chunk, bytes(range(16)))]

    async def asked(media_maker):
        async with served([scripted], [tmp_path / "engine"], media=media_maker):
            client = EngineSocketClient(tmp_path / "engine", patience=5)
            try:
                return await client.generate([5, PAD], Sampling(max_tokens=2), media=media)
            finally:
                await client.close()

    scripted = ScriptedClient(lambda prompt, sampling: [1, 2])
    with pytest.raises(UserError, match="reads text alone, and a prompt has images"):
        asyncio.run(asked(None))
    asyncio.run(asked(placed_chunk))
    [[placed]] = scripted.media
    assert (placed.start, placed.chunk.grid, placed.digest) == (1, (1, 2, 2), bytes(range(16)))
    np.testing.assert_array_equal(placed.chunk.pixels, chunk.pixels)
    monkeypatch.setattr("k2jax.agents.collect.wire.LARGEST", 200)
    with pytest.raises(PromptTooLongError, match="images of a prompt are more than can be sent"):
        asyncio.run(asked(placed_chunk))
