"""``python -m k2jax.rollout`` with a server that answers sums: right where the first number is even."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from k2jax.agents.collect.journal import read_journal
from k2jax.text.tokenizer import byte_tokenizer
from k2jax.trajectory import verify
from k2jax.trajectory.store import read_trajectories
from tests.command import ROOT, run_command

CONFIG = """
from k2jax.config import defaults, task

def get_config():
    config = defaults("rl", model="micro")
    config.data.tokenizer.kind = "bytes"
    config.data.chat_format = "plain"
    config.rl.tasks = {"sums": task(dataset="characters", options=("kinds=add2", "count=300"), max_tokens=16)}
    return config
"""
TOKENIZER = byte_tokenizer()


class Sums(BaseHTTPRequestHandler):
    """OpenAI's completions of token ids."""

    seconds = 0.0

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.seconds)
        first, second = TOKENIZER.decode(body["prompt"][1:]).removesuffix("=").split("+")
        right = int(first) + int(second) + int(first) % 2
        ids = [*TOKENIZER.encode(f";{right}"), TOKENIZER.eos]
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}, "finish_reason": "stop"}
        raw = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *words):
        pass


@pytest.fixture
def words(tmp_path):
    """The command's words, with a server that runs."""
    (tmp_path / "sums.py").write_text(CONFIG)
    TOKENIZER.save(tmp_path / "vocabulary")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sums)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [
        f"--config={tmp_path / 'sums.py'}",
        f"--url=http://127.0.0.1:{server.server_port}",
        "--model=sums",
        f"--tokenizer={tmp_path / 'vocabulary'}",
        f"--workdir={tmp_path / 'out'}",
        "--tasks=20",
        "--samples=2",
        "--workers=1",
    ]
    server.shutdown()


def check(folder):
    """Every episode is there once, in order, with the server's answer and its reward."""
    assert len({emission.key for emission in read_journal(folder)}) == len(read_journal(folder)) == 40
    stored = list(read_trajectories(folder / "trajectories" / "0.k2t"))
    assert [each.key for each in stored] == [(0, prompt, sample) for prompt in range(20) for sample in range(2)]
    rewards = [float(each.task.removeprefix("add2/").split("+")[0][-1] in "02468") for each in stored]
    assert [each.reward.value for each in stored] == rewards and 0 < sum(rewards) < 40
    assert not any(verify(each) for each in stored)
    return sum(rewards) / 40


def test_a_collection_is_scored_and_stored_and_asked_for_again_does_nothing(words, tmp_path):
    first = run_command("k2jax.rollout", *words, "--trace")
    assert first.returncode == 0, first.stderr
    success = check(tmp_path / "out")
    assert f"40/40 episodes, success {success:.1%} of 40" in first.stdout
    assert json.loads((tmp_path / "out" / "results.json").read_text())["success"] == success
    spans = [each for each in json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"] if "dur" in each]
    assert len(spans) == 40 and all(0 < each["args"]["engine"] < each["args"]["seconds"] for each in spans)
    verified = run_command("k2jax.rollout", f"--workdir={tmp_path / 'out'}", "--verify")
    assert verified.stdout == "40 trajectories, 0 problems\n"
    (path,) = (tmp_path / "out" / "shards").glob("*/0.k2t")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert run_command("k2jax.rollout", f"--workdir={tmp_path / 'out'}", "--verify").returncode == 1
    again = run_command("k2jax.rollout", *words[:5], "--tasks=20", "--samples=3")
    assert again.returncode == 2 and "another samples (2, not 3)" in again.stderr


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on_with_nothing_doubled(words, tmp_path, monkeypatch):
    monkeypatch.setattr(Sums, "seconds", 0.2)
    argv = [sys.executable, "-m", "k2jax.rollout", *words, "--capacity=2"]
    for kept in (5, 15):
        process = subprocess.Popen(argv, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
        while process.poll() is None and len(read_journal(tmp_path / "out")) < kept:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert kept <= len(read_journal(tmp_path / "out")) < 40
    assert run_command("k2jax.rollout", *words, "--capacity=2").returncode == 0
    check(tmp_path / "out")


def test_what_is_missing_is_one_line(tmp_path):
    config = f"--config={ROOT / 'experiments/rl/nano.py'}"
    neither = run_command("k2jax.rollout", config, f"--workdir={tmp_path}")
    assert neither.returncode == 2 and neither.stderr.count("\n") == 1 and "--checkpoint or --url" in neither.stderr
