"""Agents in pods of a cluster reach the gateway at its address, each its own rollout with its own key, and no other."""

import asyncio
import dataclasses
import re
import socket

from kubernetes.aio.client import Configuration
import pytest

from k2jax.agents.environment import Services
from k2jax.agents.environments.files import FilesEnvironment
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.gateway.routes import ClusterAddress
from k2jax.agents.mixture import DrawnTask
from k2jax.agents.sandbox.kubernetes import KubernetesBackend
from k2jax.agents.sandbox.pod import PodOptions
from k2jax.agents.scaffolds.check_place import check_place
from k2jax.client import ScriptedClient
from k2jax.errors import UserError
from k2jax.tasks.file_answers.dataset import texts_left
from tests.agents.gateway.repository import small_agent, task, write_agent
from tests.agents.gateway.test_black_box import answers, environment, episode
from tests.agents.sandbox.fakes.kubernetes_api import FakeKubernetes

PORTS = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
PORT, OTHER = (sock.getsockname()[1] for sock in PORTS)
for sock in PORTS:
    sock.close()


@pytest.fixture(scope="module")
def pods():
    """Pods that reach one port of this machine, as those of a gateway."""
    fake = FakeKubernetes()
    options = PodOptions(gateway=f"app=trainer:{PORT}")
    made = KubernetesBackend(options, images="my/", configuration=Configuration(host=fake.url))
    made.fake = fake
    return made


def in_pods(pods):
    return FilesEnvironment(Services(lambda: pods))


def agent():
    made = small_agent()
    return dataclasses.replace(made, argv=("python3", *made.argv[1:]))


def test_agents_in_pods_work_two_at_a_time_and_reach_their_own_rollouts_alone(pods, tmp_path):
    more = f"listen=127.0.0.1:{PORT}"
    of = task(image="my/agents")
    look = "$env | sort > seen.txt; wc -l < /proc/net/route >> seen.txt"

    async def run():
        async def one(number):
            key = EpisodeKey("train", 3, 1, number)
            (tmp_path / str(number)).mkdir()
            said = ScriptedClient(answers(f"$echo {number} > number.txt\n{look}", "Done."))
            options = {"of": of, "more": more, "place": in_pods(pods), "key": key}
            return await episode(said, agent(), tmp_path / str(number), **options)

        return await asyncio.gather(one(0), one(1))

    for number, ended in enumerate(asyncio.run(run())):
        assert (ended.status, ended.error, ended.answer) == ("finished", "", "Done.")
        left = texts_left(ended)
        assert left["number.txt"] == f"{number}\n" and "KEY" not in left["seen.txt"]
        assert [request["kind"] for request in ended.metadata["requests"]] == ["start", "extend"]
    assert not pods.fake.machines and len(pods.fake.policies) == 2


def test_a_rollout_of_another_agent_needs_its_key(pods, tmp_path):
    made = agent()
    path, text = next(iter(made.files.items()))
    steal = "base = base.replace('train-3-1-0', 'train-3-1-1').replace('train-3-1-2', 'train-3-1-1')\ndef ask("
    thief = dataclasses.replace(made, files={path: text.replace("def ask(", steal, 1)})

    async def run():
        async def one(number, who):
            (tmp_path / str(number)).mkdir()
            said = ScriptedClient(answers("$sleep 2; true", "Done."))
            options = {"of": task(image="my/agents"), "place": in_pods(pods), "more": f"listen=127.0.0.1:{PORT}"}
            return await episode(said, who, tmp_path / str(number), key=EpisodeKey("train", 3, 1, number), **options)

        return await asyncio.gather(one(0, thief), one(1, made))

    stolen, honest = asyncio.run(run())
    assert stolen.status == "masked" and re.search("asked its model nothing.*401", stolen.error)
    assert honest.status == "finished" and len(honest.metadata["requests"]) == 2


def test_an_agent_that_the_pods_image_lacks_is_refused_in_one_line(pods, tmp_path):
    missing = dataclasses.replace(agent(), argv=("no-agent", "x"))
    with pytest.raises(
        UserError, match=r"^the agent small on the image my/agents does not start: [^\n]*no-agent[^\n]*$"
    ):
        said = ScriptedClient(answers("Done."))
        asyncio.run(
            episode(
                said,
                missing,
                tmp_path,
                of=task(image="my/agents"),
                place=in_pods(pods),
                more=f"listen=127.0.0.1:{PORT}",
            )
        )


def test_sandboxes_that_reach_no_address_are_refused_and_others_are_not(tmp_path):
    with pytest.raises(UserError, match="reach no address"):
        said = ScriptedClient(answers("Done."))
        asyncio.run(episode(said, small_agent(), tmp_path, place=environment(), more=f"listen=127.0.0.1:{OTHER}"))
    path = write_agent(tmp_path / "agent.json", small_agent())
    drawn = [DrawnTask("a", task(scaffold=f"black_box agent={path}"))]
    with pytest.raises(UserError, match="needs a sandbox of this machine"):
        check_place(drawn, "kubernetes")
    check_place([DrawnTask("a", task(scaffold=f"black_box agent={path} listen=0.0.0.0:8900"))], "kubernetes")


def test_an_address_is_told_as_others_reach_it():
    assert ClusterAddress.read("", "") is None
    assert ClusterAddress.read("127.0.0.1:8900-8999", "").url == "http://127.0.0.1:PORT"
    assert ClusterAddress.read("[::1]:80", "").url == "http://[::1]:PORT"
    own = socket.gethostbyname(socket.gethostname())
    assert ClusterAddress.read("0.0.0.0:8900", "").url == f"http://{own}:PORT"
    assert ClusterAddress.read("0.0.0.0:8900", "http://k2jax:PORT/").url == "http://k2jax:PORT"
    for listen, url in (("", "http://x"), ("x", ""), ("x:1-0", "")):
        with pytest.raises(UserError):
            ClusterAddress.read(listen, url)
