"""Any chat endpoint by text, and a judge behind one."""

import asyncio
import json

import httpx
import pytest

from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.errors import VerifierError
from k2jax.agents.judges.judge import ChatJudge, Place
from k2jax.agents.judges.judge_formats import JUDGE_FORMATS, Comparison
from k2jax.client import ChatEndpoint, PromptTooLongError, ServerFailedError
from k2jax.errors import UserError

QUESTION = [{"role": "user", "content": "Which?"}]
PLACE = Place(EpisodeKey("train", 1, 0, 0), 1)


def said(text, finish="stop", **more):
    message = {"role": "assistant", "content": text, **more}
    return 200, {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def error(status, message, **more):
    return status, {"error": {"message": message, **more}}


class Server:
    """Answers requests with statuses and bodies in turn, the last one again and again."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    def __call__(self, request):
        self.requests.append((request.url.path, dict(request.headers), json.loads(request.content)))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return httpx.Response(status, json=body)

    def endpoint(self, **options):
        endpoint = ChatEndpoint("http://judge", "grm", **{"attempts": 3, "backoff": 0.001} | options)
        endpoint._http = httpx.AsyncClient(
            base_url="http://judge", headers=endpoint._http.headers, transport=httpx.MockTransport(self)
        )
        return endpoint

    def ask(self, **options):
        return asyncio.run(self.endpoint(**options).answer(QUESTION, max_tokens=9))


def test_messages_go_in_and_text_comes_out_without_a_token_id():
    server = Server(said("B", reasoning_content="hm"))
    assert server.ask(api_key="secret") == ("B", "stop")
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions" and headers["authorization"] == "Bearer secret"
    assert body == {"model": "grm", "messages": QUESTION, "max_tokens": 9, "temperature": 0.0}


@pytest.mark.parametrize(
    ("answers", "kind", "requests"),
    [
        ([error(503, "busy")], ServerFailedError, 3),
        ([error(404, "no route")], UserError, 1),
        ([error(400, "too long", code="context_length_exceeded")], PromptTooLongError, 1),
        ([(200, {"choices": []})], ServerFailedError, 1),
        ([(200, {"choices": [{"message": {"content": 7}}]})], ServerFailedError, 1),
        ([(200, [])], ServerFailedError, 1),
    ],
)
def test_a_server_that_gives_no_answer_is_one_error(answers, kind, requests):
    server = Server(*answers)
    with pytest.raises(kind, match="http://judge"):
        server.ask()
    assert len(server.requests) == requests


def test_what_may_pass_is_tried_again():
    assert Server(error(503, "busy"), error(429, "slow"), said("A")).ask() == ("A", "stop")


@pytest.mark.parametrize(
    ("answer", "choice"),
    [
        (said("B is longer.\n**Verdict: A**"), "first"),
        (said("Verdict: A", finish="length"), None),
        (said(None), None),
        (error(400, "maximum context length is 9"), "tie"),
    ],
)
def test_a_judge_behind_any_chat_endpoint_compares(answer, choice):
    judge = ChatJudge(Server(answer).endpoint(), JUDGE_FORMATS["chat"], max_tokens=50)
    assert asyncio.run(judge.choose(Comparison("q", "x", "y"), (), PLACE)).choice == choice


def test_a_judge_that_cannot_be_asked_masks_the_sample():
    judge = ChatJudge(Server(error(503, "busy")).endpoint(), JUDGE_FORMATS["chat"], max_tokens=50)
    with pytest.raises(VerifierError, match="no verdict of the judge grm"):
        asyncio.run(judge.choose(Comparison("q", "x", "y"), (), PLACE))
