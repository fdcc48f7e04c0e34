"""A rollout's socket: its own routes answer, whatever key is given, and no others."""

import asyncio

import httpx
import pytest

from k2jax.agents.gateway.socket import rollout_socket
from tests.agents.gateway.scripted import OPERATOR, Bench, chat_body, post, reply_ids, spec


def test_a_socket_serves_one_rollout_alone(tmp_path):
    bench = Bench(lambda prompt, sampling: reply_ids("", "Yes."))
    mine, other = bench.gateway.open(spec()), bench.gateway.open(spec())
    files = [tmp_path / "a.sock", tmp_path / "b.sock"]

    async def run():
        async with (
            rollout_socket(bench.app, mine.path, files[0]),
            rollout_socket(bench.app, other.path, files[1]),
            httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(files[0])), base_url="http://gateway") as http,
        ):
            assert (await post(http, mine, "chat/completions", chat_body([("user", "Go")]))).status_code == 200
            assert (await post(http, other, "chat/completions", chat_body([("user", "Go")]))).status_code == 404
            for path in ("/rollouts", "/health", f"/rollouts/{mine.rollout}", f"{mine.path}x/v1/models"):
                response = await http.get(path, headers={"Authorization": f"Bearer {OPERATOR}"})
                assert response.status_code == 404

    asyncio.run(run())
    assert not any(file.exists() for file in files)
    assert bench.gateway.session(mine.rollout).sampled_tokens > 0


def test_a_socket_that_cannot_be_made_says_so(tmp_path):
    bench = Bench(lambda prompt, sampling: [])

    async def run():
        async with rollout_socket(bench.app, "/r/a", tmp_path / ("a" * 120)):
            pass

    with pytest.raises(OSError, match="107 bytes"):
        asyncio.run(run())
