"""The path of docs/gateway.md in a fresh home and an empty folder: a model, the gateway, a rollout and an agent."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from tests.emulated import ROOT

PAGE = (ROOT / "docs/gateway.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)
SHORT = {  # a model that has learnt nothing goes the same way
    "k2jax.env.demonstrate": "--count=200",
    "k2jax.train": "--config.train.steps=2 --config.eval.rows=1",
    "k2jax.gateway": "--port=0 --max_length=4096 --slots=2",
}


def shell(part):
    """The commands of the only block that has a part."""
    [code] = [code for language, code in BLOCKS if language == "sh" and part in code]
    return [line.replace('pip install -e ".[serve]" && ', "") for line in code.replace("\\\n", " ").splitlines()]


def shortened(line):
    module = re.search(r"python -m ([\w.]+)", line)[1]
    return f"exec {line.replace('python', shlex.quote(sys.executable), 1)} {SHORT[module]}"


@pytest.mark.slow
def test_the_documented_commands_run_one_after_the_other(tmp_path):
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("K2JAX_CACHE", "XDG"))}
    environment = kept | {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    options = {"cwd": tmp_path, "env": environment, "text": True}

    def run(command):
        return subprocess.run(["bash", "-c", command], check=True, capture_output=True, timeout=600, **options).stdout

    for line in shell("k2jax.train"):
        run(shortened(line))
    [start] = shell("k2jax.gateway --checkpoint")
    gateway = subprocess.Popen(["bash", "-c", shortened(start)], stdout=subprocess.PIPE, **options)
    try:
        address = re.search(r"http://(\S+)", gateway.stdout.readline())[1]
        [opening] = ["\n".join(shell('"task"'))]
        opened = json.loads(run(opening.replace("localhost:8001", address)))
        [agent] = [code for language, code in BLOCKS if "import openai" in code]
        (tmp_path / "agent.py").write_text(agent.replace("127.0.0.1:8001", address))
        run(f"{shlex.quote(sys.executable)} agent.py {opened['key']}")
        closing = "\n".join(shell("/close")).replace("localhost:8001", address)
        output = run(closing.replace("python -m", f"{shlex.quote(sys.executable)} -m"))
    finally:
        gateway.send_signal(signal.SIGTERM)
        gateway.communicate(timeout=60)
    assert gateway.returncode == 0 and '"rollout":"r1"' in output.replace(" ", "")
