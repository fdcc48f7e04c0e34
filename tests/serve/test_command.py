"""The commands as a user runs them, with a tiny model: output, errors, keys in logs, and an orderly end."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import openai
import pytest

from k2jax.client import Sampling
from k2jax.convert.loading import tokenizer_of
from k2jax.inference.loading import load_engine
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine, store_folder
from tests.serve import folder

KEY = "sk-from-the-file-0123456789"
OTHER = "sk-from-the-environment-0123456789"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return folder.write(tmp_path_factory.mktemp("models") / "tiny")


def run(*arguments, **environment):
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)


class Process:
    """A server process whose error output is kept."""

    def __init__(self, *arguments, **environment):
        command = [sys.executable, "-m", "k2jax.serve", "--port=0", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=os.environ | environment, **pipes)
        self.errors = []
        self._thread = threading.Thread(target=lambda: self.errors.extend(self.process.stderr))
        self._thread.start()
        self.hello = self.process.stdout.readline()
        self.url = re.search(r"http://\S+:\d+", self.hello)[0] if "http" in self.hello else None

    def openai(self, key=KEY):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def end(self):
        """Exit code and everything that it wrote."""
        rest = self.process.stdout.read()
        code = self.process.wait(60)
        self._thread.join()
        return code, self.hello + rest + "".join(self.errors)


def accepts(client):
    """Whether the server takes a request; for a moment after the signal it may."""
    try:
        client.models.list()
    except (openai.APIConnectionError, openai.InternalServerError):
        return False
    return True


def test_the_server_from_start_to_end(checkpoint, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(KEY + "\n")
    options = (f"--checkpoint={checkpoint}", f"--api_keys_file={keys}", "--slots=2", "--max_length=20000")
    server = Process(*options, "--host=0.0.0.0", "--grace_seconds=8", K2JAX_API_KEYS=OTHER)
    try:
        assert server.hello.startswith("serving tiny at http://0.0.0.0:")
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        client = server.openai(OTHER)
        first = client.completions.create(model="tiny", prompt="a", max_tokens=5, temperature=0, seed=1)
        again = server.openai().completions.create(model="tiny", prompt="a", max_tokens=5, temperature=0, seed=2)
        assert first.choices[0].text == again.choices[0].text and first.usage.completion_tokens == 5

        assert len(client.completions.create(model="tiny", prompt="a", max_tokens=600, n=2).choices) == 2  # compiles

        # Whatever is done with a key, it does not turn up in the output.
        with pytest.raises(openai.AuthenticationError):
            server.openai("sk-wrong-0123456789").models.list()
        for path in (f"/v1/models?key={KEY}", f"/v1/{KEY}", "/metrics"):
            httpx.get(server.url + path, headers={"Authorization": f"Bearer {KEY}"})
            httpx.get(server.url + path, headers={"Authorization": f"Basic {KEY}"})
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="tiny", prompt="a", extra_body={KEY: OTHER})

        # One request ends within the grace, the other is cut off.
        endless = client.completions.create(model="tiny", prompt="a", max_tokens=19000, stream=True, temperature=0)
        short = client.completions.create(model="tiny", prompt="b", max_tokens=150, stream=True, temperature=0)
        next(iter(endless))
        next(iter(short))
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert list(short)[-1].choices[0].finish_reason == "length"
        while accepts(client):
            assert time.monotonic() - began < 8
        with pytest.raises(openai.APIError, match="shutting down"):
            list(endless)
    finally:
        server.process.send_signal(signal.SIGTERM)
        code, output = server.end()
    assert code == 0, output
    assert time.monotonic() - began < 20
    for secret in (KEY, OTHER, "sk-wrong"):
        assert secret not in output
    assert "Traceback" not in output


def test_a_server_whose_disk_fills_up_says_so_once_and_serves_on(checkpoint, tmp_path):
    """Compiled programs are all that it writes."""
    server = Process(f"--checkpoint={checkpoint}", "--slots=1", JAX_COMPILATION_CACHE_DIR=str(tmp_path))

    def kept():
        return len([path for path in tmp_path.iterdir() if path.stat().st_size > 10])

    before = kept()
    assert before > 0

    def ask(prompt):
        answer = server.openai().completions.create(
            model="tiny", prompt=prompt, max_tokens=5, temperature=0, extra_body={"return_token_ids": True}
        )
        return answer.choices[0].token_ids

    prompts = ["a" * length for length in (9, 40, 200)]  # each has a program of its own
    try:
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (10, limits[1]))
        answers = [ask(prompt) for prompt in prompts[:2]]
        assert kept() == before
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
        answers.append(ask(prompts[2]))
    finally:
        server.process.send_signal(signal.SIGTERM)
        code, output = server.end()
    assert code == 0, output
    assert kept() > before  # there is room again
    assert output.count("compiled programs cannot be kept") == 1 and "Traceback" not in output, output
    ids = [tokenizer_of(checkpoint).encode_document(prompt) for prompt in prompts]
    expected = load_engine(checkpoint, slots=1).generate(ids, Sampling(max_tokens=5, temperature=0.0))
    assert answers == [list(request.tokens) for request in expected]


def test_a_server_starts_with_the_weights_that_a_run_keeps_in_memory(checkpoint):
    engine = load_engine(checkpoint, slots=1)
    weights = {name: np.asarray(array) for name, array in engine.weights.leaves()}
    weights["embed"] = weights["embed"][::-1].copy()
    store = CheckpointEngine(store_folder(checkpoint))
    try:
        store.publish(weights, 7)
        engine.update_params(weights, 7)
        server = Process(f"--checkpoint={checkpoint}", "--slots=1", "--published")
        try:
            answer = server.openai().completions.create(
                model="tiny", prompt="a", max_tokens=5, temperature=0, extra_body={"return_token_ids": True}
            )
        finally:
            server.process.send_signal(signal.SIGTERM)
            code, output = server.end()
    finally:
        store.remove()
    assert code == 0 and "version 7" in output, output
    prompt = tokenizer_of(checkpoint).encode_document("a")
    options = Sampling(max_tokens=5, temperature=0.0)
    expected, before = (each.generate([prompt], options)[0].tokens for each in (engine, load_engine(checkpoint)))
    assert answer.choices[0].token_ids == list(expected) != list(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--checkpoint is required"),
        (["--checkpoint=nowhere"], "no checkpoint nowhere: give a workdir"),
        (["--checkpoint=CHECKPOINT", "--host=0.0.0.0"], "--allow_unauthenticated"),
        (["--checkpoint=CHECKPOINT", "--api_keys_file=nowhere"], "cannot read the API keys in nowhere"),
        (["--checkpoint=CHECKPOINT", "--port=TAKEN"], "cannot listen on 127.0.0.1"),
        (["--checkpoint=CHECKPOINT", "--slots=0"], "slots"),
        (["--checkpoint=CHECKPOINT", "--published"], "no whole weights in /dev/shm/k2jax-"),
    ],
    ids=["no checkpoint", "missing", "exposed", "no key file", "address", "slots", "nothing published"],
)  # fmt: skip
def test_mistakes_are_one_line(checkpoint, arguments, message):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        known = {"CHECKPOINT": str(checkpoint), "TAKEN": str(taken.getsockname()[1])}
        given = [re.sub("[A-Z]+$", lambda match: known[match[0]], argument) for argument in arguments]
        done = run("k2jax.serve", *given)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and message in done.stderr


def test_generate_streams_the_same_text_for_the_same_seed(checkpoint):
    options = (f"--checkpoint={checkpoint}", "--prompt=Once", "--max_tokens=20", "--seed=3")
    first = run("k2jax.generate", *options)
    assert first.returncode == 0, first.stderr
    assert len(first.stdout) > 1 and "tokens/s" in first.stderr and first.stderr.count("\n") == 1
    assert run("k2jax.generate", *options).stdout == first.stdout


def test_generate_says_what_is_wrong(checkpoint):
    done = run("k2jax.generate", f"--checkpoint={checkpoint}", "--prompt=a", "--chat")
    assert done.returncode == 2 and "no chat format" in done.stderr and done.stderr.count("\n") == 1
