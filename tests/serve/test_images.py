"""Images of requests through the official clients, as the engine is asked for them; and what is refused."""

import base64
import contextlib
import io
import socket
import threading
import time

import numpy as np
from PIL import Image
import pytest

from k2jax.agents.api import media_parts as media_module
from k2jax.client import PromptTooLongError
from k2jax.config.schema import GQAConfig, ModelConfig, VisionConfig
from k2jax.data.images.download import DownloadLimits, download
from k2jax.data.images.processor import ImageProcessor
from k2jax.data.images.reading import ImageError, MediaUnavailableError
from k2jax.data.images.urls import urls_of_hosts
from k2jax.inference import media_reader as reader_module
from k2jax.inference.media_prompt import chat_prompt, document_prompt
from k2jax.inference.media_reader import ImageReader, MediaLimits
from k2jax.text.media import MEDIA_PAD
from tests.agents.api.sample import NAME
from tests.data.images.counting import counting_server
from tests.serve.clients import Chat, Messages, Responses
from tests.serve.fakes import FakeEngine, live
from tests.text.kimi import thinking_tokenizer

TOKENIZER = thinking_tokenizer()
PAD = TOKENIZER.special_id(MEDIA_PAD)
SEEING = ModelConfig(
    layers=2, dense_layers=2, d_model=32, heads=4, attention="gqa", gqa=GQAConfig(kv_heads=2, head_dim=8), dense_ffn=48,
    vocab=TOKENIZER.vocab_size, init_std=0.2, vision=VisionConfig(layers=2, width=24, heads=2, ffn=40, patch=4, grid=6),
)  # fmt: skip
LIMITS = MediaLimits(images=6, megapixels=0.05, megabytes=0.5)
PROCESSOR = ImageProcessor(SEEING.vision)


@pytest.fixture(scope="module")
def server():
    reader = ImageReader(PROCESSOR, TOKENIZER, LIMITS, lambda url, name: download(url, DownloadLimits(), name))
    options = {"vocab": SEEING.vocab, "media": reader, "max_body_bytes": 1 << 20}
    with live(FakeEngine(lambda request: [5, 6]), TOKENIZER, **options) as running:
        yield running


def picture(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def data_url(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def user(*parts):
    """A message; a string that is no URL is text."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) and ":" not in part else
        {"type": "image_url", "image_url": {"url": part}} if isinstance(part, str) else part
        for part in parts
    ]  # fmt: skip
    return [{"role": "user", "content": content}]


def frames(count, fps=2):
    return {"type": "video", "video": [data_url(png(picture(16, 8, seed))) for seed in range(count)], "fps": fps}


IMAGES = [picture(40, 24, 1), picture(24, 16, 2)]


def chat_images(urls):
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls]


def responses_images(urls):
    return [{"type": "input_image", "image_url": url, "detail": "auto"} for url in urls]


def messages_images(urls):
    sources = [{"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]} for url in urls]
    return [{"type": "image", "source": source} for source in sources]


def check_shown(server, messages):
    """The engine was asked for what is made of the messages without a server."""
    expected, engine = chat_prompt(messages, TOKENIZER, PROCESSOR, thinking=False), server.engine
    assert list(engine.asked[-1][0]) == expected.tokens
    assert [placed._replace(chunk=placed.chunk.grid) for placed in engine.media] == [
        placed._replace(chunk=placed.chunk.grid) for placed in expected.media
    ]
    for shown, placed in zip(engine.media, expected.media, strict=True):
        np.testing.assert_array_equal(shown.chunk.pixels, placed.chunk.pixels)
    return expected.tokens


@pytest.mark.parametrize(
    ("kind", "write"), [(Chat, chat_images), (Responses, responses_images), (Messages, messages_images)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_images_of_every_dialect_reach_the_engine_as_the_model_reads_them(server, kind, write, stream):
    client, history = kind(server.url), [{"role": "user", "content": write([data_url(png(i)) for i in IMAGES])}]
    answer = client.ask(history, stream=stream, **{kind.limit: 6}, **kind.unthinking)
    prompt = check_shown(server, [{"role": "user", "content": [{"type": "image", "image": i} for i in IMAGES]}])
    assert prompt.count(PAD) == 15 + 6 and answer.usage[0] == len(prompt) and answer.usage[2] == 6
    if kind is Messages:
        counted = client.api.messages.count_tokens(model=NAME, messages=history, **kind.unthinking)
        assert counted.input_tokens == len(prompt)


def test_frames_of_a_video_are_sampled(server):
    Chat(server.url).ask(user(frames(13, fps=4), "What moves"), **Chat.unthinking)
    video = {"type": "video", "video": [picture(16, 8, seed) for seed in range(13)], "fps": 4}
    prompt = check_shown(server, user(video, "What moves"))
    assert prompt.count(PAD) == 2 * 2  # two per second: 6 frames, chunks of 4 and of 2


SMALL = data_url(png(picture(8, 8)))
HUGE = png(Image.new("1", (5000, 5000)))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["file:///etc/passwd"], "must come in a data URL; 'file:///etc/passwd' is not opened here"),
        ([{"type": "image_url", "image_url": {"url": "/etc/passwd"}}], "must come in a data URL"),
        (["http://127.0.0.1:9/a.png"], "is not opened here"),
        (["http://[::1/a.png"], "is not opened here: Invalid IPv6 URL"),
        (["data:image/png;base64,@@@"], "is not base64"),
        (["data:text/plain,abc"], "must be a data URL with base64 content"),
        ([data_url(b"<svg/>")], "image 1 cannot be decoded"),
        ([SMALL, data_url(png(picture(40, 40))[:900])], "image 2 cannot be decoded"),
        ([data_url(HUGE)], "image 1 has 25.0 megapixels; at most 0.05 are decoded"),
        ([data_url(png(picture(200, 200))), data_url(png(picture(200, 200)))], "may have 0.05 megapixels in all"),
        ([data_url(b"\x89PNG" + b"a" * 600_000)], "image 1 has 0.6 MB; at most 0.5 are read"),
        ([SMALL] * 7, "a conversation may have 6 images and frames of video, not 7"),
        ([SMALL, frames(6)], "a conversation may have 6 images and frames of video, not 7"),
        ([{"type": "video", "video": [SMALL]}], "frames per second in fps"),
        ([{"type": "video", "video": [SMALL], "fps": 1e-320}], "frames per second in fps"),
        ([{"type": "video", "video": SMALL, "fps": 1}], "a list with the URL of each frame"),
        ([{"type": "video", "video": [SMALL, data_url(png(picture(8, 16)))], "fps": 1}], "must have one size"),
        ([{"type": "image_url"}], "image 1 needs a URL"),
        ([{"type": "image", "image": "/etc/passwd"}], "content must be text or a list of text parts"),
        ([data_url(png(picture(200, 100))), data_url(png(picture(160, 160)))], "longest sequence is 256 tokens"),
    ],
)  # fmt: skip
def test_what_is_refused_is_said_in_one_line(server, parts, message):
    began = time.monotonic()
    answer = server.post("chat/completions", messages=[{"role": "user", "content": "Hi"}, *user(*parts)])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error["message"] and "\n" not in error["message"] and len(error["message"]) < 300
    assert error["param"] in ("messages[1]", "messages") and time.monotonic() - began < 5


def test_a_model_of_text_refuses_images():
    with live(FakeEngine(lambda request: [2]), TOKENIZER, vocab=TOKENIZER.vocab_size) as plain:
        answer = plain.post("chat/completions", messages=user(SMALL))
    assert answer.status_code == 400 and "this model reads text alone" in answer.json()["error"]["message"]


def test_images_that_wait_take_a_limited_amount_of_memory(monkeypatch):
    """A second request whose patches do not fit beside the first's is told to come back; alone it is taken."""
    monkeypatch.setattr(media_module, "MAX_MEDIA_BYTES", 1)
    reader = ImageReader(PROCESSOR, TOKENIZER, LIMITS)
    slow = FakeEngine(lambda request: [2 + ord("a")], seconds=0.05)
    with live(slow, TOKENIZER, vocab=TOKENIZER.vocab_size, media=reader) as running:
        client = running.openai()
        stream = client.chat.completions.create(model=NAME, messages=user(SMALL), max_tokens=200, stream=True)
        next(iter(stream))
        refused = running.post("chat/completions", messages=user(SMALL), max_tokens=1)
        assert refused.status_code == 429 and "too many images" in refused.json()["error"]["message"]
        assert running.post("chat/completions", messages=user("Hi"), max_tokens=1).status_code == 200
        stream.close()
        running.wait_until_idle()
        assert running.post("chat/completions", messages=user(SMALL), max_tokens=1).status_code == 200


def test_documents_begin_with_images():
    prompt = document_prompt([{"type": "image", "image": picture(16, 8)}, "What is it"], TOKENIZER, PROCESSOR)
    [placed] = prompt.media
    assert prompt.tokens[placed.start : placed.stop] == [PAD] * 2 == [PAD] * prompt.tokens.count(PAD)
    text = document_prompt(["What is it"], TOKENIZER, PROCESSOR)
    assert text == (TOKENIZER.encode_document("What is it"), ())


@contextlib.contextmanager
def dripping():
    """A host that sends a file without end, a byte now and then."""

    def answer():
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"a")
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_urls_of_allowed_hosts_alone_are_opened_within_limits_of_size_and_time():
    with counting_server() as port, dripping() as slow:
        host = f"127.0.0.1:{port}"
        limits = DownloadLimits(urls_of_hosts([host, slow, "127.0.0.1:1"]), megabytes=0.5, seconds=0.4)
        for url, kind, message in (
            (f"http://{slow}/endless", MediaUnavailableError, "it takes over 0.4 seconds"),
            ("http://127.0.0.1:1/a.png", MediaUnavailableError, "cannot be read from"),
            (f"http://user@{host}/a.png", ImageError, "is not opened here"),
            ("http://127.0.0.1/a.png", ImageError, "is not opened here"),
            (f"ftp://{host}/a.png", ImageError, "is not opened here"),
            ("a.png", ImageError, "is not opened here"),
            (f"http://{host}/a b", ImageError, "is not opened here: spaces"),
        ):
            with pytest.raises(kind, match=message):
                download(url, limits)
        with pytest.raises(ImageError, match=r"more than 0\.0001 MB"):
            download(f"http://{host}/a.png", limits._replace(megabytes=1e-4))
        reading = ImageReader(PROCESSOR, TOKENIZER, LIMITS, lambda url, name: download(url, limits, name)).start()
        [message] = user(f"http://{host}/a.png")
        features = reading.read(message)["content"][0].features[0]
        [placed] = reading.place([1, *[PAD] * features, 2])
        assert placed.start == 1 and placed.chunk.features == features > 0
        with pytest.raises(ImageError, match=r"image 1 must come in a data URL; 'http://.*' is not opened here"):
            ImageReader(PROCESSOR, TOKENIZER).start().read(message)


def test_images_of_one_message_beyond_the_patches_of_a_run_are_not_all_decoded(monkeypatch):
    decoded, read_image = [], reader_module.read_image

    def counting(data, limits, name):
        decoded.append(name)
        return read_image(data, limits, name)

    monkeypatch.setattr(reader_module, "read_image", counting)
    reader = ImageReader(PROCESSOR, TOKENIZER, LIMITS._replace(images=100, patches=8))
    same, others = [SMALL] * 30, [data_url(png(picture(8, 8, seed))) for seed in range(1, 30)]
    assert len(reader.start().read(*user(*same))["content"]) == 30  # equal ones count once
    decoded.clear()
    with pytest.raises(PromptTooLongError, match=r"images of 12 patches, more than the 8 of config\.data"):
        reader.start().read(*user(*same[:1], *others))
    assert decoded == ["image 1", "image 2", "image 3"]
