"""Processes below one are found whatever their number, and quickly where it is one."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, subprocess, sys
from k2jax.files import process_tree
from k2jax.files.process_tree import descendants, glance
started = [subprocess.Popen(["sh", "-c", each + " echo; read line"], stdin=-1, stdout=-1) for each in sys.argv[2:]]
for each in started:
    each.stdout.readline()
if sys.argv[1] == "ended":
    started[0].communicate()
    started[0] = subprocess.Popen("true")
    os.waitid(os.P_PID, started[0].pid, os.WEXITED | os.WNOWAIT)
passes = []
listdir = os.listdir
process_tree.os.listdir = lambda path: passes.append(path) or listdir(path)
seen = glance()
print("/proc" in passes, len(seen), seen.keys() == descendants().keys() == descendants(os.getpid()).keys())
print(sum(each.state == "Z" for each in seen.values()))
print(all(each.seconds >= 0 for each in seen.values()) and {each.pid for each in started} <= seen.keys())
process_tree.kill_descendants()
print(descendants())
"""


@pytest.mark.parametrize(
    ("kind", "children", "expected"),
    [
        ("none", [], ("True 0 True", "0")),
        ("one", [":;"], ("False 1 True", "0")),
        ("ended", [":;"], ("False 1 True", "1")),
        ("grandchild", ["sleep 60 &"], ("True 2 True", "0")),
        ("two", [":;", ":;"], ("True 2 True", "0")),
    ],
)
def test_a_glance_finds_what_a_pass_over_all_processes_finds(kind, children, expected):
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind, *children], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [*expected, "True", "{}"], done.stderr
