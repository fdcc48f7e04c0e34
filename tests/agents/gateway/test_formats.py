"""Agents over models of Qwen's and Llama 3's formats: what they only append stays one path of sampled ids."""

import json

import numpy as np
import pytest

from k2jax.agents.api import ModelCard
from k2jax.text import ChatBuilder
from k2jax.trajectory import verify
from tests.agents.gateway.scripted import DIALECTS, SCHEMA, Bench, sampled_nodes, say, spec
from tests.text import kimi, qwen

CHATS = {"qwen3": (qwen.QWEN, qwen.QWEN3), "hermes": (qwen.HERMES, (*qwen.CHATML, *qwen.TOOLS))}
CHATS["llama"] = (qwen.LLAMA_3, qwen.LLAMA)
TOOL = {"type": "function", "function": {"name": "bash", "description": "", "parameters": SCHEMA}}


def answer(chat, number):
    """Calls, then a text, in turn; two calls and reasoning where the format has them."""
    if number % 2:
        return {"role": "assistant", "content": f"Done {number}.\n"}
    function = {"name": "bash", "arguments": json.dumps({"cmd": "ls", "n": number})}
    calls = [{"type": "function", "function": function}] * (1 if chat is qwen.LLAMA_3 else 2)
    more = {"reasoning_content": "hm"} if chat.thinks else {}
    return {"role": "assistant", "content": "" if chat is qwen.LLAMA_3 else "I look.", "tool_calls": calls, **more}


@pytest.mark.parametrize("dialect", list(DIALECTS))
@pytest.mark.parametrize("name", list(CHATS))
def test_an_agent_that_only_appends_has_one_path_and_its_calls_have_ids(name, dialect):
    chat, names = CHATS[name]
    tokenizer, replies = qwen.tokenizer(names), []

    def reply(prompt, sampling):
        message = answer(chat, len(replies))
        replies.append([*chat.render(message)[len(chat.answer_prompt(message)) :], chat.end])
        return replies[-1]

    bench = Bench(reply, card=ModelCard("m", tokenizer, tokenizer.vocab_size, 4096, chat=chat))
    access = bench.gateway.open(spec())

    async def talk(http):
        items, ids = [("system", "Be brief."), ("user", "Go")], []
        for _ in range(4):
            said = await say(http, access, dialect, items, stream=False)
            ids += [call_id for call_id, _ in said[3]]
            after = [("tool", call_id, f"r{len(ids)}") for call_id, _ in said[3]] or [("user", "On")]
            items = [*items, said, *after]
        return ids

    ids = bench.run(talk)
    assert ids == [f"functions.bash:{i}" for i in range(2 if name == "llama" else 4)]
    session = bench.gateway.session(access.rollout)
    trajectory = session.main.trajectory
    assert session.counts()["extend"] == 3 and len(trajectory.leaves()) == 1 and verify(trajectory) == []
    assert [node.tokens.tolist() for node in sampled_nodes(trajectory)] == replies
    assert np.concatenate([node.mask for node in trajectory.nodes]).sum() == sum(map(len, replies))
    for (prompt, _), node in zip(bench.client.calls, sampled_nodes(trajectory), strict=True):
        assert tuple(trajectory.path_tokens(node.parent)) == prompt
    text = kimi.text_of(trajectory.path_tokens(len(trajectory.nodes) - 1).tolist(), tokenizer)
    assert text == written(chat, ids)
    if name != "llama":
        results = "<tool_response>\nr2\n</tool_response>\n<tool_response>\nr2\n</tool_response>"
        assert f"<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n" in text


def written(chat, ids):
    """The conversation as one that nobody sampled."""
    builder = ChatBuilder(chat, [TOOL])
    for message in [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go"}]:
        builder.add(message)
    seen = 0
    for number in range(4):
        message = answer(chat, number)
        builder.open_assistant()
        builder.append_sampled([*chat.render(message)[len(chat.answer_prompt(message)) :], chat.end])
        seen += len(message.get("tool_calls", ()))
        results = [{"role": "tool", "content": f"r{seen}"} for _ in message.get("tool_calls", ())]
        for after in [] if number == 3 else results or [{"role": "user", "content": "On"}]:
            builder.add(after)
    return kimi.text_of(builder.tokens, chat._tokenizer)
