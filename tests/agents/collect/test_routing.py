"""Routing, admission, the ratio of instances and the stream of groups, each against what it promises."""

import asyncio
import itertools
import random
from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np

from k2jax.agents.collect.admission import Admission, EngineLoads
from k2jax.agents.collect.engine_socket import EngineServer
from k2jax.agents.collect.instances import shared_instances
from k2jax.agents.collect.routing import BLOCK, REVIEW, RoutedClient, Router
from k2jax.agents.collect.wire_messages import EngineLoad
from k2jax.client import Sampling, ScriptedClient

PAGES = (("one", 0.25), ("other", 0.5))


def tokens(count, seed):
    return np.random.default_rng(seed).integers(0, 1000, count).astype(np.int32)


def longest_shared(prompt, sequences):
    """Whole blocks of the longest prefix that a prompt shares with one of the sequences, by comparing tokens."""
    shared = [int(np.argmin(np.append(prompt[: len(s)] == s[: len(prompt)], False))) for s in sequences]
    return max(shared, default=0) // BLOCK * BLOCK


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(0, 3))
def test_a_request_goes_where_its_longest_prefix_is_unless_that_engine_is_busier_than_the_bound(seed, engines, bound):
    rng = random.Random(seed)
    router = Router(engines, bound=bound)
    held, running = [[] for _ in range(engines)], [0] * engines
    for number in range(12):
        owned = [s for part in held for s in part]
        base = rng.choice(owned) if owned and rng.random() < 0.8 else tokens(BLOCK * 2, number)
        prompt = np.concatenate([base[: rng.randrange(1, len(base) + 1)], tokens(rng.randrange(3 * BLOCK), number)])
        free = [e for e in range(engines) if running[e] <= min(running) + bound]
        engine, cached = router.choose(prompt)
        lengths = {e: longest_shared(prompt, held[e]) for e in free}
        assert engine in free and cached == lengths[engine] == max(lengths.values())
        held[engine].append(prompt)
        running[engine] += 1
        if rng.random() < 0.5:
            sequence = np.concatenate([prompt, tokens(BLOCK, number + 1)])
            router.done(engine, sequence)
            held[engine].append(sequence)
            running[engine] -= 1
        assert router.running == running


def test_an_engine_forgets_the_end_of_what_was_unused_for_longest():
    router = Router(1, tokens=4 * BLOCK)
    old, new = tokens(3 * BLOCK, 0), tokens(2 * BLOCK, 1)
    for prompt in (old, new):
        router.done(router.choose(prompt)[0])
    assert router.choose(new)[1] == 2 * BLOCK
    assert router.choose(old)[1] == 2 * BLOCK


async def test_all_turns_of_an_episode_go_to_one_engine_and_episodes_to_different_ones():
    clients = [ScriptedClient(lambda prompt, sampling: range(BLOCK)) for _ in range(3)]
    routed = RoutedClient(clients, Router(3))

    async def episode(number):
        prompt = tokens(BLOCK, number).tolist()
        for _ in range(4):
            answer = await routed.generate(prompt, Sampling(max_tokens=BLOCK))
            prompt = [*prompt, *answer.tokens.tolist(), *range(5)]

    await asyncio.gather(*(episode(number) for number in range(3)))
    beginnings = [{prompt[:BLOCK] for prompt, _ in client.calls} for client in clients]
    assert [len(each) for each in beginnings] == [1, 1, 1] and [len(each.calls) for each in clients] == [4, 4, 4]


def test_sub_agents_have_engines_of_their_own_whose_number_follows_the_queues():
    def counted(client):
        return len(client.calls)

    clients = [ScriptedClient(lambda prompt, sampling: range(4)) for _ in range(4)]
    routed = RoutedClient(clients, Router(4, bound=0))

    async def ask(client, count, number):
        await asyncio.gather(*(client.generate(tokens(80, n + number).tolist(), Sampling()) for n in range(count)))

    asyncio.run(ask(routed, 40, 0))
    assert routed.instances == [4, 0] and all(map(counted, clients)), "without sub-agents all engines are one role's"
    asyncio.run(ask(routed.subagents, 1, 100))
    assert routed.instances == [3, 1]
    for _ in range(8):
        before = [counted(client) for client in clients]
        shares = routed.instances[0]
        asyncio.run(ask(routed.subagents, REVIEW - 1, 200))
        if routed.instances[0] == shares:
            assert [counted(client) for client in clients][:shares] == before[:shares]
        asyncio.run(ask(routed, 1, 300))
    assert routed.instances == [1, 3]
    before = [counted(client) for client in clients]
    asyncio.run(ask(routed, 8, 400))
    assert [counted(client) for client in clients] == [before[0] + 8, *before[1:]]


def test_admission_does_not_fall_again_before_the_last_fall_has_taken_effect():
    admission = Admission(100)
    for running in (100, 100, 90, 71):
        admission.observe(1.0, running)
        assert admission.limit == 70
    admission.observe(1.0, 70)
    assert admission.limit == 49


async def test_what_engines_say_of_their_caches_is_observed(tmp_path):
    class Observer:
        seen: ClassVar[list] = []

        def observe(self, pages, preempted):
            self.seen.append((pages, preempted))

    def told(pages):
        return itertools.chain([EngineLoad(pages, 1, 0, 0)], itertools.repeat(EngineLoad(pages, 1, 0, 2)))

    loads = {name: told(pages) for name, pages in PAGES}

    serving = [
        asyncio.ensure_future(EngineServer(None, lambda each=each: next(each), 0.01).serve(tmp_path / name))
        for name, each in loads.items()
    ]
    async with EngineLoads([str(tmp_path / name) for name, _ in PAGES], Observer().observe):
        while len(Observer.seen) < 12:
            await asyncio.sleep(0.01)
    for each in serving:
        each.cancel()
    for _, pages in PAGES:
        preempted = [preempted for each, preempted in Observer.seen if each == pages]
        assert preempted[:2] in ([False, True], [True, False]) and not any(preempted[2:]), "it counts once"


def test_admission_settles_below_the_pressure_of_a_cache():
    admission, room = Admission(4, increase=2), 100
    limits = []
    for _ in range(300):
        admission.observe(admission.limit / room, admission.limit)
        limits.append(admission.limit)
    assert max(limits[100:]) <= 97 and min(limits[100:]) >= 60
    room = 20
    for _ in range(20):
        admission.observe(admission.limit / room, admission.limit)
    assert admission.limit <= 20
    before = admission.limit
    admission.observe(0.0, running=0)
    assert admission.limit == before, "a limit that is not reached says nothing"


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=4), st.integers(0, 20))
def test_the_ratio_of_instances_comes_to_that_of_the_queues_and_stays(queues, more):
    engines = len(queues) + more
    now = [1 + more, *[1] * (len(queues) - 1)]
    for _ in range(engines + 1):
        later = shared_instances(engines, queues, now)
        assert sum(later) == engines and min(later) >= 1
        assert sum(abs(a - b) for a, b in zip(now, later, strict=True)) in (0, 2)
        now, before = later, now
    assert now == before, "it does not swing"
    if len(queues) == 2 and sum(queues) > 0:
        wanted = np.clip(engines * queues[0] / sum(queues), 1, engines - 1)
        assert abs(now[0] - wanted) <= 0.5 + 1e-6
