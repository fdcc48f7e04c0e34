"""A process that only asks for generations stays small: no jax, little memory, a quick start."""

import json
import subprocess
import sys

from tests.emulated import ROOT

SCRIPT = """
import json, re, sys, time
began = time.process_time()
import k2jax.client
seconds = time.process_time() - began
megabytes = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
print(json.dumps([seconds, megabytes, "jax" in sys.modules]))
"""


def test_the_client_package_starts_quickly_and_without_jax():
    """Processor time, since other processes may hold the cores; the best of three starts."""
    commands = [subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True) for _ in range(3)]
    starts = [json.loads(done.stdout) for done in commands]
    seconds, megabytes = min(start[0] for start in starts), max(start[1] for start in starts)
    assert seconds < 0.5 and megabytes < 80
    assert not any(start[2] for start in starts)
