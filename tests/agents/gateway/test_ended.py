"""What is left of a rollout that has ended, and of an answer whose time is over."""

import asyncio

import pytest

from k2jax.agents.gateway import Gateway
from k2jax.agents.gateway import exchange as exchange_module
from k2jax.client import ScriptedClient
from k2jax.errors import UserError
from k2jax.trajectory import TrajectoryStore, verify
from tests.agents.gateway.scripted import (
    CARD,
    OPERATOR,
    Bench,
    chat_answer,
    chat_body,
    post,
    posted,
    reply_ids,
    sampled_nodes,
    say,
    spec,
)

ITEMS = [("user", "Go")]


def test_a_rollout_that_has_ended_leaves_the_memory_and_can_still_be_asked_about(tmp_path):
    bench = Bench(folder=tmp_path)
    access = bench.gateway.open(spec(), "a")

    async def talk(http):
        await say(http, access, "chat/completions", ITEMS)
        counts = bench.gateway.session("a").counts()
        ended, again = [await bench.gateway.close("a") for _ in range(2)]
        shown = await http.get("/rollouts/a", headers={"Authorization": f"Bearer {OPERATOR}"})
        refused = await post(http, access, "chat/completions", chat_body(ITEMS))
        return counts, ended, again, shown.json(), refused.status_code

    counts, [ended], [again], shown, refused = bench.run(talk)
    assert not bench.gateway._sessions
    assert shown == {"rollout": "a", "closed": True, "counts": counts} and refused == 401
    assert again.path_tokens(again.leaves()[0]).tolist() == ended.path_tokens(ended.leaves()[0]).tolist()
    with pytest.raises(UserError, match="another name"):
        bench.gateway.open(spec(key=(9, 0, 0)), "a")
    for name in ("b", "../a", "x" * 300):
        with pytest.raises(UserError, match="no rollout"):
            bench.gateway.session(name)
    assert len(list(TrajectoryStore(tmp_path / "trajectories").read(0))) == 1


def test_a_gateway_that_starts_reads_only_the_logs_of_rollouts_that_go_on(tmp_path):
    bench = Bench(folder=tmp_path)
    for name in ("a", "b"):
        bench.gateway.open(spec(), name)
    asyncio.run(bench.gateway.close("a"))
    bench.gateway.release_folder()
    (tmp_path / "rollouts" / "ended" / "a.jsonl").write_text("not read\n")
    again = Gateway(bench.client, CARD, tmp_path)
    assert list(again._sessions) == ["b"]
    with pytest.raises(UserError, match="damaged"):
        again.session("a")
    again.release_folder()


class SlowClient(ScriptedClient):
    """Takes ``seconds`` for each token."""

    seconds = 0.01

    async def generate(self, prompt, sampling, *, resume=None, on_token=None, media=()):
        whole, count = await super().generate(prompt, sampling), 0
        for token, logprob in zip(whole.tokens, whole.logprobs, strict=True):
            await asyncio.sleep(self.seconds)
            count += 1
            if on_token(int(token), float(logprob)):
                break
        cut = {name: getattr(whole, name)[:count] for name in ("tokens", "logprobs", "versions")}
        return whole._replace(**cut, finish="stop")


@pytest.mark.parametrize("dialect", ["chat/completions", "messages"])
def test_an_answer_whose_time_is_over_is_what_was_sampled_by_then(dialect, monkeypatch):
    bench = Bench(SlowClient(lambda prompt, sampling: reply_ids("", "word " * 90)))
    bench.gateway._answer_seconds = 0.2
    access = bench.gateway.open(spec())

    async def talk(http):
        answer = await say(http, access, dialect, ITEMS)
        whole = await posted(http, access, "chat/completions", chat_body([*ITEMS, answer, ("user", "On")]))
        monkeypatch.setattr(exchange_module, "LAST_TOKEN_SECONDS", 0.1)
        bench.client.seconds = 9
        return answer, whole, await post(http, access, dialect, chat_body(ITEMS))

    answer, whole, hung = bench.run(talk)
    assert 0 < len(answer[2]) < 400  # of 450
    assert whole["choices"][0]["finish_reason"] == "length" and chat_answer(whole)[2]
    assert hung.status_code == 504 and "no token" in hung.text
    trajectory = bench.gateway.session(access.rollout).main.trajectory
    assert [node.finish for node in sampled_nodes(trajectory)] == ["length", "length"] and verify(trajectory) == []
    assert len(trajectory.leaves()) == 1
