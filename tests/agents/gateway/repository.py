"""A small Python project with a bug, a hidden test, the edit that mends it, and an agent of a few lines."""

import json
import textwrap

from k2jax.agents.environments.files import FILES as KEY
from k2jax.agents.gateway.agents import BlackBoxAgent
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.task import Task
from k2jax.tasks.file_answers.dataset import texts_left
from k2jax.trajectory import Reward

FILES = {
    "README.md": "# ranges\nMerges ranges of numbers.\n",
    "ranges/__init__.py": "",
    "ranges/merge.py": textwrap.dedent('''\
        def merge(ranges):
            """Returns the union of closed ranges (low, high), sorted; ranges that touch become one."""
            merged = []
            for low, high in ranges:
                if merged and low <= merged[-1][1]:
                    merged[-1] = (merged[-1][0], high)
                else:
                    merged.append((low, high))
            return merged
        '''),
}  # fmt: skip
TEST = """\
import sys
sys.path.insert(0, "/work")
from ranges.merge import merge
assert merge([]) == []
assert merge([(5, 6), (1, 3)]) == [(1, 3), (5, 6)]
assert merge([(1, 9), (2, 3)]) == [(1, 9)]
assert merge([(1, 2), (2, 4)]) == [(1, 4)]
print("all passed")
"""
MEND = "sed -i 's/in ranges:/in sorted(ranges):/; s/\\[0\\], high)/[0], max(merged[-1][1], high))/' ranges/merge.py"
INSTRUCTION = "merge in ranges/merge.py returns wrong results for unsorted and nested ranges. Mend it."


def task(**values):
    """The task, for whatever scaffold."""
    fields = {
        "environment": "files",
        "metadata": {KEY: {path: {"text": text} for path, text in FILES.items()}},
    } | values
    return Task("ranges-1", "swe", ({"role": "user", "content": INSTRUCTION},), "hidden_test", **fields)


class HiddenTest:
    """1 if the hidden test passes with the files that were left, in a sandbox that the agent never saw."""

    needs_sandbox = True

    def __init__(self):
        self.spec = SandboxSpec(read_only=host_python().read_only)

    async def score(self, task, trajectory, sandbox):
        for path, text in texts_left(trajectory).items():
            await sandbox.write(f"/work/{path}", text.encode())
        result = await sandbox.exec([host_python().executable, "-I", "-S", "-B", "-"], stdin=TEST.encode())
        return Reward(float(result.code == 0 and result.stdout == b"all passed\n"))


SMALL_AGENT = """
import json, subprocess, sys, urllib.request
base, key, task = sys.argv[1:]
messages = [{"role": "system", "content": "Commands in lines that begin with $."}, {"role": "user", "content": task}]
def ask(messages):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(base + "/v1/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]
for _ in range(5):
    message = ask(messages)
    lines = [line[1:] for line in (message["content"] or "").splitlines() if line.startswith("$")]
    messages += [{"role": "assistant", "content": message["content"]}]
    if not lines: break
    done = subprocess.run(["/bin/sh", "-c", "\\n".join(lines)], capture_output=True, text=True, errors="replace")
    messages += [{"role": "user", "content": done.stdout[-200:] + done.stderr[-200:] + "[%d]" % done.returncode}]
"""


def small_agent(**values):
    """An agent of the standard library alone, which has no tools."""
    fields = {
        "name": "small",
        "argv": (host_python().executable, "-I", "-S", "-B", "${home}/agent.py", "${base}", "${key}", "${task}"),
        "files": {"${home}/agent.py": SMALL_AGENT.replace("$", "$$")},
        "turns": "all",
        "memory": 512,
    }
    return BlackBoxAgent(**(fields | values))


def write_agent(path, agent):
    """Writes an agent as users do."""
    path.write_text(json.dumps({name: value for name, value in vars(agent).items()}))
    return path
