"""Black-box agents as scaffolds: an episode is what an unchanged program did in a sandbox, recorded token by token."""

import asyncio
import dataclasses
import functools
import json
import time

import pytest

from k2jax.agents.collect.engine_socket import EngineServer, EngineSocketClient
from k2jax.agents.dataset import load_tasks
from k2jax.agents.egress.egress_log import EGRESS
from k2jax.agents.environment import OUTCOME, Services
from k2jax.agents.environments.files import FilesEnvironment
from k2jax.agents.environments.repository import TREE, RepositoryEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.gateway.agents import BlackBoxAgent, read_agent
from k2jax.agents.registry import environments, scaffolds
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.task import Budget
from k2jax.client import PromptTooLongError, Sampling, ScriptedClient
from k2jax.config import replace_keys
from k2jax.errors import UserError
from k2jax.inference import ContinuousClient, LockstepClient
from k2jax.inference.weights import named_leaves
from k2jax.tasks.file_answers.dataset import texts_left
from k2jax.tasks.swe.example import write_example
from k2jax.tasks.swe.verifier import SWEVerifier
from k2jax.text import byte_tokenizer, configured_chat
from k2jax.trajectory import verify
from tests.agents.egress.origins import OriginHost, named
from tests.agents.gateway.forward_pass import VERSION, check_logprobs
from tests.agents.gateway.repository import FILES, INSTRUCTION, MEND, HiddenTest, small_agent, task, write_agent
from tests.agents.sandbox.backends import backend
from tests.inference.tiny import GQA, engine, weights

BYTES = byte_tokenizer()
PLAIN = configured_chat(BYTES, "compact")
MODEL = replace_keys(GQA, {"vocab": BYTES.vocab_size})
TEMPERATURE = 0.7


def answers(*texts):
    """A script: the next text after every observation."""

    def reply(prompt, sampling):
        said = sum(int(token) == PLAIN.end for token in prompt)
        return [*BYTES.encode(texts[min((said - 1) // 2, len(texts) - 1)]), PLAIN.end]

    return reply


@functools.cache
def tiny_engine():
    """One for all tests, because compiling takes longest."""
    return engine(MODEL, version=VERSION, max_length=512, page_size=128, slots=2)


def environment():
    return FilesEnvironment(Services(lambda: backend("bubblewrap")))


async def episode(client, agent, folder, of=None, more="", place=None, **options):
    path = write_agent(folder / "agent.json", agent)
    sampling = Sampling(max_tokens=300, temperature=TEMPERATURE)
    options = {"sampling": sampling, "key": EpisodeKey("train", 3, 1, 2), "seed": 5} | options
    of = dataclasses.replace(of or task(), scaffold=f"black_box agent={path} {more}")
    return await run_episode(of, client, PLAIN, BYTES, place or environment(), **options)


async def together(client, episodes):
    return await client.gather(*episodes)


def run_small(folder, *texts, agent=None, **options):
    """An episode of the small agent, whose model says these texts."""
    return asyncio.run(episode(ScriptedClient(answers(*texts)), agent or small_agent(), folder, **options))


def judged(trajectory):
    async def run():
        async with await backend("bubblewrap").open(HiddenTest().spec) as sandbox:
            return await HiddenTest().score(task(), trajectory, sandbox)

    return asyncio.run(run()).value


def test_an_edit_through_an_agent_passes_the_hidden_test(tmp_path):
    trajectory = run_small(tmp_path, f"I mend it.\n${MEND}\n$echo note > new.txt", "Done.")
    assert trajectory.status == "finished", trajectory.error
    assert (trajectory.key, trajectory.answer) == ((3, 1, 2), "Done.") and verify(trajectory, MODEL.vocab) == []
    left = texts_left(trajectory)
    assert "sorted(ranges)" in left["ranges/merge.py"] and left["new.txt"] == "note\n" and judged(trajectory) == 1.0
    assert [request["kind"] for request in trajectory.metadata["requests"]] == ["start", "extend"]
    assert len(trajectory.leaves()) == 1 and trajectory.sampled_tokens > 100


def test_files_that_are_left_as_they_were_fail_the_hidden_test(tmp_path):
    trajectory = run_small(tmp_path, "$true", "Done.")
    assert texts_left(trajectory) == FILES and judged(trajectory) == 0.0


def test_an_agent_has_its_model_and_the_hosts_of_its_task_and_no_others(tmp_path, monkeypatch):
    async def run():
        async with OriginHost().at("127.0.0.2") as there:
            named(monkeypatch, a_example=["127.0.0.2"])
            made = make_backend("bubblewrap", hosts=[f"a.example:{there.port}", f"127.0.0.2:{there.port}"])
            python, fetch = host_python().executable, "import sys, urllib.request as u; u.urlopen(sys.argv[1])"
            urls = [f"http://{host}:{there.port}/x" for host in ("a.example", "b.example")]
            said = "\n".join(f'${python} -I -S -c "{fetch}" {url}' for url in urls)
            of = task(metadata=task().metadata | {"hosts": [f"a.example:{there.port}"]})
            place, client = FilesEnvironment(Services(lambda: made)), ScriptedClient(answers(said, "Done."))
            ended = await episode(client, small_agent(), tmp_path, of=of, place=place)
            made.close()
            return ended, there.asked

    trajectory, asked = asyncio.run(run())
    assert trajectory.status == "finished", trajectory.error
    log = trajectory.metadata[EGRESS]["requests"]
    assert [(entry["host"], entry["path"], entry["status"]) for entry in log] == [
        ("a.example", "/x", 200), ("b.example", "/x", 403),
    ]  # fmt: skip
    assert len(asked) == 1 and [request["kind"] for request in trajectory.metadata["requests"]] == ["start", "extend"]


@pytest.mark.slow
def test_an_issue_of_a_repository_is_solved_through_an_agent(tmp_path):
    """A task of the dataset ``swe``, whose tests the agent never sees."""
    tasks = load_tasks("swe", (f"path={write_example(tmp_path / 'swe')}",))
    of = next(each for each in tasks if each.id == "words-spaces")
    mend = "$sed -i 's/split(.*))/split())/' words/count.py; pwd; git log --oneline | wc -l"
    place = RepositoryEnvironment(Services(lambda: backend("bubblewrap"), None))
    trajectory = run_small(tmp_path, mend, "Done.", of=of, place=place)
    patch = trajectory.metadata[OUTCOME]["patch"]
    assert "+    return len(text.split())" in patch and patch.count("diff --git") == 1
    shown = [node.message["content"] for node in trajectory.nodes if (node.message or {}).get("role") == "user"]
    assert f"{TREE}\n1\n[0]" in shown[-1]

    async def score():
        verifier = SWEVerifier()
        async with await backend("bubblewrap").open(verifier.spec) as sandbox:
            return await verifier.score(of, trajectory, sandbox)

    assert asyncio.run(score()).value == 1.0


def test_agents_share_an_engine_in_lockstep_and_repeat_what_they_sampled(tmp_path):
    """Two runs of two episodes, with the log-probabilities of one forward pass."""
    sampling = Sampling(max_tokens=24, temperature=1.0)
    agent = small_agent(argv=(*small_agent().argv[:-1], "Go"))

    def run():
        tiny_engine().drop_prefixes()
        client = LockstepClient(tiny_engine())
        both = [episode(client, agent, tmp_path, sampling=sampling, key=EpisodeKey("train", 0, 0, i)) for i in range(2)]
        return asyncio.run(together(client, both))

    first, second = run(), run()
    for a, b in zip(first, second, strict=True):
        assert a.status == "finished" and verify(a, MODEL.vocab) == []
        assert [n.tokens.tolist() for n in a.nodes] == [n.tokens.tolist() for n in b.nodes]
        assert len(a.leaves()) == 1 and check_logprobs(MODEL, a, 1.0) == a.sampled_tokens > 0
    assert first[0].nodes[-1].tokens.tolist() != first[1].nodes[-1].tokens.tolist()


SIDE_CALLS = """
import json, sys, threading, urllib.request
base, key, task = sys.argv[1:]
tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
def ask(text, tools):
    body = {"model": "any", "messages": [{"role": "user", "content": text}], "tools": tools}
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
asked = [("A title of: " + task, []), (task, [tool])]
threads = [threading.Thread(target=ask, args=each) for each in asked]
for thread in threads: thread.start()
for thread in threads: thread.join()
ask("Summarise", [])
"""


STREAMS = """
import json, sys, urllib.request
base, key, patience = sys.argv[1:]
options = {"timeout": float(patience)} if patience != "0" else {}
body = {"model": "any", "messages": [{"role": "user", "content": "Go"}], "stream": patience != "0"}
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode(), headers)
with urllib.request.urlopen(request, **options) as answer:
    lines = answer.read().decode().splitlines()
json.dump([line.startswith(": keep-alive") for line in lines].count(True), open("kept.json", "w"))
"""


class Slowed(ContinuousClient):
    """Takes a while for each token, so that a test can hold it in the midst of an answer."""

    async def generate(self, prompt, sampling, *, on_token, **options):
        def late(token, logprob):
            time.sleep(0.02)
            return on_token(token, logprob)

        return await super().generate(prompt, sampling, on_token=late, **options)


@pytest.mark.parametrize("place", ["here", "in a worker"])
def test_a_pause_of_training_in_the_midst_of_an_answer_only_makes_it_longer(tmp_path, monkeypatch, place):
    """One agent streams and waits less than the pause, the other wants its answer whole: both go on."""
    monkeypatch.setattr("k2jax.agents.web.http.KEEP_ALIVE_SECONDS", 0.1)
    leaves, sampling = list(named_leaves(weights(MODEL))), Sampling(max_tokens=100, temperature=1.0)

    async def run():
        client, episodes = Slowed(tiny_engine()), []
        serving = asyncio.ensure_future(EngineServer(client).serve(tmp_path / "engine"))
        asked = client if place == "here" else EngineSocketClient(tmp_path / "engine")
        for number, patience in enumerate(("1.0", "0")):
            agent = small_agent(argv=(*small_agent().argv[:-1], patience), files={"${home}/agent.py": STREAMS})
            (tmp_path / patience).mkdir()
            options = {"sampling": sampling, "key": EpisodeKey("train", 0, 0, number)}
            episodes.append(asyncio.ensure_future(episode(asked, agent, tmp_path / patience, **options)))
        before = client.stats().tokens_generated
        with client.generating():
            while client.stats().running < 2 or client.stats().tokens_generated < before + 12:
                await asyncio.sleep(0.01)
        tiny_engine().update_params(leaves, VERSION + 1)
        await asyncio.sleep(1.5)
        assert not any(each.done() for each in episodes)
        with client.generating():
            ended = await asyncio.gather(*episodes)
        serving.cancel()
        client.stop()
        tiny_engine().update_params(leaves, VERSION)
        return ended

    streamed, whole = asyncio.run(run())
    for ended in (streamed, whole):
        [answer] = [node for node in ended.nodes if node.turn >= 0]
        [request] = ended.metadata["requests"]
        assert ended.status == "finished" and not request["abandoned"] and verify(ended, MODEL.vocab) == []
        assert sorted(set(answer.versions.tolist())) == [VERSION, VERSION + 1]
        assert ended.metadata["agent"]["waited"] > 1.5
    assert int(texts_left(streamed)["kept.json"]) >= 8 and texts_left(whole)["kept.json"] == "0"


def test_side_calls_are_trees_beside_the_agents_own_and_are_not_trained_on(tmp_path):
    agent = small_agent(files={"${home}/agent.py": SIDE_CALLS.replace("$", "$$")}, turns="tools")
    client = LockstepClient(tiny_engine())
    sampling = Sampling(max_tokens=8, temperature=1.0)
    [trajectory] = asyncio.run(together(client, [episode(client, agent, tmp_path, sampling=sampling)]))
    assert trajectory.status == "finished" and verify(trajectory, MODEL.vocab) == []
    requests = trajectory.metadata["requests"]
    assert sorted(request["kind"] for request in requests) == ["side call", "side call", "start"]
    sampled = {index: node for index, node in enumerate(trajectory.nodes) if node.turn >= 0}
    assert {request["node"] for request in requests} == set(sampled)
    assert [node.mask.all() for node in sampled.values()] == [False, False, True]
    assert sorted(node.turn for node in sampled.values()) == [0, 1, 2]
    texts = [BYTES.decode(trajectory.path_tokens(trajectory.nodes[index].parent).tolist()) for index in sampled]
    assert (
        sum(f"A title of: {INSTRUCTION}" in text for text in texts) == sum("Summarise" in text for text in texts) == 1
    )
    assert INSTRUCTION in texts[2] and "title" not in texts[2]  # each below its own prompt


def test_side_calls_are_trained_on_where_the_scaffold_says_so(tmp_path):
    agent = small_agent(files={"${home}/agent.py": SIDE_CALLS.replace("$", "$$")}, turns="tools")
    trajectory = run_small(tmp_path, "x", agent=agent, more="train_side_calls=true")
    assert [node.mask.all() for node in trajectory.nodes if node.turn >= 0] == [True, True, True]


TELLS = """
import json, sys, urllib.request
base, key, context, longest = sys.argv[1:]
sizes = {"context": int(context), "longest": int(longest)}
json.dump(sizes, open("sizes.json", "w"))
def ask(text):
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 9999}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(base + "/v1/chat/completions", body, headers)).read()
FIRST
ask("x" * (sizes["context"] - 10))
ask("y" * sizes["context"])
"""


def telling_agent(first="pass"):
    source = TELLS.replace("$", "$$").replace("FIRST", first)
    return small_agent(
        argv=(*small_agent().argv[:-1], "${context}", "${max_tokens}"), files={"${home}/agent.py": source}
    )


@pytest.mark.parametrize(("more", "longest"), [("", 512), ("context=200", 200)])
def test_an_agent_is_told_the_engines_context_and_its_answers_are_cut_to_what_is_left(tmp_path, more, longest):
    sampling = Sampling(max_tokens=300, temperature=1.0)
    client = LockstepClient(tiny_engine())
    [ended] = asyncio.run(together(client, [episode(client, telling_agent(), tmp_path, more=more, sampling=sampling)]))
    told = json.loads(texts_left(ended)["sizes.json"])
    assert told == {"context": longest, "longest": min(300, longest - 1)}
    [answer] = [node for node in ended.nodes if node.turn >= 0]
    assert len(ended.path_tokens(answer.parent)) + len(answer.tokens) == longest or answer.finish == "stop"
    assert (ended.status, ended.metadata["agent"]["ended_by"]) == ("truncated", "context")


def test_a_first_request_that_does_not_fit_is_a_mistake_in_the_task(tmp_path):
    for context in (100, 600):
        agent, client = telling_agent('ask("z" * 700)'), LockstepClient(tiny_engine())
        with pytest.raises(PromptTooLongError, match="the first request of the agent small is refused"):
            asyncio.run(together(client, [episode(client, agent, tmp_path, more=f"context={context}")]))


def test_what_ends_an_agent_early_truncates_its_episode(tmp_path):
    late = run_small(tmp_path, f"${MEND}\n$sleep 60", "Done.", more="seconds=4")
    over = run_small(tmp_path, "$echo 1", "Done.", of=task(budget=Budget(steps=1)))
    long = run_small(tmp_path, "$true", "Done.", sampling=Sampling(max_tokens=4))
    assert (late.status, late.metadata["agent"]["ended_by"]) == ("truncated", "time") and judged(late) == 1.0
    assert over.status == "truncated" and over.sampled_tokens == len("$echo 1") + 1
    assert long.status == "finished" and long.nodes[-1].finish == "length"


def test_an_agent_that_asks_nothing_is_a_failure_of_the_machine(tmp_path):
    trajectory = run_small(tmp_path, "x", agent=small_agent(argv=("no-such-program",)))
    assert trajectory.status == "masked" and "no-such-program" in trajectory.error and not trajectory.nodes


def test_a_model_that_fails_ends_the_run_and_not_in_a_sample(tmp_path):
    async def fail(*arguments, **options):
        raise RuntimeError("the engine has failed")

    client = ScriptedClient(answers("x"))
    client.generate = fail
    with pytest.raises(RuntimeError, match="engine has failed"):
        asyncio.run(episode(client, small_agent(), tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("black_box agent=codexx", "did you mean 'codex'"),
        ("black_box agent=codex folder=/nowhere", "npm install --prefix /nowhere @openai/codex@0.169.0 node@24"),
        ("black_box agent=mini_swe_agent folder=/nowhere version=2.4.5", "mini-swe-agent==2.4.5 mcp"),
        ("black_box agent={own} version=3", "has no package"),
        ("black_box agent={own} seconds=0", "above 0"),
        ("black_box agent=/nowhere/a.json", "cannot read"),
    ],
)
def test_a_wrong_scaffold_is_said_in_one_line_before_a_run_begins(tmp_path, text, message):
    own = write_agent(tmp_path / "own.json", small_agent())
    with pytest.raises(UserError, match=message) as raised:
        scaffolds.make(text.format(own=own))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        {"argv": []}, {"argv": "sh"}, {"env": {"A": 1}}, {"turns": "some"}, {"packages": ["codex@1"]},
        {"packages": ["npm:codex"]}, {"memory": 0}, {"needs_cgroup": 1}, {"files": []}, {"name": ""}, {"colour": 1},
        {"patience": -1}, {"programs": "bash"},
    ],
)  # fmt: skip
def test_a_wrong_field_of_an_own_agent_is_named(tmp_path, values):
    agent = write_agent(tmp_path / "a.json", small_agent())
    assert read_agent(str(agent)) == small_agent()
    agent.write_text(json.dumps(json.loads(agent.read_text()) | values))
    with pytest.raises(UserError, match=next(iter(values))) as raised:
        read_agent(str(agent))
    assert "\n" not in str(raised.value)


def test_an_unknown_placeholder_is_named():
    with pytest.raises(UserError, match=r"'tsk'.*there are agents"):
        BlackBoxAgent("a", ("sh", "${tsk}")).filled({"task": "x", "agents": ""})


def test_what_no_black_box_can_do_is_refused(tmp_path):
    for message, options in {
        "token_cap": {"token_cap": 3},
        "'repository' have": {"place": environments.get("single_turn")()},
        "return_experts": {"sampling": Sampling(return_experts=True)},
    }.items():
        with pytest.raises(UserError, match=message):
            run_small(tmp_path, "x", **options)


def test_the_same_task_is_solved_by_a_white_box_scaffold_with_tools(tmp_path):
    """The scaffold is the independent variable of a task."""
    of, client = task(tools=("shell",), scaffold="chat"), ScriptedClient(answers(f"!shell {MEND}", "Done."))
    options = {"key": EpisodeKey("train", 0, 0, 0), "seed": 0, "sampling": Sampling(max_tokens=300)}
    trajectory = asyncio.run(run_episode(of, client, PLAIN, BYTES, environment(), **options))
    assert trajectory.status == "finished" and trajectory.answer == "Done."
    assert judged(trajectory) == 1.0
