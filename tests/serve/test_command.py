"""The commands as a user runs them, with a tiny model: output, errors, keys in logs, and an orderly end."""

import gc
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

from k2jax import cli
from k2jax.client import Sampling
from k2jax.convert.loading import tokenizer_of
from k2jax.inference.loading import load_engine
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine, store_folder
from k2jax.serve.__main__ import _open_model, define
from tests.command import run_command
from tests.serve import folder

KEY = "sk-from-the-file-0123456789"
OTHER = "sk-from-the-environment-0123456789"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return folder.write(tmp_path_factory.mktemp("models") / "tiny")


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
        self.url = re.search(r"http://\S+:\d+", self.hello)[0].replace("0.0.0.0", "127.0.0.1")

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


def check_full_disk(server, kept):
    """Compiled programs are all that a server writes; it answers without, and keeps them when there is room again."""
    before = kept()
    assert before > 0
    prompts = ["a" * length for length in (9, 40, 200)]  # each has a program of its own

    def ask(prompt):
        extra = {"return_token_ids": True}
        answer = server.openai().completions.create(
            model="tiny", prompt=prompt, max_tokens=5, temperature=0, extra_body=extra
        )
        return answer.choices[0].token_ids

    limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (10, limits[1]))
    answers = [ask(prompt) for prompt in prompts[:2]]
    assert kept() == before
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
    answers.append(ask(prompts[2]))
    assert kept() > before
    return prompts, answers


def check_keys(server):
    """Whatever is done with a key, it does not turn up in the output."""
    client = server.openai(OTHER)
    with pytest.raises(openai.AuthenticationError):
        server.openai("sk-wrong-0123456789").models.list()
    for path in (f"/v1/models?key={KEY}", f"/v1/{KEY}", "/metrics"):
        for scheme in ("Bearer", "Basic"):
            httpx.get(server.url + path, headers={"Authorization": f"{scheme} {KEY}"})
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt="a", extra_body={KEY: OTHER})


def check_end(server):
    """After SIGTERM one request ends within the grace, the other is cut off; returns when the signal was sent."""
    client = server.openai()
    options = {"model": "tiny", "temperature": 0, "stream": True}
    client.completions.create(model="tiny", prompt="a", max_tokens=100, n=2)  # compiles
    endless = client.completions.create(**options, prompt="a", max_tokens=19000)
    short = client.completions.create(**options, prompt="b", max_tokens=40)
    next(iter(endless))
    next(iter(short))
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert list(short)[-1].choices[0].finish_reason == "length"
    while accepts(client):
        assert time.monotonic() - began < 5
    with pytest.raises(openai.APIError, match="shutting down"):
        list(endless)
    return began


def test_the_server_from_start_to_end(checkpoint, tmp_path):
    keys, programs = tmp_path / "keys", tmp_path / "programs"
    keys.write_text(KEY + "\n")
    programs.mkdir()
    options = (f"--checkpoint={checkpoint}", f"--api_keys_file={keys}", "--slots=2", "--max_length=20000")
    environment = {"K2JAX_API_KEYS": OTHER, "JAX_COMPILATION_CACHE_DIR": str(programs)}
    server = Process(*options, "--host=0.0.0.0", "--grace_seconds=4", **environment)
    try:
        assert server.hello.startswith("serving tiny at http://0.0.0.0:")
        prompts, answers = check_full_disk(
            server, lambda: len([path for path in programs.iterdir() if path.stat().st_size > 10])
        )
        check_keys(server)
        began = check_end(server)
    finally:
        server.process.send_signal(signal.SIGTERM)
        code, output = server.end()
    assert code == 0, output
    assert time.monotonic() - began < 16
    for secret in (KEY, OTHER, "sk-wrong"):
        assert secret not in output
    assert output.count("compiled programs cannot be kept") == 1 and "Traceback" not in output, output
    ids = [tokenizer_of(checkpoint).encode_document(prompt) for prompt in prompts]
    expected = load_engine(checkpoint, slots=2, max_length=256).generate(ids, Sampling(max_tokens=5, temperature=0.0))
    assert answers == [list(request.tokens) for request in expected]


def test_a_server_starts_with_the_weights_that_a_run_keeps_in_memory(checkpoint, capsys):
    engine = load_engine(checkpoint, slots=1, max_length=512)
    prompt = [tokenizer_of(checkpoint).encode_document("a")]
    options = Sampling(max_tokens=5, temperature=0.0)
    before = list(engine.generate(prompt, options)[0].tokens)
    weights = {name: np.asarray(array) for name, array in engine.weights.leaves()}
    weights["embed"] = weights["embed"][::-1].copy()
    store = CheckpointEngine(store_folder(checkpoint))
    flags = [f"--checkpoint={checkpoint}", "--slots=1", "--max_length=512", "--published"]
    values, _ = cli.parse(["serve", *flags], define, "")
    try:
        store.publish(weights, 7)
        worker, _, _ = _open_model(values, ())
    finally:
        store.remove()
    engine.update_params(weights, 7)
    expected, served = engine.generate(prompt, options), worker.call(lambda each: each.generate(prompt, options))
    worker.stop()
    assert "version 7" in capsys.readouterr().err
    assert list(served[0].tokens) == list(expected[0].tokens) != before


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
        done = run_command("k2jax.serve", *given)
    gc.enable()  # a process that has failed ends without
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and message in done.stderr


def test_generate_streams_the_same_text_for_the_same_seed(checkpoint):
    options = (f"--checkpoint={checkpoint}", "--prompt=Once", "--max_tokens=20", "--seed=3")
    command = [sys.executable, "-m", "k2jax.generate", *options]
    first = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert first.returncode == 0, first.stderr
    assert len(first.stdout) > 1 and "tokens/s" in first.stderr and first.stderr.count("\n") == 1
    assert run_command("k2jax.generate", *options).stdout == first.stdout


def test_generate_says_what_is_wrong(checkpoint):
    done = run_command("k2jax.generate", f"--checkpoint={checkpoint}", "--prompt=a", "--chat")
    assert done.returncode == 2 and "no chat format" in done.stderr and done.stderr.count("\n") == 1
