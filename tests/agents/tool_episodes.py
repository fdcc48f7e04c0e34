"""Episodes with tools for tests: scripted models that call them, in the compact and in Kimi K2's format."""

import asyncio
import json

from k2jax.agents import Task
from k2jax.agents.environment import Services
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.client import Sampling, ScriptedClient
from k2jax.text import byte_tokenizer, chat_format, configured_chat
from tests.agents.sandbox.backends import backend
from tests.text import kimi

BYTES = byte_tokenizer()
COMPACT = configured_chat(BYTES, "compact")
KEY = EpisodeKey("train", 3, 1, 4)


def task(tools=("calculator", "store"), **fields):
    """A task of the environment with tools."""
    metadata = {"store": {"a": "12", "b": "30"}} | fields.pop("metadata", {})
    instruction = fields.pop("instruction", ({"role": "user", "content": "a+b="},))
    return Task("t", "kv2", instruction, "final_answer", environment="tools", tools=tools, metadata=metadata, **fields)


def episode(client, task, environment=None, *, chat=COMPACT, tokenizer=BYTES, max_tokens=60, **options):
    """Runs an episode."""
    environment = ToolEnvironment() if environment is None else environment
    sampling = Sampling(max_tokens=max_tokens, temperature=1.0)
    return asyncio.run(
        run_episode(task, client, chat, tokenizer, environment, key=KEY, seed=7, sampling=sampling, **options)
    )


async def shown(tools, *steps, environment=None, **fields):
    """The texts of one call after another in an episode: each a name and arguments, or as a model writes it."""
    opened = environment or ToolEnvironment(Services(lambda: backend("bubblewrap")))
    try:
        await opened.reset(task(tools=tools, **fields), 0)
        texts = []
        for step in steps:
            call = called(*step) if isinstance(step, tuple) else step
            taken = await opened.step({"role": "assistant", "content": "", "tool_calls": [call]})
            texts.append(taken.observation.messages[0]["content"])
        return texts
    finally:
        await opened.close()


def results(tools, *steps, **options):
    """See ``shown``."""
    return asyncio.run(shown(tools, *steps, **options))


def called(name, arguments):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": text}}


def compact_client(say):
    """A model that says what a function of the conversation so far, as text, returns."""

    def reply(prompt, sampling):
        text = "".join({0: "<", 1: ">"}.get(i) or BYTES.decode([i]) for i in prompt)
        return [*BYTES.encode(say(text)), BYTES.eos]

    return ScriptedClient(reply)


def kimi_client(say):
    """The same in Kimi K2's format; see ``chat_client``."""
    tokenizer = kimi.tokenizer()
    chat = chat_format(tokenizer)
    return chat_client(say, chat, tokenizer), chat, tokenizer


def chat_client(say, chat, tokenizer):
    """The same in a format with tools; the function returns text and calls ``(name, arguments)``."""

    def reply(prompt, sampling):
        text, calls = say(kimi.text_of(prompt, tokenizer))
        calls = [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls]
        message = {"role": "assistant", "content": text, "tool_calls": calls}
        message |= {"reasoning_content": "hm"} if chat.thinks else {}
        return [*chat.render(message)[len(chat.answer_prompt(message)) :], chat.end]

    return ScriptedClient(reply)
