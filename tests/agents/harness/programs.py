"""Programs that play episodes as a harness does, and what runs them."""

import dataclasses
import os
import sys
import textwrap

from k2jax.agents.environments.single_turn import SingleTurn
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.task import Task
from k2jax.client import Sampling
from k2jax.text import byte_tokenizer, configured_chat

BYTES = byte_tokenizer()
PLAIN = configured_chat(BYTES, "compact")
TASK = Task("word-1", "words", ({"role": "user", "content": "Say a word."},), "handed_back", metadata={"secret": "ok"})
KEY = EpisodeKey("train", 3, 1, 2)

PRELUDE = '''\
import json, os, subprocess, sys, time, urllib.error, urllib.request
BASE, REWARD = os.environ["K2JAX_BASE_URL"], os.environ["K2JAX_REWARD_FILE"]
def key(name):
    return open(os.environ[name]).read()
def post(path, body, secret):
    """Status and answer of a request with a body of JSON, or of raw bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": "Bearer " + secret, "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(BASE + path, data, headers)) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
def ask(*messages):
    body = {"model": os.environ["K2JAX_MODEL"], "messages": list(messages)}
    return post("/v1/chat/completions", body, key("K2JAX_KEY_FILE"))
def said(answer):
    return answer[1]["choices"][0]["message"]["content"]
def two_turns():
    first = said(ask(QUESTION))
    more = {"role": "assistant", "content": first}, {"role": "user", "content": "Another."}
    return first, said(ask(QUESTION, *more))
def close(reward, name="K2JAX_REWARD_KEY_FILE"):
    return post("/close", {"reward": reward}, key(name))
TASK = json.load(open(os.environ["K2JAX_TASK_FILE"]))
QUESTION = TASK["instruction"][0]
'''


def written(folder, body, name="harness.py"):
    """Writes a program; returns the option that names it."""
    path = folder / name
    path.write_text(PRELUDE + textwrap.dedent(body))
    return f"program='{sys.executable} {path}'"


def episode(client, program, more="", key=KEY, **task):
    """A coroutine: an episode that a program plays."""
    of = dataclasses.replace(TASK, scaffold=f"command {program} turns=all {more}", **task)
    sampling = Sampling(max_tokens=40, temperature=1.0)
    return run_episode(of, client, PLAIN, BYTES, SingleTurn(), key=key, seed=5, sampling=sampling)


def processes_with(mark):
    """Process ids of other processes whose command line holds a text."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if mark.encode() in file.read() and int(name) != os.getpid():
                    found.append(int(name))
        except OSError:  # it has just ended
            continue
    return found
