"""Clients over the engine: resuming, cancelling, scripted replies, and results as arrays."""

import asyncio
import dataclasses
import json

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents.collect.engine_socket import EngineServer, EngineSocketClient
from k2jax.client import Completion, Sampling
from k2jax.errors import UserError
from k2jax.inference import Worker
from k2jax.inference.client import EngineClient, ForcedClient, LockstepClient
from k2jax.inference.weights import named_leaves
from tests.emulated import run_on
from tests.inference.tiny import ROUTED, engine, finish, oracle, prompts, weights

[PROMPT] = prompts(12)
SAMPLED = Sampling(max_tokens=20, temperature=0.8, seed=5)


@pytest.fixture(scope="module")
def whole():
    """The request without an interruption."""
    [request] = engine(ROUTED).generate([PROMPT], SAMPLED)
    return request.completion()


@pytest.fixture
def worker():
    worker = Worker(engine(ROUTED, version=3))
    yield worker
    worker.stop()


def resume(generated):
    """The request on a fresh engine, behind generated tokens."""
    run = engine(ROUTED)
    request = run.submit(PROMPT, SAMPLED, generated)
    finish(run)
    return request.completion()


@hypothesis.settings(max_examples=12)
@hypothesis.given(cut=st.integers(0, 20))
def test_a_request_cut_anywhere_goes_on_in_another_engine(whole, cut):
    completion = resume(whole.tokens[:cut].tolist())
    assert completion.tokens.tolist() == whole.tokens.tolist() and completion.finish == "length"
    np.testing.assert_allclose(completion.logprobs[cut:], whole.logprobs[cut:], atol=1e-4)


@pytest.mark.slow
def test_a_request_that_was_cut_goes_on_in_another_process(whole):
    generated = whole.tokens[:7].tolist()
    program = f"from tests.inference.test_client import resume; print(resume({generated}).tokens.tolist())"
    assert json.loads(run_on(1, "-c", program).splitlines()[-1]) == whole.tokens.tolist()


def test_results_are_arrays(worker, whole):
    completion = asyncio.run(EngineClient(worker).generate(PROMPT, SAMPLED))
    assert isinstance(completion, Completion) and completion.finish == "length" and completion.experts is None
    assert [part.dtype for part in completion[:3]] == [np.int32, np.float32, np.int64]
    np.testing.assert_array_equal(completion.tokens, whole.tokens)
    np.testing.assert_allclose(completion.logprobs, whole.logprobs, atol=1e-5)
    assert set(completion.versions.tolist()) == {3}
    expected = oracle(ROUTED, [*PROMPT, *completion.tokens], 0.8)[np.arange(11, 31), completion.tokens]
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


def test_a_resumed_completion_keeps_what_is_known_of_its_tokens(worker, whole):
    """Callbacks come for new tokens only; a stop by the callback gives a completion that can be resumed."""
    client, seen = EngineClient(worker), []

    async def run():
        half = await client.generate(PROMPT, SAMPLED, on_token=lambda token, _: token == whole.tokens[7])
        worker.call(lambda engine: engine.update_params(named_leaves(weights(ROUTED)), 4))
        return half, await client.generate(
            PROMPT, SAMPLED, resume=half, on_token=lambda token, logprob: seen.append((token, logprob))
        )

    half, resumed = asyncio.run(run())
    cut = whole.tokens.tolist().index(whole.tokens[7]) + 1
    assert (half.tokens.tolist(), half.finish) == (whole.tokens[:cut].tolist(), "stop")
    np.testing.assert_array_equal(resumed.tokens, whole.tokens)
    np.testing.assert_array_equal(resumed.logprobs[:cut], half.logprobs)
    assert resumed.versions.tolist() == [3] * cut + [4] * (20 - cut)
    assert seen == list(zip(resumed.tokens.tolist(), resumed.logprobs.tolist(), strict=True))[cut:]
    again = asyncio.run(client.generate(PROMPT, SAMPLED, resume=resumed, on_token=lambda *_: pytest.fail("no token")))
    for a, b in zip(again[:4], resumed[:4], strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_tokens_than_a_request_may_have_are_refused():
    run = engine(ROUTED)
    with pytest.raises(UserError, match="21 generated tokens are more than the request may have"):
        run.submit(PROMPT, SAMPLED, [1] * 21)
    with pytest.raises(UserError, match="outside the vocabulary"):
        run.submit(PROMPT, SAMPLED, [61])


def test_cancelling_frees_pages_and_slots(worker):
    client = EngineClient(worker)

    async def run():
        tasks = [asyncio.ensure_future(client.generate(prompt, Sampling(max_tokens=50))) for prompt in prompts(9, 10)]
        kept = asyncio.ensure_future(client.generate(PROMPT, SAMPLED))
        while worker.stats().running < 3:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, kept, return_exceptions=True)

    *cancelled, kept = asyncio.run(run())
    assert all(isinstance(each, asyncio.CancelledError) for each in cancelled) and len(kept.tokens) == 20
    stats = worker.call(lambda engine: engine.stats(), timeout=60)
    assert (stats.running, stats.waiting, stats.paused, stats.pages_in_use) == (0, 0, 0, 0)


def test_what_the_engine_ends_comes_back_with_its_tokens(worker, whole):
    client = EngineClient(worker)

    async def run():
        started = asyncio.Event()
        loop = asyncio.get_running_loop()
        tick = lambda token, logprob: loop.call_soon_threadsafe(started.set) and None  # noqa: E731
        task = asyncio.ensure_future(
            client.generate(PROMPT, dataclasses.replace(SAMPLED, max_tokens=50), on_token=tick)
        )
        await started.wait()
        worker.call(lambda engine: engine.cancel_all())
        return await task

    cut = asyncio.run(run())
    assert cut.finish == "cancelled" and 0 < len(cut.tokens) < 50
    np.testing.assert_array_equal(cut.tokens[:20], whole.tokens[: len(cut.tokens)])


def test_a_callback_s_error_is_its_coroutine_s_alone(worker):
    with pytest.raises(ZeroDivisionError):
        asyncio.run(EngineClient(worker).generate(PROMPT, SAMPLED, on_token=lambda *_: 1 / 0))
    assert worker.failed is None and worker.call(lambda engine: engine.stats()).running == 0


def test_an_engine_that_failed_is_told():
    worker = Worker(engine(ROUTED))

    async def run():
        worker._engine.step = lambda: 1 / 0
        await EngineClient(worker).generate(PROMPT, SAMPLED)

    with pytest.raises(RuntimeError, match="engine has failed"):
        asyncio.run(run())


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_forced_tokens_have_the_full_forward_pass_s_logprobs(worker, temperature):
    reply = prompts(30, seed=4)[0]
    client = ForcedClient(worker, lambda prompt, sampling: reply)
    sampling = Sampling(max_tokens=25, temperature=temperature, return_experts=True)
    completion = asyncio.run(client.generate(PROMPT, sampling))
    assert (completion.tokens.tolist(), completion.finish) == (reply[:25], "length")
    expected = oracle(ROUTED, [*PROMPT, *reply[:25]], temperature)[np.arange(11, 36), reply[:25]]
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
    assert set(completion.versions.tolist()) == {3} and completion.experts.shape == (36, 2, 2)


def test_given_tokens_are_scored_by_every_client_as_by_the_full_forward_pass(worker, tmp_path):
    ids, start = [*PROMPT, *prompts(20, seed=4)[0]], 12
    expected = oracle(ROUTED, ids, 1.0)[np.arange(start - 1, len(ids) - 1), ids[start:]]

    async def behind_a_socket():
        serving = asyncio.ensure_future(EngineServer(EngineClient(worker)).serve(tmp_path / "engine"))
        client = EngineSocketClient(tmp_path / "engine", patience=5)
        scores = await client.score(ids, start)
        with pytest.raises(UserError, match="longest sequence"):
            await client.score([1] * 70, 1)
        await client.close()
        serving.cancel()
        return scores

    async def in_lockstep():
        client = LockstepClient(engine(ROUTED))
        return await client.gather(client.score(ids, start), client.score(ids, start + 5))

    first, behind = asyncio.run(in_lockstep())
    for scores in (asyncio.run(EngineClient(worker).score(ids, start)), asyncio.run(behind_a_socket()), first):
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    np.testing.assert_allclose(behind, expected[5:], atol=1e-4)


def test_forced_replies_end_and_resume_like_generated_ones(worker):
    reply = prompts(30, seed=4)[0]
    client = ForcedClient(worker, lambda prompt, sampling: reply)
    sampling = Sampling(max_tokens=25, stop_tokens=(reply[9],))
    end = reply.index(reply[9]) + 1
    half = asyncio.run(client.generate(PROMPT, sampling, on_token=lambda token, _: token == reply[4]))
    assert half.finish == "stop" and len(half.tokens) <= 5
    seen = []
    whole = asyncio.run(client.generate(PROMPT, sampling, resume=half, on_token=lambda token, _: seen.append(token)))
    assert (whole.tokens.tolist(), whole.finish) == (reply[:end], "stop") and seen == reply[len(half.tokens) : end]
    again = asyncio.run(client.generate(PROMPT, sampling, resume=whole))
    np.testing.assert_array_equal(again.tokens, whole.tokens)
