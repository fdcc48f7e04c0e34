"""``python -m tests.agents.gateway.serving FOLDER``: a gateway over a slow script; its first line is its port."""

import asyncio
import socket
import sys

import uvicorn

from k2jax.agents.web.server import server_config
from tests.agents.gateway.scripted import TOKENIZER, Bench, reply_ids

SECONDS_PER_TOKEN = 0.01


def reply(prompt, sampling):
    """Text that says which call of the model it is."""
    turn = TOKENIZER.decode(prompt).count("Answer")
    return reply_ids("", f"Answer {sampling.seed} after {turn}. " + "word " * 20)


def main(folder):
    bench = Bench(reply, folder)
    generate = bench.client.generate

    async def slowly(*arguments, on_token, **options):
        seen = []
        completion = await generate(*arguments, on_token=lambda *token: seen.append(token), **options)
        for token in seen:
            await asyncio.sleep(SECONDS_PER_TOKEN)
            if on_token(*token):
                break
        return completion

    bench.client.generate = slowly
    sock = socket.create_server(("127.0.0.1", 0))
    print(sock.getsockname()[1], flush=True)
    config = server_config(bench.app)
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main(sys.argv[1])
