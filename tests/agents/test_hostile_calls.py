"""No call of a tool ends an episode as a failure of the machine, whatever its arguments and what was done before it."""

import asyncio
import json

import pytest

from k2jax.agents import Task
from k2jax.agents.environment import OUTCOME, Services
from k2jax.agents.environments.files import OUTPUTS, FilesEnvironment, NamedFilesEnvironment
from k2jax.agents.errors import VerifierError
from k2jax.agents.registry import verifiers
from k2jax.agents.sandbox import SandboxError, SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scorer import Scorer
from k2jax.agents.toolsets.edit import EditTool
from k2jax.agents.toolsets.python import SOURCE
from k2jax.agents.toolsets.types import ToolError, Workplace
from k2jax.agents.verifier import Verifier
from k2jax.errors import InfrastructureError
from k2jax.tasks.code import verifier as code_scoring
from k2jax.tasks.commands.verifier import ShellTest
from k2jax.tasks.file_answers.dataset import FilesAsExpected, texts_left
from k2jax.tasks.tau2.toolset import _is_called
from k2jax.trajectory import Reward
from tests.agents.test_verdicts import CountingPool, FakeBackend, finished
from tests.agents.tool_episodes import called, results
from tests.tasks.test_code import block, judged, trajectory

FULL = "for f in /work /tmp /dev/shm; do dd if=/dev/zero of=$f/big bs=1M; done"
TEXTS = {"NUL": "a\0b", "half surrogates": "\ud800", "long": "x" * (1 << 20), "nothing": "", "path": "../../etc/passwd"}
RAW = {
    "deep": "[" * 10**5,
    "many": "[" + "[]," * 10**6 + "[]]",
    "long number": '{"command":' + "9" * 5000 + "}",
    "no object": "[1]",
    "deep words": json.dumps("view a b c d " + "[" * 10**5),
}
CELLS = {
    "leave": "import os; os._exit(0)",
    "kill": "import os; os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)",
    "every descriptor": "import os\nfor i in range(64):\n  try: os.write(i, b'\\0\\0\\0\\2{}')\n  except OSError: pass",
    "an odd exception": "class E(BaseException):\n  def __str__(self): raise E\nraise E()",
    "memory": "[bytearray(1 << 26) for _ in range(100)]",
    "no builtins": "__builtins__.__dict__.clear()",
}


def test_texts_and_arguments_of_any_kind_are_answered(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"address": "a", "title": "t", "text": "x"}))
    tools = ("shell timeout=2", "edit", "store", "calculator", f"search corpus={corpus}")
    calls = [called("shell", {"command": "echo a > a"})]
    for text in TEXTS.values():
        calls += [called("shell", {"command": text}), called("set", {"key": text, "value": text})]
        calls += [called("get", {"key": text}), called("calc", {"operation": text}), called("search", {"query": text})]
        calls += [called("edit", {"command": c, "path": text, "text": text, "old": text, "new": text})
                  for c in ("view", "create", "replace")]  # fmt: skip
    calls += [called(name, raw) for raw in RAW.values() for name in ("shell", "edit", "browse")]
    calls += [called("edit", {"command": "view", "path": "a", "first": 1.0, "last": 1e300}), called("\ud800" * 99, {})]
    calls += [called("browse", {"address": "a", "part": part}) for part in (1.0, 1e300, 10**4000)]
    calls += [{"id": "1", "function": {"name": "shell", "arguments": [1]}}, {"id": "1", "function": None}]
    shown = results(tools, *calls)
    assert len(shown) == len(calls) and shown[-7].startswith("1\ta")


def test_cells_that_ruin_their_interpreter_are_answered():
    calls = [called("python", {"code": code}) for text in CELLS.values() for code in (text, "1+1")]
    shown = results(("python timeout=5",), *calls)
    assert shown[1:-1:2] == ["2"] * (len(CELLS) - 1)  # the last has an interpreter left, which can do nothing


RUINS = {
    "no folder": "chmod 000 /work /tmp /dev/shm",
    "no room": FULL,
    "no processes": "b() { b | b & }; b",
    "a pipe": "rm -f a; mkfifo a",
    "killed": "kill -9 -1; kill -9 1 $PPID",
}


@pytest.mark.parametrize("ruin", RUINS)
def test_tools_answer_in_a_sandbox_that_the_agent_has_ruined(ruin):
    create = {"command": "create", "path": "a", "text": "x" * 9000}
    calls = [called("shell", {"command": RUINS[ruin]}), called("python", {"code": "1+1"}), called("edit", create)]
    tools, source = ("shell timeout=2", "python timeout=5", "edit"), {SOURCE: "import os\n"}
    shown = results(tools, *calls, calls[1], metadata=source)
    assert shown[1] == shown[3] == "2" or shown[1].startswith("Error: the interpreter cannot be started")


@pytest.mark.parametrize("ruin", RUINS)
def test_what_an_agent_has_ruined_has_an_outcome(ruin):
    task = Task("t", "d", (), "v", metadata={OUTPUTS: ["a"]})

    async def outcome(kind):
        backend = make_backend()
        environment = kind(Services(lambda: backend))
        sandbox = await environment.open_workspace(task, SandboxSpec())
        await sandbox.exec(["/bin/sh", "-c", RUINS[ruin]], timeout=5)
        try:
            return await environment.collect()
        finally:
            await environment.close()

    assert {"archive", "left_out"} <= asyncio.run(outcome(FilesEnvironment)).keys()
    assert asyncio.run(outcome(NamedFilesEnvironment)) == {"texts": {}}


def test_a_source_that_never_runs_is_the_tasks_fault_and_one_that_the_agent_has_broken_is_not():
    with pytest.raises(SandboxError, match="source cannot be run"):
        results(("python",), ("python", {"code": "1"}), metadata={SOURCE: "raise ValueError"})
    source = "import os\nif os.path.exists('/work/flag'): raise ValueError\n"
    breaking = called("python", {"code": "open('/work/flag', 'w'); os._exit(0)"})
    shown = results(("python",), breaking, ("python", {"code": "1"}), metadata={SOURCE: source})
    assert shown[1].startswith("Error: the interpreter cannot be started")


class RuinedSandbox:
    """No file can be reached, because the agent has closed its folder, or because the sandbox is gone."""

    workdir = "/work"

    def __init__(self, gone):
        self._gone = gone

    async def read(self, path, limit=0):
        raise SandboxError("Permission denied")

    list = write = read

    async def exec(self, argv, **options):
        if self._gone:
            raise SandboxError("the sandbox is closed")


@pytest.mark.parametrize("gone", [False, True])
def test_only_a_sandbox_that_is_gone_is_a_failure_of_the_machine(gone):
    task = Task("t", "d", (), "shell_test", metadata={OUTPUTS: ["out"]})
    tool = EditTool()
    asyncio.run(tool.open(Workplace(task, 0, RuinedSandbox(gone))))
    for arguments in ({"command": "view"}, {"command": "create", "text": "x"}):
        with pytest.raises(SandboxError if gone else ToolError):
            asyncio.run(tool.call("edit", {"path": "a", **arguments}))
    outcome = NamedFilesEnvironment().outcome(task, RuinedSandbox(gone))
    if gone:
        with pytest.raises(InfrastructureError):
            asyncio.run(outcome)
    else:
        assert asyncio.run(outcome) == {"texts": {}}


def test_outcomes_that_cannot_be_read_are_worth_nothing():
    episode = trajectory("done")
    for archive in ("a", "é", "H4sIAAAAAAAA/w==", "AAAA" * 1000, "\ud800"):
        episode.metadata[OUTCOME] = {"archive": archive}
        assert texts_left(episode) == {}
        task = Task("t", "d", (), "file_answers", metadata={"expected": {"a": "x"}})
        assert asyncio.run(FilesAsExpected().score(task, episode, None)).value == 0
    episode.metadata[OUTCOME] = {"texts": {"out": "\ud800"}}
    task = Task("t", "d", (), "shell_test", metadata={OUTPUTS: ["out"], "test": "grep -q x out"})

    async def score():
        async with await make_backend().open(ShellTest().spec) as sandbox:
            return await ShellTest().score(task, episode, sandbox)

    assert asyncio.run(score()).value == 0


def test_a_long_program_fails(monkeypatch):
    monkeypatch.setattr(code_scoring, "LONGEST", 60)
    right = "def add(a, b): return a + b"
    assert [reward.value for reward in judged(block(right), block(right + "#" * 60))] == [1, 0]


def test_deep_arguments_are_no_call():
    call = {"function": {"name": "f", "arguments": "[" * 10**5}}
    assert not _is_called({"name": "f", "arguments": {}}, [call])


class Raising(Verifier):
    """A verifier with a sandbox that meets something odd."""

    found: object = Reward(float("nan"))

    async def score(self, task, trajectory, sandbox):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    "found",
    [Reward(float("nan")), RecursionError("deep"), Reward(1.0, info={"x": object()})],
    ids=["no number", "an exception", "no JSON"],
)
def test_a_verifier_with_a_sandbox_that_breaks_down_does_not_end_the_run(monkeypatch, found):
    monkeypatch.setattr(Raising, "found", found)
    monkeypatch.setitem(verifiers.added, "boxed", "tests.agents.test_hostile_calls:Raising")
    with pytest.raises(VerifierError, match="after 2 tries"):
        asyncio.run(Scorer(CountingPool(), backend=FakeBackend()).score(Task("t", "d", (), "boxed"), finished("3")))
