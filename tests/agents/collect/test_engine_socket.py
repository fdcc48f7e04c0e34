"""Engines behind sockets: answers, refusals, ends; and a real one whose answers depend on nothing beside them."""

import asyncio
import time

import numpy as np
import pytest

from k2jax.agents.collect.engine_socket import EngineLostError, EngineServer, EngineSocketClient
from k2jax.agents.collect.routing import RoutedClient, Router
from k2jax.agents.collect.token_reports import ReportedTokens
from k2jax.agents.collect.wire_messages import EngineLoad, pack_request, unpack_request
from k2jax.client import Completion, PromptTooLongError, Sampling, ScriptedClient, TokenConstraint, new_completion
from k2jax.errors import UserError
from k2jax.serve.engine_process import AloneClient

LOAD = EngineLoad(0.5, 3, 2, 1)


class Slow(ScriptedClient):
    """Notes which requests were cancelled."""

    cancelled = 0

    async def generate(self, prompt, sampling, **options):
        try:
            if prompt[0] == 7:
                raise PromptTooLongError("the prompt has 7 tokens")
            await asyncio.sleep(1000 if prompt[0] == 9 else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().generate(prompt, sampling, **options)


def test_an_engine_behind_a_socket_answers_refuses_cancels_and_is_missed(tmp_path):
    scripted, path = Slow(lambda prompt, sampling: [5, 6, 7]), tmp_path / "engine"

    async def exchange():
        serving = asyncio.ensure_future(EngineServer(scripted, lambda: LOAD, interval=0.01).serve(path))
        client = EngineSocketClient(path, patience=5)
        whole = await client.generate([1, 2], Sampling(max_tokens=3))
        cut = whole._replace(tokens=whole.tokens[:1], logprobs=whole.logprobs[:1], versions=whole.versions[:1])
        resumed = await client.generate([1, 2], Sampling(max_tokens=3), resume=cut)
        with pytest.raises(UserError, match="max_tokens 0"):
            await client.generate([1], Sampling(max_tokens=0))
        with pytest.raises(PromptTooLongError, match="the prompt has 7"):
            await client.generate([7], Sampling())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.generate([9], Sampling()), 0.1)
        while client.load is None or not scripted.cancelled:
            await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(client.generate([9], Sampling()))
        await asyncio.sleep(0.05)
        connection = await client.connect()
        connection._transport.abort()
        with pytest.raises(EngineLostError, match="has ended"):
            await waiting
        again = await client.generate([1, 2], Sampling(max_tokens=3))
        serving.cancel()
        await client.close()
        return whole, resumed, again, client.load

    *completions, load = asyncio.run(exchange())
    expected = asyncio.run(ScriptedClient(lambda p, s: [5, 6, 7]).generate([1, 2], Sampling(max_tokens=3)))
    for completion in completions:
        for ours, theirs in zip(completion[:3], expected[:3], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert completion.finish == expected.finish
    assert load == LOAD


def test_where_no_engine_listens_the_infrastructure_has_failed(tmp_path):
    client = EngineSocketClient(tmp_path / "nobody", patience=0.05)
    with pytest.raises(EngineLostError, match="no engine listens"):
        asyncio.run(client.generate([1], Sampling()))


@pytest.mark.slow
def test_answers_of_an_engine_that_answers_one_at_a_time_do_not_depend_on_the_order():
    from k2jax.inference import Worker
    from k2jax.inference.client import EngineClient
    from tests.inference.tiny import engine, prompts

    asked = prompts(5, 9, 17, 30, 9, 12)
    worker = Worker(engine())

    async def answers(order):
        client = AloneClient(EngineClient(worker), worker)

        async def answer(number):
            return await client.generate(asked[number], Sampling(max_tokens=12, seed=number))

        return dict(zip(order, await asyncio.gather(*map(answer, order)), strict=True))

    first, second = asyncio.run(answers(range(6))), asyncio.run(answers([3, 5, 0, 1, 4, 2]))
    worker.stop()
    for number in range(6):
        np.testing.assert_array_equal(first[number].tokens, second[number].tokens)
        assert first[number].logprobs.tobytes() == second[number].logprobs.tobytes()


class Measured(ScriptedClient):
    """Takes a while between two tokens, and says how long a sequence may be."""

    async def longest_sequence(self):
        return 77

    async def generate(self, prompt, sampling, *, on_token=None, **options):
        def late(token, logprob):
            time.sleep(0.002)
            return on_token(token, logprob)

        return await super().generate(prompt, sampling, on_token=on_token and late, **options)


@pytest.mark.parametrize("resumed", [0, 2])
def test_tokens_are_reported_as_they_come_and_an_answer_ends_where_they_are_enough(tmp_path, resumed):
    path, script, asked = tmp_path / "engine", list(range(10, 40)), Sampling(max_tokens=30)

    async def exchange():
        serving = asyncio.ensure_future(EngineServer(Measured(lambda p, s: script)).serve(path))
        client = EngineSocketClient(path, patience=5)
        resume = (await client.generate([1], Sampling(max_tokens=2))) if resumed else None
        seen, enough = [], []
        whole = await client.generate([1], asked, resume=resume, on_token=lambda *token: seen.append(token))
        cut = await client.generate(
            [1], asked, resume=resume, on_token=lambda token, _: bool(enough.append(token)) or token == 15
        )
        longest = await client.longest_sequence()
        await client.close()
        serving.cancel()
        return seen, whole, enough, cut, longest

    seen, whole, enough, cut, longest = asyncio.run(exchange())
    assert [token for token, _ in seen] == script[resumed:] and whole.tokens.tolist() == script
    assert [logprob for _, logprob in seen] == whole.logprobs[resumed:].tolist()
    assert enough == script[resumed:6] and (cut.tokens.tolist(), cut.finish) == (script[:6], "stop")
    assert len(cut.logprobs) == len(cut.versions) == 6 and longest == 77


def test_the_longest_sequence_of_several_engines_is_what_each_of_them_serves():
    class Of(ScriptedClient):
        def __init__(self, longest):
            super().__init__(lambda p, s: [1])
            self._longest = longest

        async def longest_sequence(self):
            return self._longest

    async def longest(*engines):
        routed = RoutedClient([AloneClient(Of(each), None) for each in engines], Router(len(engines)))
        return await routed.longest_sequence(), await routed.subagents.longest_sequence()

    assert asyncio.run(longest(77, 60, None)) == (60, 60) and asyncio.run(longest(None)) == (None, None)


def reported_tokens():
    """What was reported of a request that goes on behind one token of the version 3, until it has the token 2."""
    resume = new_completion([0], [-0.5], [3], "cancelled")
    reported = ReportedTokens(lambda token, logprob: token == 2, resume)
    assert not reported.add(np.array([1]), np.array([-1.0]), np.array([4]))
    return reported


def test_what_came_after_the_last_wanted_token_is_dropped_with_its_routes():
    reported = reported_tokens()
    assert reported.add(np.array([2, 3]), np.zeros(2), np.array([5, 5]))
    assert not reported.add(np.array([4]), np.zeros(1), np.array([5]))
    experts = np.zeros((4 + 5 - 1, 1, 1), np.int16)
    arrays = np.arange(5, dtype=np.int32), np.zeros(5, np.float32), np.zeros(5, np.int64)
    cut = reported.cut(4, Completion(*arrays, "length", experts))
    assert (cut.tokens.tolist(), cut.finish, len(cut.experts)) == ([0, 1, 2], "stop", 6)
    lost = reported.completion()
    assert (lost.tokens.tolist(), lost.versions.tolist(), lost.finish) == ([0, 1, 2], [3, 4, 5], "stop")


def test_what_a_lost_engine_has_reported_is_what_another_goes_on_behind():
    lost = reported_tokens().completion()
    assert (lost.tokens.tolist(), lost.versions.tolist(), lost.finish) == ([0, 1], [3, 4], "cancelled")
    assert lost.logprobs.tolist() == [-0.5, -1.0] and ReportedTokens(lambda *_: None).completion() is None


def test_constraints_penalties_and_both_log_probabilities_cross_the_wire():
    asked = Sampling(
        stop_tokens=(3,),
        constraint=TokenConstraint('start: "x"', 5, (6, 7)),
        frequency_penalty=0.5,
        logit_bias=((2, 1.0),),
    )
    arrays = np.arange(3, dtype=np.int32), np.full(3, -0.5, np.float32), np.arange(3)
    free, experts = np.array([-1, -2, -np.nan], np.float32), np.ones((4, 2, 1), np.int16)
    for extra in ((None, free), (experts, free), (experts, None), (None, None)):
        resume = Completion(*arrays, "cancelled", *extra)
        request = unpack_request(pack_request(9, [1, 2], asked, resume))
        assert request.sampling == asked and request.resume.finish == "cancelled"
        for read, sent in zip(request.resume[4:], extra, strict=True):
            assert (read is None) == (sent is None)
            np.testing.assert_array_equal(read, sent)


def test_tokens_of_a_lost_engine_under_a_constraint_are_not_trained_on():
    """Both log-probabilities of what another engine adds are known, and one of what the lost one has reported."""
    lost = reported_tokens().completion()
    whole = new_completion([0, 1, 2], [-9, -9, -1.0], [4, 4, 5], "stop", lost, free_logprobs=[-9, -9, -1.0])
    assert whole.trainable.tolist() == [False, False, True]
    reported = reported_tokens()
    reported.add(np.array([2]), np.array([-1.0]), np.array([5]))
    longer = whole._replace(**{name: np.append(getattr(whole, name), 0) for name in ("tokens", "logprobs", "versions")})
    cut = reported.cut(4, longer._replace(free_logprobs=np.append(whole.free_logprobs, 0)))
    assert len(cut.tokens) == len(cut.free_logprobs) == 3
