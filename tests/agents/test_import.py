"""Processes that hold environments or verifiers stay small: no jax, no web framework, little memory, a quick start."""

import json
import subprocess
import sys

import pytest

from tests.emulated import ROOT

SCRIPT = """
import json, re, sys, time
began = time.process_time()
import {modules}
seconds = time.process_time() - began
megabytes = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
print(json.dumps([seconds, megabytes, [name for name in ("jax", "starlette", "httpx") if name in sys.modules]]))
"""
MODULES = {
    "worker": "k2jax.agents.verifier_pool.supervisor",
    "environments": "k2jax.agents.episode, k2jax.agents.scorer, k2jax.agents.registry, k2jax.agents.environments.single_turn",
}


@pytest.mark.parametrize("modules", MODULES.values(), ids=MODULES.keys())
def test_environments_and_verifiers_start_quickly_and_without_jax(modules):
    """Processor time, since other processes may hold the cores; the best of three starts."""
    command = [sys.executable, "-c", SCRIPT.format(modules=modules)]
    done = [subprocess.run(command, cwd=ROOT, capture_output=True, check=True) for _ in range(3)]
    starts = [json.loads(process.stdout) for process in done]
    seconds, megabytes = min(start[0] for start in starts), max(start[1] for start in starts)
    assert seconds < 0.5 and megabytes < 80
    assert not any(start[2] for start in starts)
