"""A gateway that was killed goes on from its logs: nothing is lost that a client has seen, and nothing is doubled."""

import asyncio
import contextlib
import subprocess
import sys

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.client import ScriptedClient
from k2jax.errors import UserError
from k2jax.gateway import Gateway, RolloutAccess
from k2jax.gateway.log import RolloutLogs
from k2jax.trajectory import TrajectoryStore, verify
from tests.emulated import ROOT
from tests.gateway.scripted import CARD, OPERATOR, chat_answer, chat_body, spec
from tests.gateway.serving import reply


@contextlib.contextmanager
def process(folder):
    """A gateway process; it is killed without warning."""
    command = [sys.executable, "-m", "tests.gateway.serving", str(folder)]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
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
    sampled = [node for node in stored.nodes if node.turn >= 0]
    assert verify(stored) == [] and len(stored.leaves()) == 1 and stored.sampled_tokens == tokens
    assert [node.turn for node in sampled] == [0, 1, 2]
    assert [f"after {i}." in node.message["content"] for i, node in enumerate(sampled)] == [True] * 3


RECORD = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=6), max_size=3)


@settings(max_examples=25)
@given(records=st.lists(RECORD, max_size=4), cut=st.integers(0, 200), flip=st.integers(0, 200))
def test_a_log_that_was_cut_off_keeps_its_whole_records(tmp_path_factory, records, cut, flip):
    logs = RolloutLogs(tmp_path_factory.mktemp("logs"))
    for record in records:
        logs.append("a", record)
    path = logs.folder / "a.jsonl"
    whole = path.read_bytes() if records else b""
    path.write_bytes(whole[:cut])
    kept = logs.read("a")
    assert kept == records[: len(kept)] and whole[:cut].count(b"\n") == len(kept)
    logs.append("a", {"more": 1})
    assert logs.read("a") == [*kept, {"more": 1}]
    if whole:
        at = flip % len(whole)
        if whole[at : at + 1] != b"\n":
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(UserError, match="line"):
                logs.read("a")
    logs.close()


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
