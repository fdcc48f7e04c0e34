"""A gateway that was killed goes on from its logs: nothing is lost that a client has seen, and nothing is doubled."""

import asyncio
import contextlib
import subprocess
import sys

import httpx
import pytest

from k2jax.agents.gateway import Gateway, RolloutAccess
from k2jax.agents.gateway.log import RolloutLogs
from k2jax.client import ScriptedClient
from k2jax.errors import UserError
from k2jax.trajectory import TrajectoryStore, verify
from tests.agents.gateway.scripted import CARD, OPERATOR, chat_answer, chat_body, sampled_nodes, spec
from tests.agents.gateway.serving import reply
from tests.emulated import ROOT

COMMAND = [sys.executable, "-m", "tests.agents.gateway.serving"]


@contextlib.contextmanager
def process(folder):
    """A gateway process; it is killed without warning."""
    running = subprocess.Popen([*COMMAND, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield httpx.Client(base_url=f"http://127.0.0.1:{int(running.stdout.readline())}", timeout=30)
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


def test_a_killed_gateway_goes_on(tmp_path):
    operator = {"Authorization": f"Bearer {OPERATOR}"}
    items = [("user", "Go")]
    with process(tmp_path) as http:
        opened = http.post("/rollouts", json=spec().to_json() | {"name": "a"}, headers=operator)
        access = RolloutAccess(**opened.json())
        headers, path = {"Authorization": f"Bearer {access.key}"}, f"{access.path}/v1/chat/completions"
        items += [chat_answer(http.post(path, json=chat_body(items), headers=headers).json()), ("user", "On")]
        with http.stream("POST", path, json=chat_body(items, stream=True), headers=headers) as stream:
            seen = [line for line, _ in zip(stream.iter_lines(), range(12), strict=False)]
    assert any("content" in line for line in seen)  # it had begun to answer when it was killed
    with process(tmp_path) as http:
        for _ in range(2):
            items += [chat_answer(http.post(path, json=chat_body(items), headers=headers).json()), ("user", "On")]
        ended = http.post("/rollouts/a/close", json={}, headers=operator).json()
    tokens = ended["counts"].pop("tokens")
    assert ended["counts"] == {"abandoned": 0, "extend": 2, "requests": 3, "start": 1}
    [stored] = TrajectoryStore(tmp_path / "trajectories").read(0)
    sampled = sampled_nodes(stored)
    assert verify(stored) == [] and len(stored.leaves()) == 1 and stored.sampled_tokens == tokens
    assert [node.turn for node in sampled] == [0, 1, 2]
    assert [f"after {i}." in node.message["content"] for i, node in enumerate(sampled)] == [True] * 3


ROLLOUTS, TURNS, KILLS = 12, 5, 3
SECONDS_BETWEEN = 0.05  # of the beginnings of rollouts, so that a kill finds each at another token


class Restarted:
    """A gateway process that is killed and started again with the same folder, and clients that ask until they know."""

    def __init__(self, folder):
        self.folder, self.address, self.running, self.answers = folder, "", None, 0

    async def start(self):
        command = (*COMMAND, str(self.folder))
        self.running = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        self.address = f"http://127.0.0.1:{int(await self.running.stdout.readline())}"

    async def kill(self):
        self.running.kill()
        await self.running.wait()

    async def ask(self, path, body, key):
        while True:
            async with httpx.AsyncClient(base_url=self.address, timeout=30) as http:
                try:
                    answer = await http.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
                    return answer.raise_for_status().json()
                except httpx.TransportError:
                    await asyncio.sleep(0.05)

    async def converse(self, number):
        """A rollout of some turns; returns its name and the texts that its agent has seen."""
        await asyncio.sleep(number * SECONDS_BETWEEN)
        opened = await self.ask("/rollouts", spec(key=(0, number, 0)).to_json(), OPERATOR)
        items, seen = [("user", f"Go {number}")], []
        for _ in range(TURNS):
            path = f"{opened['path']}/v1/chat/completions"
            answer = chat_answer(await self.ask(path, chat_body(items), opened["key"]))
            seen.append(answer[2])
            self.answers += 1
            items += [answer, ("user", "On")]
        return opened["rollout"], seen


@pytest.mark.slow
def test_rollouts_of_a_gateway_that_is_killed_again_and_again_lose_and_double_nothing(tmp_path):
    gateway = Restarted(tmp_path)

    async def run():
        await gateway.start()
        asked = [asyncio.create_task(gateway.converse(number)) for number in range(ROLLOUTS)]
        for number in range(KILLS):
            while gateway.answers < (number + 1) * ROLLOUTS:
                await asyncio.sleep(0.01)
            await gateway.kill()
            await gateway.start()
        said = await asyncio.gather(*asked)
        for name, _ in said:
            await gateway.ask(f"/rollouts/{name}/close", {}, OPERATOR)
        await gateway.kill()
        return dict(said)

    said = asyncio.run(run())
    stored = list(TrajectoryStore(tmp_path / "trajectories").read(0))
    assert sorted(trajectory.metadata["rollout"] for trajectory in stored) == sorted(said)
    for trajectory in stored:
        seen, sampled = said[trajectory.metadata["rollout"]], sampled_nodes(trajectory)
        last = max(i for i, node in enumerate(trajectory.nodes) if node.turn >= 0)
        path = [trajectory.nodes[i] for i in trajectory.path(last)]
        assert verify(trajectory) == [] and [n.message["content"] for n in path if n.turn >= 0] == seen
        assert len({node.turn for node in sampled}) == len(sampled) == len(trajectory.metadata["requests"])
        kinds = [request["kind"] for request in trajectory.metadata["requests"]]
        # What was recorded and then cut off on its way is asked for again.
        assert kinds.count("repeat") == len(sampled) - TURNS and "branch" not in kinds


def test_a_rollout_whose_end_was_not_stored_is_stored_by_the_next_process(tmp_path):
    gateway = Gateway(ScriptedClient(reply), CARD, tmp_path)
    gateway.open(spec(), "a")
    gateway.release_folder()
    logs = RolloutLogs(tmp_path / "rollouts")
    logs.append("a", {"event": "close", "status": "finished", "error": ""})
    logs.close()
    for _ in range(2):
        Gateway(ScriptedClient(reply), CARD, tmp_path).release_folder()
        [stored] = TrajectoryStore(tmp_path / "trajectories").read(0)
        assert stored.status == "finished" and stored.metadata["rollout"] == "a"


def test_a_name_whose_trajectories_are_stored_stays_taken_although_its_log_is_gone(tmp_path):
    """A second rollout of the name would be taken for the first, and never stored."""
    gateway = Gateway(ScriptedClient(reply), CARD, tmp_path)
    gateway.open(spec(), "a")
    asyncio.run(gateway.close("a"))
    gateway.release_folder()
    (tmp_path / "rollouts" / "ended" / "a.jsonl").unlink()
    again = Gateway(ScriptedClient(reply), CARD, tmp_path)
    with pytest.raises(UserError, match="another name"):
        again.open(spec(), "a")
    again.open(spec(key=(1, 0, 0)), "b")
    asyncio.run(again.close("b"))
    again.release_folder()
    assert [len(list(TrajectoryStore(tmp_path / "trajectories").read(step))) for step in (0, 1)] == [1, 1]
