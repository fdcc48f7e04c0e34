"""Agents that send as much as they can: bodies, headers and connections cost bounded memory and no pause of others."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
import json
import mmap
from pathlib import Path
import subprocess
import sys
import time

import pytest

from tests.hostile.http_bodies import BODIES, HEADS, LONG, MEGA, READ, chat, every_means, mute_connections, send_head
from tests.hostile.probe import Probe
from tests.hostile.runner import MOST_GROWTH
from tests.hostile.targets import HttpTarget, at_once

MOST_PAUSE = 0.5
"""Pause of the event loop [processor seconds of the gateway's process]."""


class Attacked(HttpTarget):
    """A gateway in a process of its own, whose model says what a script does."""

    def __init__(self, folder):
        command = [sys.executable, "-m", "tests.agents.gateway.attacked", str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        begun = json.loads(self.process.stdout.readline())
        super().__init__(begun["port"], begun["rollouts"], begun["socket"])
        assert "listening" in self.process.stdout.readline()

    def measured(self):
        self.process.stdin.write("\n")
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    attacked = Attacked(tmp_path_factory.mktemp("gw"))
    good(attacked)
    while not Path(attacked.socket).exists():
        time.sleep(0.01)
    yield attacked
    attacked.process.kill()
    attacked.process.wait()


def good(gateway, rollout=3):
    assert gateway.post(rollout, chat("Hello")) == 200


def bears(gateway, attack):
    """Runs an attack, which returns statuses; others are served during it and after it."""
    time.sleep(0.1)
    gateway.measured()
    with ThreadPoolExecutor(1) as other:
        beside = other.submit(good, gateway)
        statuses = attack(gateway)
        beside.result()
        cost = gateway.measured()
    good(gateway)
    assert cost["growth"] < MOST_GROWTH, f"{cost['growth'] / MEGA:.0f} MB"
    assert cost["pause"] < MOST_PAUSE, f"{cost['pause']:.2f} s"
    assert all(0 <= status < 500 for status in statuses), statuses
    return statuses


@pytest.mark.parametrize("body", BODIES)
def test_a_body_of_thirty_megabytes_is_refused_or_read_at_a_bounded_cost(gateway, body):
    data = BODIES[body]()
    [status] = bears(gateway, lambda gateway: [gateway.post(0, data)])
    assert status in ((200,) if body in READ else (400, 413))


@pytest.mark.parametrize("path", ["chat/completions", "messages/count_tokens"])
def test_long_bodies_of_several_rollouts_come_one_after_the_other(gateway, path):
    body = chat("a" * LONG + "\U0001f600")
    statuses = bears(gateway, lambda gateway: at_once(5, lambda i: gateway.post(i % 3, body, path)))
    assert set(statuses) <= {0, 400, 413}  # 0: refused before the body was read to its end


@pytest.mark.slow
def test_a_rollout_sends_hundreds_of_bodies_at_once(gateway):
    body = chat("hello world, " * (900_000 // 13))
    statuses = bears(gateway, lambda gateway: at_once(200, lambda i: gateway.post(i % 3, body)))
    assert 400 in statuses and set(statuses) <= {0, 400, 429}


@pytest.mark.slow
def test_every_means_at_once(gateway):
    """Half-sent headers and bodies on hundreds of connections, and among them bodies of all kinds."""
    statuses = bears(gateway, lambda gateway: every_means(gateway, unix=True))
    assert set(statuses) <= {0, 400, 413, 429}


@pytest.mark.parametrize("unix", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_what_comes_before_a_body_has_an_end(gateway, head, unix):
    ends = []

    def attack(gateway):
        ends.append(send_head(gateway, head, unix))
        return [ends[0][0]]

    bears(gateway, attack)
    [(status, right, taken)] = ends
    assert taken < 30 * MEGA and status in (0, right, 400)


def test_connections_that_say_nothing_have_a_limit(gateway):
    ended = []

    def attack(gateway):
        ended.append(mute_connections(gateway, 200, unix=True))
        return []

    bears(gateway, attack)
    assert ended == [200 - 128]


@pytest.mark.slow
def test_the_probe_sees_memory_and_pauses():
    """What the tests above rest on: a process that grows and an event loop that stands still are seen."""
    probe = Probe()

    async def run():
        task = asyncio.create_task(probe.run())
        await asyncio.sleep(0.05)
        begun = time.process_time()
        while time.process_time() - begun < 0.2:
            pass
        await asyncio.sleep(0.05)
        task.cancel()

    with mmap.mmap(-1, 64 * MEGA) as held:  # new pages, whatever this process has at hand
        held.write(b"x" * 64 * MEGA)
        asyncio.run(run())
        cost = probe.measured()
    assert cost["growth"] > 60 * MEGA and cost["pause"] > 0.15 < cost["stall"]
    assert probe.measured()["growth"] < 10 * MEGA
