"""Keys, wrong requests, disconnects and concurrency: nobody reaches another's rollout, and nothing recorded is lost."""

import asyncio
import json

import pytest

from k2jax.agents.gateway.session import MOST_OVER_BUDGET
from k2jax.agents.task import Budget
from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.trajectory import TrajectoryStore, verify
from tests.agents.gateway.scripted import (
    CARD,
    DIALECTS,
    OPERATOR,
    Bench,
    chat_body,
    post,
    posted,
    reply_ids,
    sampled_nodes,
    say,
    spec,
)

ITEMS = [("system", "Be brief."), ("user", "Go")]


def test_a_key_opens_its_own_rollout_until_it_ends(tmp_path):
    bench = Bench(folder=tmp_path)
    mine, other = bench.gateway.open(spec(), "mine"), bench.gateway.open(spec(), "other")
    header = {"x-api-key": mine.key}

    async def talk(http):
        for dialect, (write, _) in DIALECTS.items():
            body = write(ITEMS)
            await posted(http, mine, dialect, body)
            await posted(http, mine, dialect, body, **{"x-api-key": "no"})
            wrong = [mine._replace(key=key) for key in (other.key, "", OPERATOR)]
            for access in (*wrong, mine._replace(path="/r/nobody")):
                refused = await post(http, access, dialect, body)
                assert refused.status_code == 401 and mine.key not in refused.text
                assert refused.json()["error"]["type"] == "authentication_error"
        for path, status in {
            "/r/mine/v1/models": 200, "/r/mine": 404, "/r/mine/api/hello": 404, "/r/mine/v1/embeddings": 404,
            "/v1/models": 404, "/rollouts/mine": 401, "/rollouts/nobody": 401,
        }.items():  # fmt: skip
            assert (await http.get(path, headers=header)).status_code == status, path
        assert (await http.get("/r/mine/v1/models")).status_code == 401
        assert (await http.post("/rollouts", json={}, headers=header)).status_code == 401
        await bench.gateway.close("mine")
        assert (await post(http, mine, "responses", {"model": "x"})).status_code == 401
        assert (await post(http, other, "responses", {"model": "x"})).status_code == 400

    bench.run(talk)
    assert len(mine.key) >= 32 and mine.key != other.key and mine.key not in f"{mine} {mine!r}"
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or mine.key.encode() not in path.read_bytes()
    assert mine.key not in repr(vars(bench.gateway.session("mine")))


WRONG_ROLLOUTS = [
    {"task": "a", "name": "a"}, {"task": "b", "name": "../b"}, {"name": 3}, {}, {"task": "b", "colour": 1},
    {"task": "b", "sampling": {"temperature": -1}}, {"task": "b", "key": [1]}, {"task": "b", "budget": 3},
    {"task": "b", "sampling": {"return_experts": True}}, {"task": "b", "budget": {"tokens": -1}}, {"task": 3},
    {"task": ""}, {"task": "b", "sampling": {"max_tokens": 1.5}}, {"task": "b", "key": [0, 0, -1]},
    {"task": "b", "declares_tools": 1}, {"task": "b", "budget": {"sub_steps": 3}}, {"task": "b", "metadata": [1]},
    {"task": "b", "metadata": {"side_call": 1}}, {"task": "b", "sampling": {"stop_tokens": [[1]]}},
    {"task": "b", "sampling": {"stop_tokens": ["x"]}},
]  # fmt: skip


def test_the_operator_opens_and_ends_rollouts(tmp_path):
    bench = Bench(folder=tmp_path)
    headers = {"Authorization": f"Bearer {OPERATOR}"}

    async def talk(http):
        async def ask(path, body):
            return await http.post(path, json=body, headers=headers)

        assert (await ask("/rollouts", {"task": "a", "name": "a", "key": [2, 0, 1]})).status_code == 200
        for wrong in WRONG_ROLLOUTS:
            refused = await ask("/rollouts", wrong)
            assert refused.status_code == 400 and "\n" not in refused.json()["error"]["message"], wrong
        assert (await ask("/rollouts/b/close", {})).status_code == 404
        for wrong in ({"status": "masked"}, {"status": "good"}, {"status": 1}):
            assert (await ask("/rollouts/a/close", wrong)).status_code == 400
        for _ in range(2):  # ending twice stores once
            ended = await ask("/rollouts/a/close", {"status": "masked", "error": "no disk"})
            assert ended.status_code == 200 and ended.json()["trajectories"] == 1
        return (await http.get("/rollouts/a", headers=headers)).json()

    counts = {"abandoned": 0, "requests": 0, "tokens": 0}
    assert bench.run(talk) == {"rollout": "a", "closed": True, "counts": counts}
    [stored] = TrajectoryStore(tmp_path / "trajectories").read(2)
    assert (stored.status, stored.error, stored.key) == ("masked", "no disk", (2, 0, 1)) and verify(stored) == []


@pytest.mark.parametrize("stream", [True, False])
def test_hints_that_nobody_knows_are_passed_over(stream):
    bench = Bench()
    access = bench.gateway.open(spec())
    hints = {"stream_options": {"include_usage": True, "pace": 1}, "chat_template_kwargs": {"enable_thinking": False}}
    bench.run(lambda http: posted(http, access, "chat/completions", chat_body(ITEMS, stream=stream, **hints)))
    [request] = bench.gateway.session(access.rollout).requests
    assert request["left_out"] == ["chat_template_kwargs"] and request["stream"] == stream


def test_side_calls_are_trajectories_of_their_own():
    bench = Bench()
    access = bench.gateway.open(spec(budget=Budget(steps=2)))
    title = [("system", "You write titles."), ("user", "Go")]

    async def talk(http):
        await say(http, access, "chat/completions", title, tools=False)
        answer = await say(http, access, "chat/completions", ITEMS)
        again = await say(http, access, "chat/completions", title, tools=False)
        await say(http, access, "chat/completions", [*title, again, ("user", "Shorter")], tools=False)
        await say(http, access, "chat/completions", [*ITEMS, answer, ("user", "On")])
        ended = await bench.gateway.close(access.rollout)
        shown = await http.get(f"{access.path}/v1/models", headers={"x-api-key": access.key})
        assert shown.status_code == 401  # the key is void, although the rollout stays in memory
        return ended

    main, side = bench.run(talk)
    assert [node.mask.all() for node in sampled_nodes(main)] == [True, True]
    assert [node.mask.any() for node in sampled_nodes(side)] == [False] * 3 and len(side.leaves()) == 2
    assert side.metadata["side_call"] == 1 and main.metadata["counts"]["side call"] == 3
    assert all(verify(trajectory) == [] for trajectory in (main, side))


@pytest.mark.parametrize(("budget", "expected"), [(Budget(tokens=70), [30, 30, 10]), (Budget(steps=2), [30, 30])])
def test_parallel_answers_keep_to_the_budget(budget, expected):
    bench = Bench(lambda prompt, sampling: reply_ids("", "word " * 40))
    access = bench.gateway.open(spec(sampling=Sampling(max_tokens=30), budget=budget))

    async def talk(http):
        return await asyncio.gather(*(say(http, access, "messages", [*ITEMS, ("user", str(i))]) for i in range(5)))

    answers = bench.run(talk)
    trajectory = bench.gateway.session(access.rollout).main.trajectory
    lengths = [len(node.tokens) for node in sampled_nodes(trajectory)]
    systems = [node for node in trajectory.nodes if (node.message or {}).get("role") == "system"]
    assert len(systems) == 1  # what they share is there once
    assert lengths == expected and sum(answer[2] != "" for answer in answers) == len(expected)


@pytest.mark.parametrize(
    ("options", "main", "side"),
    [
        ({"budget": Budget(steps=1)}, 1, 10),  # twice the steps and 8
        ({"budget": Budget(critical_steps=2)}, 2, 12),
        ({"budget": Budget(steps=1), "side_calls": 3}, 1, 3),
        ({"side_calls": 0}, 13, 0),
        ({"budget": Budget(prompt_tokens=1)}, 1, 0),
    ],
)
def test_side_calls_and_prompts_have_limits_of_their_own(options, main, side):
    bench = Bench()
    access = bench.gateway.open(spec(**options))

    async def talk(http):
        for tools in (True, False):
            for number in range(13):
                await say(http, access, "chat/completions", [("user", f"Go {number}")], tools=tools)

    bench.run(talk)
    answered = [
        request["history"] > 0 for request in bench.gateway.session(access.rollout).requests if request["tokens"]
    ]
    assert (answered.count(False), answered.count(True)) == (main, side)


@pytest.mark.parametrize(("steps", "answers"), [(1, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_each_call_of_an_answer_is_a_step(steps, answers):
    call = ("shell", json.dumps({"command": "ls"}))
    bench = Bench(lambda prompt, sampling: reply_ids("", "", [call] * 3))
    access = bench.gateway.open(spec(budget=Budget(steps=steps)))

    async def talk(http):
        for number in range(4):
            await say(http, access, "chat/completions", [("user", f"Go {number}")])

    bench.run(talk)
    requests = bench.gateway.session(access.rollout).requests
    assert sum(request["tokens"] > 0 for request in requests) == answers


class Reader:
    """A client that drives the application itself, and may leave after some events."""

    def __init__(self, app, access, body, leaves_after=None):
        self._app, self._access, self._leaves_after = app, access, leaves_after
        self._content, self._events, self._gone = json.dumps(body).encode(), 0, asyncio.Event()
        self._has_read = False

    async def run(self):
        headers = {"authorization": f"Bearer {self._access.key}", "content-type": "application/json"}
        path = f"{self._access.path}/v1/chat/completions"
        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "scheme": "http",
            "http_version": "1.1", "root_path": "", "server": ("gateway", 80), "client": ("agent", 1),
        }  # fmt: skip
        await self._app(scope, self._receive, self._send)
        return self._events

    async def _receive(self):
        if not self._has_read:
            self._has_read = True
            return {"type": "http.request", "body": self._content, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.body" and message.get("body"):
            self._events += 1
            if self._leaves_after is not None and self._events >= self._leaves_after:
                self._gone.set()
        await asyncio.sleep(0)


def test_64_rollouts_a_third_of_which_disconnects_lose_nothing(tmp_path):
    bench = Bench(lambda prompt, sampling: reply_ids("hm", f"{sampling.seed} " * 4), tmp_path)
    accesses = [bench.gateway.open(spec(key=(0, i, 0))) for i in range(64)]

    async def run(index):
        items = [("user", f"Go {index}")]
        for turn in range(3):
            leaves = 4 if index % 3 == 0 and turn < 2 else None
            body = chat_body([*items, ("user", str(turn))], stream=True)
            await Reader(bench.app, accesses[index], body, leaves).run()
        return await bench.gateway.close(accesses[index].rollout)

    async def all_of_them():
        return await asyncio.gather(*map(run, range(64)))

    ended = asyncio.run(all_of_them())
    for index, [trajectory] in enumerate(ended):
        gone = [node.finish == "cancelled" for node in sampled_nodes(trajectory)]
        assert verify(trajectory) == []
        assert gone == ([True, True, False] if index % 3 == 0 else [False] * 3)
        assert trajectory.metadata["counts"]["abandoned"] == sum(gone)
    stored = list(TrajectoryStore(tmp_path / "trajectories").read(0))
    assert sorted(trajectory.key for trajectory in stored) == [(0, i, 0) for i in range(64)]


def test_a_gateway_needs_a_chat_format_and_a_folder_of_its_own(tmp_path):
    first = Bench(folder=tmp_path)
    for lock in (None, *tmp_path.glob("*/.lock")):  # and when the lock's file is deleted
        if lock is not None:
            lock.unlink()
        with pytest.raises(UserError, match="another gateway"):
            Bench(folder=tmp_path)
    first.gateway.release_folder()
    with pytest.raises(UserError, match="no chat format"):
        Bench(card=type(CARD)("k2", None, 9, 9, chat=None))


def test_a_used_up_budget_is_answered_and_recorded_a_number_of_times():
    bench = Bench()
    access = bench.gateway.open(spec(budget=Budget(steps=1)))

    async def talk(http):
        return [(await post(http, access, "chat/completions", chat_body(ITEMS))).status_code for _ in range(110)]

    assert bench.run(talk) == [200] * (1 + MOST_OVER_BUDGET) + [429] * (109 - MOST_OVER_BUDGET)
    assert len(bench.gateway.session(access.rollout).requests) == 1 + MOST_OVER_BUDGET
