"""In lockstep, the engine's programs and numbers do not depend on how long coroutines take for other things."""

import asyncio
import random
import time

import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference.client import LockstepClient
from k2jax.inference.weights import named_leaves
from tests.inference.tiny import GQA, engine, prompts, weights

COROUTINES, TURNS = 24, 2
PROMPTS = prompts(*(3 + i % 9 for i in range(COROUTINES)))


def chunks(ran):
    """The chunks of every program that ran, in order."""
    seen = []
    for given in [run.given[0] for run in ran if run.name != "sample"]:
        tokens = [np.asarray(part) for part in (given.tokens, given.count, given.start)]
        seen.append(([(part.shape, part.tobytes()) for part in tokens], given.pages.shape))
    return seen


async def rollout(client, number, delays):
    """Turns of a model and a tool that takes any time, on the loop or on a thread."""
    loop = asyncio.get_running_loop()
    context, results = list(PROMPTS[number]), []
    for turn in range(TURNS):
        await asyncio.sleep(delays.random() * 0.004)
        await loop.run_in_executor(None, time.sleep, delays.random() * 0.004)
        sampling = Sampling(max_tokens=1 + (number + turn) % 5, temperature=0.8, seed=100 * turn + number)
        completion = await client.generate(context, sampling)
        results.append(completion)
        context = [*context, *completion.tokens, number % 61]
    return results


def run_rollouts(seed):
    """Tokens and log-probabilities, as bytes, of all rollouts on a fresh engine; ``seed`` of the delays."""
    delays = random.Random(seed)

    async def everyone():
        client = LockstepClient(engine())
        return await client.gather(*(rollout(client, i, delays) for i in range(COROUTINES)))

    return [(turn.tokens.tobytes(), turn.logprobs.tobytes()) for result in asyncio.run(everyone()) for turn in result]


def test_timing_changes_neither_programs_nor_bits(ran):
    runs = []
    for seed in (1, 2):
        ran.clear()
        runs.append((run_rollouts(seed), chunks(ran)))
    assert len(runs[0][1]) > 20
    assert runs[0] == runs[1]


def test_the_engine_waits_for_a_tool_and_no_longer(ran):
    """A participant in a tool holds everybody up; one that has left, or waits for its own children, nobody."""
    order = []

    async def slow(client):
        await asyncio.sleep(0.1)
        order.append("tool")
        await client.generate(PROMPTS[1], Sampling(max_tokens=1))

    async def quick(client, name):
        await client.generate(PROMPTS[0], Sampling(max_tokens=3))
        order.append(name)

    async def parent(client):
        await client.gather(quick(client, "child"), quick(client, "other child"))
        order.append("parent")
        await client.generate(PROMPTS[2], Sampling(max_tokens=1))

    async def everyone():
        client = LockstepClient(engine())
        await client.gather(slow(client), quick(client, "quick"), parent(client))

    asyncio.run(asyncio.wait_for(everyone(), 60))
    assert order[0] == "tool" and order[-1] == "parent" and set(order[1:-1]) == {"quick", "child", "other child"}
    shape, counts = chunks(ran)[0][0][1]
    assert shape == (4,) and (np.frombuffer(counts, np.int32) > 0).all()


def test_children_of_several_gathers_at_a_time_share_programs_whatever_a_tool_beside_them_takes(ran):
    """One participant waits for children in several tasks of its own, and in another for no engine at all."""

    async def child(client, number):
        await client.generate(PROMPTS[number], Sampling(max_tokens=1, seed=number))
        return number

    async def parent(client, first, seconds):
        calls = [client.gather(child(client, first + number)) for number in range(3)]
        asked = [asyncio.ensure_future(call) for call in (calls[0], asyncio.sleep(seconds), *calls[1:])]
        ended = await asyncio.gather(*asked)
        await client.generate(PROMPTS[first], Sampling(max_tokens=1))
        return ended

    async def everyone(seconds):
        client = LockstepClient(engine())
        return await client.gather(*(parent(client, 3 * number, each) for number, each in enumerate(seconds)))

    runs = []
    for seconds in ((0.0, 0.03), (0.03, 0.0)):
        ran.clear()
        runs.append((asyncio.run(everyone(seconds)), chunks(ran)))
    assert runs[0] == runs[1] and runs[0][0] == [[[0], None, [1], [2]], [[3], None, [4], [5]]]


def test_engines_beside_each_other_wait_for_everybody_and_have_the_programs_that_each_would_have_alone(ran):
    """Participants ask two engines by turns, and some spawn others; who waits for either does not hold the other up."""

    async def asking(clients, number, delays):
        answers = []
        for turn in range(4):
            await asyncio.sleep(delays.random() * 0.004)
            client = clients[(number + turn) % 2]
            sampling = Sampling(max_tokens=1 + (number + turn) % 5, temperature=0.8, seed=100 * turn + number)
            if turn == 2:
                (answer,) = await clients[0].gather(client.generate(PROMPTS[number], sampling))
            else:
                answer = await client.generate(PROMPTS[number], sampling)
            answers.append((answer.tokens.tobytes(), answer.logprobs.tobytes()))
        return answers

    async def everyone(delays):
        first = LockstepClient(engine())
        clients = [first, LockstepClient(engine(seed=1), beside=first)]
        return await first.gather(*(asking(clients, number, delays) for number in range(8)))

    runs = []
    for seed in (1, 2):
        ran.clear()
        runs.append((asyncio.run(asyncio.wait_for(everyone(random.Random(seed)), 60)), chunks(ran)))
    assert runs[0] == runs[1]

    async def at_once(sampling):
        first = LockstepClient(engine())
        second = LockstepClient(engine(seed=1, version=1), beside=first)
        asked = [client.generate(prompt, sampling) for client in (first, second) for prompt in PROMPTS[:4]]
        answers, seen = await first.gather(*asked), []
        await second.call_each(lambda each: seen.append(each.version))
        assert seen == [0, 1], "every engine is called, in the order of their clients"
        return [each.logprobs.tobytes() for each in answers]

    sampling = Sampling(max_tokens=6, temperature=0.8)
    beside, alone = (
        asyncio.run(at_once(sampling)),
        [engine(seed=seed).generate(PROMPTS[:4], sampling) for seed in (0, 1)],
    )
    assert beside == [np.array(each.logprobs, np.float32).tobytes() for each in (*alone[0], *alone[1])]


def test_a_failure_of_an_engine_ends_those_who_wait_for_another_one():
    async def everyone():
        first = LockstepClient(engine())
        broken = engine(seed=1)
        broken.step = lambda: 1 / 0
        second = LockstepClient(broken, beside=first)
        results = await asyncio.gather(
            first.gather(first.generate(PROMPTS[0], Sampling(max_tokens=40)), second.generate(PROMPTS[1], Sampling())),
            return_exceptions=True,
        )
        assert first.failed is second.failed is not None
        raise results[0]

    with pytest.raises(RuntimeError, match="engine has failed"):
        asyncio.run(asyncio.wait_for(everyone(), 60))


def test_a_run_resumed_after_an_update_repeats_its_bits(ran):
    """New weights while rollouts run; a fresh engine with those weights resumes them: same programs, same numbers."""
    many, whole = [prompts(4 + i)[0] for i in range(12)], Sampling(max_tokens=12, temperature=0.8)
    cut = {}

    async def interrupted(client):
        async def one(i, resume=None):
            await asyncio.sleep(random.random() * 0.003)
            return await client.generate(many[i], sampling(i), resume=resume)

        async def trainer():
            await client.generate(many[0], Sampling(max_tokens=3))
            requests = {request.prompt: request for request in client._calls}
            cut.update({i: requests[tuple(many[i])].completion() for i in range(12)})
            await client.call(lambda engine: engine.update_params(named_leaves(weights(GQA, 1)), 1))
            ran.clear()

        return (await client.gather(trainer(), *(one(i) for i in range(12))))[1:]

    async def resumed(client):
        async def one(i):
            await asyncio.sleep(random.random() * 0.003)
            return await client.generate(many[i], sampling(i), resume=cut[i])

        return await client.gather(*(one(i) for i in range(12)))

    def sampling(i):
        return Sampling(max_tokens=whole.max_tokens, temperature=whole.temperature, seed=i)

    first = asyncio.run(interrupted(LockstepClient(engine())))
    before = chunks(ran)
    ran.clear()
    second = asyncio.run(resumed(LockstepClient(engine(seed=1, version=1))))
    assert sorted(len(each.tokens) > 0 for each in cut.values()) == [False] * 9 + [True] * 3 and len(before) > 10
    assert chunks(ran) == before
    for a, b in zip(first, second, strict=True):
        assert set(a.versions.tolist()) <= {0, 1} and a.versions.tolist() == b.versions.tolist()
        assert a.tokens.tobytes() == b.tokens.tobytes() and a.logprobs.tobytes() == b.logprobs.tobytes()


def test_cancelled_coroutines_hold_nobody_up_and_free_everything():
    run = engine()

    async def everyone():
        client = LockstepClient(run)

        async def cancelled(begin):
            """Begins something and cancels it at its first token, whatever the machine's speed."""
            loop, first = asyncio.get_running_loop(), asyncio.Event()
            task = asyncio.ensure_future(begin(lambda *_: loop.call_soon_threadsafe(first.set)))
            await first.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async def impatient(i):
            await cancelled(lambda seen: client.generate(PROMPTS[i], Sampling(max_tokens=50), on_token=seen))
            return (await client.generate(PROMPTS[i], Sampling(max_tokens=2))).finish

        async def busy():
            await asyncio.sleep(0.3)

        async def fails():
            await client.generate(PROMPTS[0], Sampling(max_tokens=2))
            raise ArithmeticError("boom")

        assert await client.gather(impatient(1), impatient(2), busy()) == ["length", "length", None]
        with pytest.raises(ArithmeticError):
            await client.gather(fails(), patient(client))
        await cancelled(lambda seen: client.gather(*(patient(client, seen) for _ in range(3))))
        [left] = await client.gather(patient(client))
        assert left == "length"

    async def patient(client, on_token=None):
        return (await client.generate(PROMPTS[3], Sampling(max_tokens=40), on_token=on_token)).finish

    asyncio.run(asyncio.wait_for(everyone(), 60))
    stats = run.stats()
    assert (stats.running, stats.waiting, stats.paused, stats.pages_in_use) == (0, 0, 0, 0)


def test_all_generations_can_be_ended_and_resumed():
    whole = engine().generate(PROMPTS[:4], Sampling(max_tokens=50, temperature=0.8, seed=3))

    async def everyone():
        run = engine()
        client = LockstepClient(run)
        sampling = Sampling(max_tokens=50, temperature=0.8, seed=3)

        async def one(i):
            cut = await client.generate(PROMPTS[i], sampling)
            assert cut.finish == "cancelled" and 0 < len(cut.tokens) < 50
            return await client.generate(PROMPTS[i], sampling, resume=cut)

        running = asyncio.ensure_future(client.gather(*(one(i) for i in range(4))))
        while not run.stats().tokens_generated:
            await asyncio.sleep(0)
        await client.cancel_all()
        return await running

    for request, completion in zip(whole, asyncio.run(everyone()), strict=True):
        assert list(request.tokens) == completion.tokens.tolist()


def test_misuse_is_told_in_one_line():
    async def everyone():
        client = LockstepClient(engine())
        with pytest.raises(UserError, match="needs a participant"):
            await client.generate(PROMPTS[0], Sampling())

        async def twice_at_once():
            both = [client.generate(PROMPTS[0], Sampling(max_tokens=2)) for _ in range(2)]
            with pytest.raises(UserError, match="one generation at a time"):
                await asyncio.gather(*both)

        await client.gather(twice_at_once())

    asyncio.run(everyone())


def test_an_engine_that_fails_ends_every_coroutine():
    async def everyone():
        run = engine()
        run.step = lambda: 1 / 0
        client = LockstepClient(run)
        return await client.gather(*(client.generate(PROMPTS[i], Sampling()) for i in range(3)))

    with pytest.raises(RuntimeError, match="engine has failed"):
        asyncio.run(asyncio.wait_for(everyone(), 60))
