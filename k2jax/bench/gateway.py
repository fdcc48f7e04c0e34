"""The gateway: processor time that a request of an agent takes, beside that of an engine that answers it.

64 rollouts at a time ask in turns, each time with their whole history, as agents do; the model behind the gateway
answers at once from a script. Beside it stands the engine alone with the same prompts and numbers of tokens, on a
randomly initialised micro model: a model worth training takes longer. Times are of the process, all threads together,
so that what else runs on the machine does not count; the HTTP server and the network are not part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import json
import statistics
import tempfile
import time
from typing import Any

import jax

from k2jax.api import ModelCard
from k2jax.bench.timing import Row, time_row
from k2jax.client import Completion, OnToken, Sampling, new_completion
from k2jax.config import defaults, replace_keys, resolve
from k2jax.convert.loading import tokenizer_of
from k2jax.gateway import Gateway, GatewayRollout, RolloutAccess
from k2jax.gateway.app import make_gateway_app
from k2jax.inference import Engine
from k2jax.model import model_specs
from k2jax.params import initialize
from k2jax.text import chat_format
from k2jax.train.report import device_name

ROLLOUTS, TURNS, MAX_LENGTH = 64, 4, 4096
SCORED = 8
"""Requests of these that the engine answers, whose times differ little."""
SYSTEM, TASK = "You are an agent that mends programs. " * 100, "Mend the bug in main.py. " * 10
OUTPUT = "a line of the output of a command\n" * 60
ANSWER = "I look at the file. ```bash\ncat src/main.py\n```"


class InstantClient:
    """Answers with fixed tokens, at once.

    Attributes:
        prompts: lengths of all prompts so far.
    """

    def __init__(self, reply: Sequence[int]):
        self.reply, self.prompts = list(reply), list[int]()

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """The fixed tokens; see ``Client.generate``."""
        self.prompts.append(len(prompt))
        for token in self.reply:
            if on_token is not None:
                on_token(token, -0.5)
            await asyncio.sleep(0)
        count = len(self.reply)
        return new_completion(self.reply, [-0.5] * count, [0] * count, "stop")


def measure(rounds: int = 10) -> list[Row]:
    """One row: milliseconds of processor time per request, of the gateway and of the engine."""
    tokenizer = tokenizer_of("smollm2")
    chat = chat_format(tokenizer)
    card = ModelCard("k2", tokenizer, tokenizer.vocab_size, 1 << 16, chat)
    client = InstantClient([*tokenizer.encode(ANSWER), chat.end])
    requests = ROLLOUTS * TURNS
    gateway = []
    for _ in range(1 + rounds):
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            asyncio.run(_rollouts(client, card, folder))
            gateway.append((time.process_time() - began) / requests)
    lengths = client.prompts[-requests:]
    engine = _engine_seconds(lengths[:: requests // SCORED], len(client.reply), tokenizer.vocab_size)
    mean = sum(lengths) / requests
    name = f"request at {ROLLOUTS} rollouts, prompt {mean:.0f}, answer {len(client.reply)} tokens, logged (CPU)"
    return [time_row(name, statistics.median(gateway[1:]), engine, "the engine alone, micro model", device_name())]


async def _rollouts(client: InstantClient, card: ModelCard, folder: str) -> None:
    gateway = Gateway(client, card, folder)
    app = make_gateway_app(gateway)

    async def run() -> None:
        access = gateway.open(GatewayRollout(task="t", declares_tools=False))
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
        for turn in range(TURNS):
            answer = await _ask(app, access, {"model": "k2", "messages": messages})
            messages += [answer["choices"][0]["message"], {"role": "user", "content": f"turn {turn}\n{OUTPUT}"}]

    await asyncio.gather(*(run() for _ in range(ROLLOUTS)))
    gateway.release_folder()


async def _ask(app: Any, access: RolloutAccess, body: dict[str, Any]) -> Any:
    """One request to the application itself."""
    path, sent, pieces = f"{access.path}/v1/chat/completions", [json.dumps(body).encode()], []
    headers = [(b"authorization", f"Bearer {access.key}".encode()), (b"content-type", b"application/json")]

    async def receive() -> dict[str, Any]:
        if sent:
            return {"type": "http.request", "body": sent.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        pieces.append(message.get("body", b""))

    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": headers, "scheme": "http", "http_version": "1.1", "root_path": "", "server": ("gateway", 80),
        "client": ("agent", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    return json.loads(b"".join(pieces))


def _engine_seconds(lengths: Sequence[int], answer: int, vocab: int) -> float:
    """Processor time of the engine alone per request of these prompts, without compiling."""
    model = replace_keys(resolve(defaults("rl", model="micro")).model, {"vocab": vocab})
    engine = Engine(model, initialize(model_specs(model), jax.random.key(0), 0.02), slots=16, max_length=MAX_LENGTH)
    sampling, seconds = Sampling(max_tokens=answer), 0.0
    for turn in range(2):  # the first compiles
        prompts = [
            [(turn + number + place) % vocab for place in range(length)] for number, length in enumerate(lengths)
        ]
        began = time.process_time()
        engine.generate(prompts, sampling)
        seconds = time.process_time() - began
    return seconds / len(lengths)
