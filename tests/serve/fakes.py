"""An engine with scripted tokens, and a server in a thread."""

from collections import deque
from collections.abc import Callable
import contextlib
import time

import httpx
import openai

from k2jax.agents.api.model_card import ModelCard, chat_format_or_none
from k2jax.client.keys import ApiKeys
from k2jax.inference.request import Request, State
from k2jax.inference.stats import EngineStats
from k2jax.inference.worker import Worker
from k2jax.serve.app import make_app
from k2jax.serve.hosts import ServedHosts
from k2jax.serve.service import Service
from tests.agents.api.sample import NAME
from tests.http_server import served


def alternatives(request: Request) -> tuple[tuple[int, float], ...]:
    """As many as are asked for."""
    return tuple((i, -float(i)) for i in range(1, 1 + request.sampling.top_logprobs))


class FakeEngine:
    """Generates the ids of ``script(request)``, again and again; a slot generates one token per step."""

    def __init__(self, script: Callable[[Request], list[int]], slots=4, vocab=1000, seconds=0.0):
        self.script, self.slots, self.vocab, self.seconds = script, slots, vocab, seconds
        self.waiting, self.running = deque(), []
        self.generated = 0
        self.broken = None
        self.asked, self.media = [], ()  # prompts with their samplings, and the images of the last one
        self.logprob = -0.25

    def make_request(self, prompt, sampling, generated=(), *, media=(), on_token=None):
        sampling.check()
        self.asked.append((tuple(prompt), sampling))
        self.media = tuple(media)
        return Request(tuple(prompt), sampling, on_token, tuple(media))

    def enqueue(self, request):
        self.waiting.append(request)

    def has_work(self):
        return bool(self.waiting or self.running)

    def cancel(self, request):
        if request.state != State.FINISHED:
            self._finish(request, "cancelled")
            request.on_token(request)

    def cancel_all(self):
        for request in [*self.waiting, *self.running]:
            self.cancel(request)

    def stats(self):
        running = len(self.running)
        return EngineStats(
            slots=self.slots, running=running, waiting=len(self.waiting), paused=0, pages=self.slots,
            pages_in_use=running, pages_cached=0, tokens_generated=self.generated, prompt_tokens=0,
            prompt_tokens_cached=0, steps=self.generated,
        )  # fmt: skip

    def step(self):
        if self.broken is not None:
            raise self.broken
        time.sleep(self.seconds)
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
        for request in list(self.running):
            if request.sampling.prompt_logprobs and not request.tokens:
                request.prompt_logprobs.extend(-0.5 - i for i in range(len(request.prompt) - 1))
                if top := alternatives(request):
                    request.prompt_top_logprobs += [top] * (len(request.prompt) - 1)
            request.cached_tokens = len(request.prompt) // 2
            script = self.script(request)
            token = script[len(request.tokens) % len(script)]
            request.append(token, self.logprob, 0)
            request.top_logprobs.append(alternatives(request))
            self.generated += 1
            if token in request.sampling.stop_tokens:
                self._finish(request, "stop")
            elif len(request.tokens) == request.sampling.max_tokens:
                self._finish(request, "length")
            if request.on_token(request) and request.state != State.FINISHED:
                self._finish(request, "stop")

    def _finish(self, request, reason):
        request.state, request.finish_reason = State.FINISHED, reason
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)


class Live:
    """A running server: its address, parts, and clients."""

    def __init__(self, url, engine, worker, service, tokenizer):
        self.url, self.engine, self.worker, self.service, self.tokenizer = url, engine, worker, service, tokenizer
        self.http = httpx.Client(base_url=url, timeout=30)

    def openai(self, key="none"):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)

    def post(self, path, **body):
        return self.http.post(f"/v1/{path}", json={"model": NAME, **body})

    def metrics(self):
        lines = self.http.get("/metrics").text.splitlines()
        return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}

    def wait_until_idle(self, seconds=10):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            counters = self.metrics()
            if not sum(counters[f"k2jax_{name}"] for name in ("running", "waiting", "pages_in_use")):
                return counters
            time.sleep(0.02)
        raise AssertionError(f"still busy: {counters}")


@contextlib.contextmanager
def live(engine, tokenizer, *, vocab, max_length=256, keys=(), max_queue=200, max_body_bytes=1 << 16, media=None):
    """A server on a free port, until the end of the block."""
    worker = Worker(engine)
    card = ModelCard(NAME, tokenizer, vocab, max_length, chat=chat_format_or_none(tokenizer), media=media)
    engine.grammars = card.grammars
    service = Service(worker, card, max_queue)
    app = make_app(service, ApiKeys(keys), max_body_bytes, ServedHosts("127.0.0.1"))
    with served(app, at_end=service.cancel_all) as (host, port):
        running = Live(f"http://{host}:{port}", engine, worker, service, tokenizer)
        try:
            yield running
        finally:
            running.http.close()
    if worker.failed is None:
        worker.stop()
