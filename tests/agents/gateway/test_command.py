"""The gateway's command as an operator runs it, with a tiny model."""

import os
import re
import signal
import subprocess
import sys

import httpx
import openai
import pytest

from k2jax.client.keys import kept_key
from k2jax.trajectory import TrajectoryStore, verify
from tests.agents.gateway.scripted import OPERATOR, TOKENIZER
from tests.serve import folder


def test_the_operator_s_key_is_made_once_and_is_nobody_else_s(tmp_path):
    path = tmp_path / "work" / "operator.key"
    key = kept_key(path)
    assert kept_key(path) == key != OPERATOR and len(key) >= 32
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_gateway_from_start_to_end(tmp_path):
    checkpoint, work = folder.write(tmp_path / "tiny", TOKENIZER), tmp_path / "work"
    command = [sys.executable, "-m", "k2jax.gateway", "--port=0", f"--checkpoint={checkpoint}", f"--workdir={work}"]
    command += ["--slots=2", "--max_length=512"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    url = re.search(r"http://\S+:\d+", process.stdout.readline())[0]
    operator = {"Authorization": f"Bearer {(work / 'operator.key').read_text()}"}
    opened = {"task": "t", "name": "r1", "sampling": {"max_tokens": 8}, "declares_tools": False}
    access = httpx.post(f"{url}/rollouts", json=opened, headers=operator).raise_for_status().json()
    client = openai.OpenAI(base_url=f"{url}{access['path']}/v1", api_key=access["key"], max_retries=0, timeout=120)
    messages = [{"role": "user", "content": "Go"}]
    for _ in range(2):
        message = client.chat.completions.create(model="any", messages=messages).choices[0].message
        messages += [message.model_dump(exclude_none=True), {"role": "user", "content": "On"}]
    httpx.post(f"{url}/rollouts/r1/close", json={}, headers=operator).raise_for_status()
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert access["key"] not in rest + errors and operator["Authorization"][7:] not in rest + errors
    [trajectory] = TrajectoryStore(work / "trajectories").read(0)
    assert verify(trajectory, TOKENIZER.vocab_size) == [] and len(trajectory.leaves()) == 1
    assert trajectory.sampled_tokens == 16
