"""Images of agents: the model sees them in every request, and the record is what the engine says of the same ones."""

import asyncio
import dataclasses
import threading
import time

import jax
import numpy as np
import pytest

from k2jax.agents.api import media_parts as media_module
from k2jax.agents.environment import Environment
from k2jax.agents.web.arrivals import READERS
from k2jax.client import Sampling, ScriptedClient
from k2jax.inference import Worker
from k2jax.inference.client import EngineClient
from k2jax.inference.engine import Engine
from k2jax.inference.media import place_chunks
from k2jax.inference.media_reader import ImageReader
from k2jax.model.vision import multimodal_specs
from k2jax.params import initialize
from k2jax.trajectory import verify
from tests.agents.gateway.scripted import CARD, DIALECTS, TOKENIZER, Bench, post, posted, spec
from tests.serve.test_images import PAD, PROCESSOR, SEEING, data_url, frames, picture, png

FIRST, SECOND = picture(40, 24, 1), picture(16, 24, 2)
GREEDY = Sampling(max_tokens=6, temperature=0.0)


def seeing(client):
    """A gateway over a client of a model with a tower."""
    return Bench(client, card=dataclasses.replace(CARD, max_length=512, media=ImageReader(PROCESSOR, TOKENIZER)))


def opened(bench):
    return bench.gateway.open(spec(sampling=GREEDY, declares_tools=False))


@pytest.fixture(scope="module")
def worker():
    params = initialize(multimodal_specs(SEEING), jax.random.key(0), SEEING.init_std)
    running = Worker(Engine(SEEING, params, slots=1, max_length=512, page_size=128))
    yield running
    running.stop()


def image_of(dialect, image):
    """A message of the user with an image, in a dialect."""
    url = data_url(png(image))
    if dialect == "responses":
        return {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}
    if dialect == "chat/completions":
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    return {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "?"}]}


def converse(bench, access, dialect, images):
    """One request for each image, with all that was said before."""
    write, read = DIALECTS[dialect]
    body = write([("system", "Look.")], tools=False)
    field = "input" if dialect == "responses" else "messages"

    async def talk(http):
        for image in images:
            body[field].append(image_of(dialect, image))
            answer = read(await posted(http, access, dialect, body))
            body[field] += write([answer], tools=False)[field]

    bench.run(talk)


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_images_are_seen_in_every_request_and_recorded_as_the_model_saw_them(worker, dialect):
    bench = seeing(EngineClient(worker))
    access = opened(bench)
    converse(bench, access, dialect, [FIRST, SECOND])
    trajectory = bench.gateway.session(access.rollout).main.trajectory
    assert verify(trajectory, SEEING.vocab) == [] and len(trajectory.leaves()) == 1
    chunks = [PROCESSOR.image(image) for image in (FIRST, SECOND)]
    for count, index in enumerate((i for i, node in enumerate(trajectory.nodes) if node.turn >= 0), 1):
        node = trajectory.nodes[index]
        prompt = trajectory.path_tokens(node.parent).tolist()
        assert prompt.count(PAD) == sum(chunk.features for chunk in chunks[:count])
        stops = (CARD.chat.end, TOKENIZER.eos)
        sampling = dataclasses.replace(GREEDY, stop_tokens=stops)
        images = place_chunks(prompt, chunks[:count], PAD)
        expected = asyncio.run(EngineClient(worker).generate(prompt, sampling, media=images))
        assert node.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_allclose(node.logprobs, expected.logprobs, atol=1e-4)


def test_a_pad_that_the_model_sampled_stands_for_no_image():
    shown = []

    class Watching(ScriptedClient):
        async def generate(self, prompt, sampling, *, resume=None, on_token=None, media=()):
            shown.append((list(prompt), media))
            return await super().generate(prompt, sampling, resume=resume, on_token=on_token)

    bench = seeing(Watching(lambda prompt, sampling: [PAD, 70, PAD, CARD.chat.end]))
    access = opened(bench)
    converse(bench, access, "chat/completions", [FIRST, SECOND])
    (prompt, media) = shown[1]
    features = [PROCESSOR.image(image).features for image in (FIRST, SECOND)]
    assert prompt.count(PAD) == sum(features) + 2 and [placed.chunk.features for placed in media] == features
    assert all(set(prompt[placed.start : placed.stop]) == {PAD} for placed in media)
    assert [media[0].start] == [placed.start for placed in shown[0][1]]


class Slow(Environment):
    """Reads no image, and counts how many requests it reads at a time."""

    def __init__(self):
        self._lock, self.now, self.most = threading.Lock(), 0, 0

    def start(self):
        return self

    def read(self, message):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.05)
        with self._lock:
            self.now -= 1
        return message

    def place(self, tokens):
        return ()


@pytest.mark.parametrize("path", ["chat/completions", "messages/count_tokens"])
def test_few_requests_with_images_are_read_at_a_time(path):
    slow, body = Slow(), {"model": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "?"}]}
    card = dataclasses.replace(CARD, media=slow)
    bench = Bench(card=card)
    accesses = [bench.gateway.open(spec(sampling=GREEDY)) for _ in range(12)]

    async def talk(http):
        return await asyncio.gather(*(post(http, access, path, body) for access in accesses))

    answers = bench.run(talk)
    assert {answer.status_code for answer in answers} == {200} and slow.most == READERS == 4


def test_frames_of_a_video_reach_the_model_without_an_image_beside_them(worker):
    bench = seeing(EngineClient(worker))
    access = opened(bench)
    content = [frames(6), {"type": "text", "text": "What moves?"}]
    body = {"model": "x", "messages": [{"role": "user", "content": content}]}
    bench.run(lambda http: posted(http, access, "chat/completions", body))
    trajectory = bench.gateway.session(access.rollout).main.trajectory
    assert sum(token == PAD for node in trajectory.nodes[:-1] for token in node.tokens) == 2 * 2  # chunks of 4 and of 2


def test_another_image_in_an_old_message_is_a_branch(worker):
    bench = seeing(EngineClient(worker))
    access = opened(bench)
    for image in (FIRST, picture(40, 24, 5)):
        converse(bench, access, "chat/completions", [image])
    counts = bench.gateway.session(access.rollout).counts()
    assert counts["start"] == counts["branch"] == 1 and counts["drift: message"] == 1


def test_a_damaged_image_and_too_many_at_a_time_are_refused(worker, monkeypatch):
    bench, blind = seeing(EngineClient(worker)), Bench()
    body, damaged = ({"model": "x", "messages": [image_of("chat/completions", FIRST)]} for _ in range(2))
    damaged["messages"][0]["content"][0]["image_url"]["url"] = "data:image/png;base64,AAAA"

    async def ask(http, of, sent):
        access = of.gateway.open(spec(sampling=GREEDY))
        return (await post(http, access, "chat/completions", sent)).status_code

    assert bench.run(lambda http: ask(http, bench, damaged)) == 400
    assert blind.run(lambda http: ask(http, blind, body)) == 400
    monkeypatch.setattr(media_module, "MAX_MEDIA_BYTES", 1)

    async def together(http):
        return await asyncio.gather(*(ask(http, bench, body) for _ in range(2)))

    assert sorted(bench.run(together)) == [200, 429]
