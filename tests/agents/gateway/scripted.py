"""A gateway over scripted replies, and clients of each dialect that write one history in their own way."""

import asyncio
import json

import httpx

from k2jax.agents.api import ModelCard
from k2jax.agents.gateway import Gateway, GatewayRollout
from k2jax.agents.gateway.app import make_gateway_app
from k2jax.client import Client, Sampling, ScriptedClient
from k2jax.client.keys import ApiKeys
from k2jax.text import chat_format
from tests.text import kimi

TOKENIZER = kimi.thinking_tokenizer()
CHAT = chat_format(TOKENIZER)
ANSWER = "</think>"
CARD = ModelCard("k2", TOKENIZER, TOKENIZER.vocab_size, 4096, chat=CHAT)
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}
OPERATOR = "operator-key"


def special(name):
    return TOKENIZER.special_id(name)


def reply_ids(thought="", text="", calls=()):
    """Ids of an answer of a thinking model; calls are (id, arguments)."""
    ids = [*TOKENIZER.encode(thought), special(ANSWER), *TOKENIZER.encode(text)]
    if calls:
        ids.append(special("<|tool_calls_section_begin|>"))
        for call_id, arguments in calls:
            ids += [special("<|tool_call_begin|>"), *TOKENIZER.encode(call_id)]
            ids += [special("<|tool_call_argument_begin|>"), *TOKENIZER.encode(arguments), special("<|tool_call_end|>")]
        ids.append(special("<|tool_calls_section_end|>"))
    return [*ids, CHAT.end]


def spec(**options):
    """A rollout with room for every test."""
    options = {"task": "t", "sampling": Sampling(max_tokens=500, temperature=0.7, seed=5)} | options
    return GatewayRollout(**options)


def plain_reply(prompt, sampling):
    return reply_ids("", f"Answer {sampling.seed}.")


def sampled_nodes(trajectory):
    """What the model wrote, in the order of its calls."""
    return [node for node in trajectory.nodes if node.turn >= 0]


class Bench:
    """A gateway, its application, and its model: a client, or the script of one."""

    def __init__(self, reply=plain_reply, folder=None, card=CARD, **limits):
        self.client = reply if isinstance(reply, Client) else ScriptedClient(reply, version=3)
        self.gateway = Gateway(self.client, card, folder)
        self.app = make_gateway_app(self.gateway, ApiKeys([OPERATOR]), **limits)

    def http(self):
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30)

    def run(self, talk):
        """What ``talk(http)`` returns, a coroutine of a client of this gateway."""

        async def connected():
            async with self.http() as http:
                return await talk(http)

        return asyncio.run(connected())


async def post(http, access, path, body, **headers):
    """Posts a body as ASCII, which spells unpaired surrogates too; httpx itself refuses them."""
    headers = {"Authorization": f"Bearer {access.key}", "Content-Type": "application/json", **headers}
    return await http.post(f"{access.path}/v1/{path}", content=json.dumps(body), headers=headers)


async def posted(http, access, path, body, **headers):
    """The body of an answer, which must be one; of a stream its text."""
    response = await post(http, access, path, body, **headers)
    assert response.status_code == 200, response.text
    return response.text if response.headers["content-type"].startswith("text") else response.json()


# One history in three dialects, of items: (system or user, text), (tool, id, text), (assistant, thought, text, calls).


def chat_body(items, tools=True, **options):
    messages = []
    for kind, *fields in items:
        if kind == "assistant":
            thought, text, calls = fields
            message = {"role": "assistant", "content": text or None}
            if thought:
                message["reasoning_content"] = thought
            if calls:
                message["tool_calls"] = [
                    {"id": i, "type": "function", "function": {"name": "bash", "arguments": a}} for i, a in calls
                ]
            messages.append(message)
        elif kind == "tool":
            messages.append({"role": "tool", "tool_call_id": fields[0], "content": fields[1]})
        else:
            messages.append({"role": kind, "content": [{"type": "text", "text": fields[0]}]})
    function = {"type": "function", "function": {"name": "bash", "description": "", "parameters": SCHEMA}}
    return {"model": "any", "messages": messages, "tools": [function] if tools else [], **options}


def messages_body(items, tools=True, **options):
    messages, system = [], []
    for kind, *fields in items:
        if kind == "system" and not messages and not system:
            system = [{"type": "text", "text": fields[0], "cache_control": {"type": "ephemeral"}}]
        elif kind == "assistant":
            thought, text, calls = fields
            blocks = [{"type": "thinking", "thinking": thought, "signature": "s"}] if thought else []
            blocks += [{"type": "text", "text": text}] if text else []
            blocks += [{"type": "tool_use", "id": i, "name": "bash", "input": json.loads(a)} for i, a in calls]
            messages.append({"role": "assistant", "content": blocks})
        elif kind == "tool":
            result = {"type": "tool_result", "tool_use_id": fields[0], "content": fields[1]}
            messages.append({"role": "user", "content": [result]})
        else:
            messages.append({"role": kind, "content": fields[0]})
    listed = [{"name": "bash", "description": "", "input_schema": SCHEMA}] if tools else []
    return {"model": "any", "max_tokens": 9, "system": system, "messages": messages, "tools": listed, **options}


def responses_body(items, tools=True, **options):
    listed = []
    for kind, *fields in items:
        if kind == "assistant":
            thought, text, calls = fields
            if thought:
                listed.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]})
            if text:
                content = [{"type": "output_text", "text": text}]
                listed.append({"type": "message", "role": "assistant", "content": content})
            listed += [{"type": "function_call", "call_id": i, "name": "bash", "arguments": a} for i, a in calls]
        elif kind == "tool":
            listed.append({"type": "function_call_output", "call_id": fields[0], "output": fields[1]})
        else:
            role = "developer" if kind == "system" else kind
            listed.append({"type": "message", "role": role, "content": [{"type": "input_text", "text": fields[0]}]})
    tool = {"type": "function", "name": "bash", "description": "", "parameters": SCHEMA}
    return {"model": "any", "input": listed, "tools": [tool] if tools else [], "store": False, **options}


def chat_answer(body):
    message = body["choices"][0]["message"]
    calls = [(c["id"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
    return "assistant", message.get("reasoning_content", ""), message["content"] or "", calls


def messages_answer(body):
    def texts(kind, name):
        return "".join(block[name] for block in body["content"] if block["type"] == kind)

    calls = [(b["id"], json.dumps(b["input"])) for b in body["content"] if b["type"] == "tool_use"]
    return "assistant", texts("thinking", "thinking"), texts("text", "text"), calls


def responses_answer(body):
    thought = "".join(item["summary"][0]["text"] for item in body["output"] if item["type"] == "reasoning")
    text = "".join(item["content"][0]["text"] for item in body["output"] if item["type"] == "message")
    calls = [(item["call_id"], item["arguments"]) for item in body["output"] if item["type"] == "function_call"]
    return "assistant", thought, text, calls


DIALECTS = {
    "chat/completions": (chat_body, chat_answer),
    "messages": (messages_body, messages_answer),
    "responses": (responses_body, responses_answer),
}


async def say(http, access, dialect, items, **options):
    """One turn in a dialect, whole: the answer as an item."""
    write, read = DIALECTS[dialect]
    return read(await posted(http, access, dialect, write(items, **options)))
