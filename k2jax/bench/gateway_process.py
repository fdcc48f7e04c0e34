"""``python -m k2jax.bench.gateway_process FOLDER``: a gateway in a process of its own, whose model answers at once.

Its first line ends with its address. The operator's key is OPERATOR; ``GET /processor_time`` is the time of all threads
of the process so far as ``total``, and what of it each of STAGES took in its thread [s].
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
import functools
import sys
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from k2jax import runtime
from k2jax.agents.api import ModelCard
from k2jax.agents.gateway import Gateway, app, session
from k2jax.agents.gateway.app import make_gateway_app
from k2jax.agents.gateway.bodies import RepeatedBodies
from k2jax.agents.gateway.history import RecordedHistory
from k2jax.agents.gateway.session import GatewaySession
from k2jax.agents.web.http import json_response
from k2jax.agents.web.server import open_socket, run_server
from k2jax.client import Client, Completion, OnToken, Sampling, new_completion, refuse_media
from k2jax.client.keys import ApiKeys
from k2jax.convert.loading import tokenizer_of
from k2jax.text import chat_format

OPERATOR = "operator"
ANSWER = "I look at the file. ```bash\ncat src/main.py\n```"
GRACE_SECONDS = 1.0
STAGES = {
    "body parsed and read": (RepeatedBodies, "read"),
    "history matched": (GatewaySession, "history_for"),
    "recorded ids gathered": (RecordedHistory, "resumed"),
    "new messages encoded": (app, "encode_history"),
    "record written down": (session, "encoded"),
}
"""Parts of a request by the functions that do them, none of which calls another; HTTP and the answer are the rest."""


class InstantClient(Client):
    """Answers with fixed tokens, at once."""

    def __init__(self, reply: Sequence[int]):
        self.reply = list(reply)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[Any] = (),
    ) -> Completion:
        """The fixed tokens; see ``Client.generate``."""
        refuse_media(self, media)
        for token in self.reply:
            if on_token is not None:
                on_token(token, -0.5)
            await asyncio.sleep(0)
        count = len(self.reply)
        return new_completion(self.reply, [-0.5] * count, [0] * count, "stop")


def main(folder: str) -> None:
    """Serves until a signal ends the process."""
    runtime.prepare()  # as the command does
    seconds = Counter[str]()
    for stage, (owner, name) in STAGES.items():
        setattr(owner, name, _timed(getattr(owner, name), stage, seconds))
    tokenizer = tokenizer_of("smollm2")
    chat = chat_format(tokenizer)
    card = ModelCard("k2", tokenizer, tokenizer.vocab_size, 1 << 18, chat=chat)
    gateway = Gateway(InstantClient([*tokenizer.encode(ANSWER), chat.end]), card, folder)
    served = make_gateway_app(gateway, ApiKeys([OPERATOR]))

    async def processor_time(request: Request) -> Response:
        return json_response({"total": time.process_time(), **seconds})

    served.routes.append(Route("/processor_time", processor_time))
    run_server(served, gateway, open_socket("127.0.0.1", 0), GRACE_SECONDS)
    gateway.release_folder()


def _timed(function: Any, stage: str, seconds: Counter[str]) -> Any:
    """A function whose calls are added to the time of a stage."""

    @functools.wraps(function)
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            seconds[stage] += time.thread_time() - began

    return timed


if __name__ == "__main__":
    main(sys.argv[1])
