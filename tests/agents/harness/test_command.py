"""The scaffold of a harness: what its program is told, what it hands back, and that nothing of it is left behind."""

import asyncio
import contextlib
import dataclasses
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import OUTCOME
from k2jax.agents.environments.files import FILES
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.gateway.listener import ListenAddress
from k2jax.agents.harness.command import VARIABLES, CommandScaffold
from k2jax.agents.harness.kept_program import run_program
from k2jax.agents.registry import scaffolds
from k2jax.agents.scorer import Scorer
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.client import ScriptedClient
from k2jax.errors import UserError
from k2jax.inference import LockstepClient
from k2jax.tasks.file_answers.dataset import EXPECTED
from k2jax.trajectory import verify
from tests.agents.harness.programs import BYTES, PLAIN, TASK, episode, processes_with, written
from tests.emulated import ROOT


def scripted(*texts):
    """A client that says the next text after every answer."""

    def reply(prompt, sampling):
        turns = sum(int(token) == PLAIN.end for token in prompt)
        return [*BYTES.encode(texts[min((turns - 1) // 2, len(texts) - 1)]), PLAIN.end]

    return ScriptedClient(reply)


def played(folder, body, more="", **options):
    return asyncio.run(episode(scripted("one", "two"), written(folder, body), more, **options))


def judged(trajectory, **task):
    of = dataclasses.replace(TASK, scaffold="command program=x", **task)
    with VerifierPool(workers=1) as pool:
        return asyncio.run(Scorer(pool).score(of, trajectory))


def test_a_program_is_told_what_it_needs_and_its_reward_is_the_episode_s(tmp_path):
    body = """
    first, second = two_turns()
    files = {name: oct(os.stat(os.environ[name]).st_mode & 0o777) for name in os.environ
             if name.startswith("K2JAX_") and name.endswith("_FILE") and os.path.exists(os.environ[name])}
    told = {name: value for name, value in os.environ.items() if name.startswith("K2JAX_")}
    secrets = [key("K2JAX_KEY_FILE"), key("K2JAX_REWARD_KEY_FILE")]
    shown = [secret for secret in secrets if secret in open("/proc/self/environ").read() + str(sys.argv)]
    info = {"files": files, "told": told, "shown": shown, "said": [first, second], "task": TASK, "cwd": os.getcwd()}
    json.dump({"reward": 0.75, "parts": {"words": 2}, "info": info}, open(REWARD, "w"))
    print("scored")
    """
    trajectory = played(tmp_path, body)
    assert trajectory.status == "finished", trajectory.error
    assert verify(trajectory, BYTES.vocab_size) == [] and trajectory.answer == "two"
    assert [request["kind"] for request in trajectory.metadata["requests"]] == ["start", "extend"]
    reward = judged(trajectory)
    assert (reward.value, reward.parts) == (0.75, {"words": 2.0})
    info = reward.info
    assert info["told"].keys() >= VARIABLES.keys() and info["shown"] == [] and info["said"] == ["one", "two"]
    assert info["told"]["K2JAX_EPISODE"] == "train-3-1-2" and info["cwd"] == os.getcwd()
    assert info["told"]["K2JAX_SEED"] == str(trajectory.metadata["seed"]) and info["told"]["K2JAX_MAX_TOKENS"] == "40"
    assert set(info["files"].values()) == {"0o600"} and len(info["files"]) == 3
    assert info["task"]["metadata"] == {"secret": "ok"}
    agent = trajectory.metadata["agent"]
    assert (agent["code"], agent["output"], agent["ended_by"]) == (0, "scored\n", "itself")
    assert not os.path.exists(info["told"]["K2JAX_KEY_FILE"])


def test_a_reward_is_accepted_once_from_its_own_key_and_within_its_range(tmp_path):
    body = """
    ask(QUESTION)
    wrong = [close(0.5, "K2JAX_KEY_FILE")[0], post("/close", {"reward": 0.5}, "k2-reward-guessed")[0]]
    bad = [1.5, -0.1, True, None, "1", [1], {}, 10 ** 400]
    hostile = [post("/close", {"reward": value}, key("K2JAX_REWARD_KEY_FILE"))[0] for value in bad]
    deep = b'{"reward": 0.5, "info": {"a": ' + b"[" * 60 + b"]" * 60 + b"}}"
    raw = [deep, b"", b"NaN", b"[" * 100000, b'{"reward": Infinity}', b'{"reward": 0.5, "parts": {"a": "b"}}',
           b'{"reward": 0.5, "secret": 1}', b'{"reward": 0.5}' + b" " * (1 << 20)]
    hostile += [post("/close", each, key("K2JAX_REWARD_KEY_FILE"))[0] for each in raw]
    good = [close(0.25), close(0.25), close(1.0)]
    late = ask(QUESTION)[0]
    print(json.dumps({"wrong": wrong, "hostile": hostile, "good": good, "late": late}))
    """
    trajectory = played(tmp_path, body)
    said = json.loads(trajectory.metadata["agent"]["output"])
    assert said["wrong"] == [401, 401] and set(said["hostile"][:-1]) == {400} and said["hostile"][-1] == 413
    assert [status for status, _ in said["good"]] == [200, 409, 409] and said["late"] == 401
    assert judged(trajectory).value == 0.25 and len(trajectory.metadata["requests"]) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("ask(QUESTION)", "ended with code 0 and handed back no reward"),
        ("ask(QUESTION); sys.exit('the cluster is full')", "code 1 and handed back no reward: 'the cluster is full"),
        ("ask(QUESTION); open(REWARD, 'w').write('NaN')", "handed back no reward"),
        ("ask(QUESTION); open(REWARD, 'w').write('2')", "a reward of 2 is outside 0 to 1"),
        ("ask(QUESTION); open(REWARD, 'w').write('[0.5]')", "a reward must be a number"),
        ("ask(QUESTION); open(REWARD, 'w').write('1' * 200000)", "has more than 131072 bytes"),
        ("ask(QUESTION); os.symlink('/etc/hostname', REWARD)", "cannot be read"),
        ("ask(QUESTION); os.mkfifo(REWARD)", "is no regular file"),
        ("ask(QUESTION); close(0.5); open(REWARD, 'w').write('0.5')", "handed back two rewards"),
        ("close(0.5)", "asked its model nothing"),
    ],
)
def test_an_episode_without_a_clear_reward_is_masked_with_the_reason(tmp_path, body, words):
    attempts = tmp_path / "attempts"
    trajectory = played(tmp_path, f"open({str(attempts)!r}, 'a').write('x')\n{body}")
    assert trajectory.status == "masked" and words in trajectory.error and attempts.read_text() == "xxx"


def test_a_program_that_cannot_be_started_masks_and_other_verifiers_need_no_reward(tmp_path):
    trajectory = asyncio.run(episode(scripted("one"), "program=/nonexistent/harness"))
    assert (
        trajectory.status == "masked" and "/nonexistent/harness was not run to its end: [Errno 2]" in trajectory.error
    )
    trajectory = played(tmp_path, "ask(QUESTION)", verifier="exact")
    assert (trajectory.status, trajectory.answer, trajectory.metadata[OUTCOME]) == ("finished", "one", {})
    with pytest.raises(UserError, match="'handed_back' gives what the scaffold 'command' was handed back"):
        judged(trajectory)


ESCAPES = """
subprocess.Popen(["sleep", "MARK"], start_new_session=True)
subprocess.Popen(["sh", "-c", "trap '' TERM; (sleep MARK & sleep MARK) & sleep MARK"])
"""


def marked(body, folder):
    """A body with a time that no other process sleeps."""
    mark = f"7{abs(hash(str(folder))) % 10**9}"
    return body.replace("MARK", mark), mark


@pytest.mark.parametrize("handed", [False, True])
def test_a_program_whose_time_is_over_is_ended_with_all_that_it_has_started(tmp_path, handed):
    body, mark = marked(f"ask(QUESTION)\n{'close(0.5)' if handed else ''}\n{ESCAPES}\ntime.sleep(MARK)", tmp_path)
    trajectory = played(tmp_path, body, "seconds=1")
    assert processes_with(mark) == []
    if handed:
        assert trajectory.status == "truncated" and trajectory.metadata["agent"]["ended_by"] == "time"
        assert judged(trajectory).value == 0.5
        assert judged(trajectory, judge_truncated=False).value == 0.0
    else:
        assert trajectory.status == "masked"
        assert "had handed back no reward when its time was over" in trajectory.error


def test_what_a_program_leaves_running_ends_with_it_and_with_a_cancelled_episode(tmp_path):
    body, mark = marked(f"ask(QUESTION)\n{ESCAPES}\nclose(1)", tmp_path)
    assert played(tmp_path, body).status == "finished" and processes_with(mark) == []

    async def cancelled():
        body, mark = marked(f"{ESCAPES}\ntime.sleep(MARK)", tmp_path / "other")
        task = asyncio.ensure_future(episode(scripted("one"), written(tmp_path, body)))
        while len(processes_with(mark)) < 5:
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and processes_with(mark) == []

    asyncio.run(asyncio.wait_for(cancelled(), 60))


def test_the_death_of_a_run_ends_its_programs(tmp_path):
    body, mark = marked(f"import subprocess, time\n{ESCAPES}\ntime.sleep(MARK)", tmp_path)
    (tmp_path / "harness.py").write_text(body)
    run = "import asyncio, os, sys; from k2jax.agents.harness.kept_program import run_program; "
    run += f"asyncio.run(run_program([sys.executable, {str(tmp_path / 'harness.py')!r}], os.environ))"
    process = subprocess.Popen([sys.executable, "-c", run])
    wait_until(lambda: len(processes_with(mark)) >= 5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not processes_with(mark))


def wait_until(holds, seconds=30.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_program_that_floods_its_output_is_not_held_in_memory():
    flood = "import sys; [sys.stdout.write('x' * 1000000) for _ in range(50)]; print('end')"
    ended = asyncio.run(run_program([sys.executable, "-c", flood], dict(os.environ)))
    assert ended.code == 0 and len(ended.output) == 2000 and ended.output.endswith("xend\n")


class SlowClient(ScriptedClient):
    """Answers nothing; ``running`` are its calls."""

    running = 0

    async def generate(self, prompt, sampling, **options):
        self.running += 1
        try:
            await asyncio.sleep(600)
        finally:
            self.running -= 1


def test_a_failed_episode_leaves_no_request_running(tmp_path):
    body = """
    import threading
    threading.Thread(target=ask, args=[QUESTION], daemon=True).start()
    time.sleep(0.5)
    os._exit(1)
    """
    client = SlowClient(lambda prompt, sampling: [])

    async def run():
        trajectory = await episode(client, written(tmp_path, body))
        return trajectory.status, client.running

    assert asyncio.run(asyncio.wait_for(run(), 60)) == ("masked", 0)


def test_a_run_with_many_descriptors_starts_programs():
    with contextlib.ExitStack() as opened:
        for _ in range(1100):
            opened.callback(os.close, os.dup(0))
        assert asyncio.run(run_program([sys.executable, "-c", "print(1)"], dict(os.environ))).output == "1\n"


def test_a_cancellation_in_the_grace_of_a_program_is_none_of_the_program(tmp_path):
    body = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nask(QUESTION)\ntime.sleep(60)"

    async def run():
        task = asyncio.ensure_future(episode(scripted("one"), written(tmp_path, body), "seconds=1"))
        await asyncio.sleep(3)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(asyncio.wait_for(run(), 60))


def test_two_processes_do_not_share_a_port():
    port = free_port()
    address = ListenAddress("127.0.0.1", port, port + 3)
    first, second = address.open(), address.open()
    with first, second:
        assert first.getsockname() != second.getsockname()
        with pytest.raises(UserError, match=f"no port {port} of"):
            ListenAddress("127.0.0.1", port, port).open()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_episodes_of_a_process_share_an_address_and_do_not_reach_each_other(tmp_path):
    body = """
    def meet(stage):
        open(PLACE + stage + own[-1], "w").close()
        while not os.path.exists(PLACE + stage + other[-1]):
            time.sleep(0.01)
    own, other = BASE, BASE.rpartition("-")[0] + ("-1" if BASE.endswith("-0") else "-0")
    ask(QUESTION)
    meet("begun")
    BASE = other
    status = [close(1.0)[0], ask(QUESTION)[0]]
    BASE = own.rpartition("-")[0] + "-7"
    status += [close(1.0)[0], ask(QUESTION)[0]]
    meet("asked")
    BASE = own
    print(json.dumps({"own": own, "status": status}))
    close(0.5)
    """.replace("PLACE", repr(str(tmp_path / "at")))
    program, port = written(tmp_path, body), free_port()

    async def both():
        keys = [EpisodeKey("train", 0, 0, sample) for sample in range(2)]
        listen = f"listen=127.0.0.1:{port}"
        return await asyncio.gather(*(episode(scripted("one"), program, listen, key=key) for key in keys))

    for sample, trajectory in enumerate(asyncio.run(both())):
        assert trajectory.status == "finished", trajectory.error
        said = json.loads(trajectory.metadata["agent"]["output"])
        assert said == {"own": f"http://127.0.0.1:{port}/r/train-0-0-{sample}", "status": [401, 401, 404, 404]}


def test_the_documented_harness_scores_what_is_left_in_its_own_container(tmp_path):
    of = next(iter(load_tasks("file_answers", ("kinds=copy", "count=1"))))
    [(source, _)], [(path, _)] = of.metadata[FILES].items(), of.metadata[EXPECTED].items()
    program = f"program='{sys.executable} {ROOT / 'experiments/rl/agents/own_harness.py'}'"
    task = {"instruction": of.instruction, "metadata": of.metadata}
    for texts, value in (((f"cp {source} {path}", "DONE"), 1.0), (("cat /etc/hostname", "DONE"), 0.0)):
        trajectory = asyncio.run(episode(scripted(*texts), program, **task))
        assert trajectory.status == "finished" and judged(trajectory).value == value, trajectory.error
        shown = [node.message["content"] for node in trajectory.nodes if (node.message or {}).get("role") == "user"]
        assert shown[-1] == ("[0] " if value else "[1] cat: /etc/hostname: No such file or directory\n")


def test_the_guide_names_every_variable_and_every_option():
    guide = (ROOT / "docs/agents.md").read_text()
    guide = guide[guide.index("## Bring your own harness") :]
    options = inspect.signature(CommandScaffold).parameters
    assert [name for name in (*VARIABLES, *options) if f"`{name}`" not in guide] == []


def test_agents_in_lockstep_repeat_their_tokens(tmp_path, tiny_engine):
    program = written(tmp_path, "close(len(two_turns()[1]) % 2)")

    def run():
        tiny_engine.drop_prefixes()
        client = LockstepClient(tiny_engine)
        keys = [EpisodeKey("train", 0, 0, sample) for sample in range(2)]

        async def both():
            return await client.gather(*(episode(client, program, key=key) for key in keys))

        return [[node.tokens.tolist() for node in each.nodes] for each in asyncio.run(both())]

    first = run()
    assert first == run() and first[0] != first[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("program=''", "needs the option program="),
        ("program=x seconds=0", "above 0"),
        ("program=x lowest=1 highest=0", "no range of rewards"),
        ("program=x highest=inf", "no range of rewards"),
        ("program=x listen=8900", "is no address"),
        ("program=x listen=host:9000-80", "is no address"),
        ("program=x listen=host:99999", "is no address"),
        ("program=x listen=0.0.0.0:80", "url=http://HOST:PORT"),
    ],
)
def test_wrong_options_are_refused_before_a_run_begins(options, words):
    with pytest.raises(UserError, match=words):
        scaffolds.make(f"command {options}")
