"""Episodes with tools: calls in two chat formats, budgets, scripted users, failures and replay."""

import asyncio
import dataclasses
import json
from pathlib import Path
import time
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import six

from k2jax.agents import Budget
from k2jax.agents.environment import Services
from k2jax.agents.environments.files import FilesEnvironment
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.registry import toolsets
from k2jax.agents.sandbox import SandboxError
from k2jax.agents.sandbox.interpreter import host_packages
from k2jax.agents.toolsets.edit import EditTool
from k2jax.agents.toolsets.shell import ShellTool
from k2jax.agents.toolsets.store import StoreTools
from k2jax.agents.toolsets.types import Workplace
from k2jax.errors import UserError
from k2jax.trajectory import verify
from tests.agents.sandbox.backends import NAMESPACES, backend, new_backend
from tests.agents.tool_episodes import BYTES, COMPACT, compact_client, episode, kimi_client, results, task

SOLUTION = {0: "!get a", 1: "!get b", 2: "!calc 12+30", 3: "42"}


def solve(text):
    """The next line of a solution of ``a+b=``."""
    return SOLUTION[text.count("!")]


def same(one, other):
    return [(n.parent, n.turn, n.tokens.tolist(), n.message) for n in one.nodes] == [
        (n.parent, n.turn, n.tokens.tolist(), n.message) for n in other.nodes
    ]


def test_an_episode_in_the_compact_format_alternates_calls_and_results():
    client = compact_client(solve)
    result = episode(client, task())
    assert (result.status, result.answer, verify(result)) == ("finished", "42", [])
    shown = "".join({0: "<", 1: ">"}.get(i) or BYTES.decode([i]) for i in result.path_tokens(len(result.nodes) - 1))
    assert shown == "<a+b=>!get a><12>!get b><30>!calc 12+30><42>42>"
    assert [node.turn for node in result.nodes] == [-1, 0, -1, 1, -1, 2, -1, 3]
    assert all(node.mask.all() == (node.turn >= 0) for node in result.nodes)
    for node, (prompt, _) in zip([n for n in result.nodes if n.turn >= 0], client.calls, strict=True):
        assert list(prompt) == result.path_tokens(node.parent).tolist()


def test_an_episode_in_kimis_format_declares_its_tools_and_answers_parallel_calls_in_order():
    def say(text):
        if "Return of" in text:
            return "42", []
        return "I look.", [("get", {"key": "a"}), ("get", {"key": "x"}), ("calc", {"operation": "12+30"})]

    client, chat, tokenizer = kimi_client(say)
    result = episode(client, task(), chat=chat, tokenizer=tokenizer, max_tokens=400)
    assert (result.status, result.answer) == ("finished", "42")
    declared = chat.declare_tools([*toolsets.make("calculator").tools, *StoreTools().tools])
    assert result.nodes[0].tokens[: len(declared)].tolist() == declared
    assert [node.message["content"] for node in result.nodes[2:5]] == ["12", "Error: there is no key 'x'", "42"]
    assert [node.message.get("is_error", False) for node in result.nodes[2:5]] == [False, True, False]
    ids = [call["id"] for call in result.nodes[1].message["tool_calls"]]
    assert [node.message["tool_call_id"] for node in result.nodes[2:5]] == ids


def test_wrong_calls_are_shown_to_the_model_and_never_end_the_episode():
    lines = ["!", "!nothing 1", "!calc", "!get a b c", "!set a", "x\n!calc 1+1\n!calc 2+2", "done"]
    result = episode(compact_client(lambda text: lines[text.count(">") // 2 - (text.count("<2><4>") > 0)]), task())
    assert (result.status, result.answer) == ("finished", "done")
    results = [node.message["content"] for node in result.nodes if node.message["role"] == "tool"]
    assert results[-2:] == ["2", "4"] and all(text.startswith("Error: ") for text in results[:-2])


def test_scripted_turns_of_the_user_follow_answers_without_calls():
    turns = task(metadata={"user_turns": ["and a?", "thanks"]})
    lines = {1: "!calc 1+1", 2: "two", 3: "!get a", 4: "12", 5: "welcome"}
    result = episode(compact_client(lambda text: lines[text.count("<")]), turns)
    contents = [node.message["content"] for node in result.nodes if node.turn < 0]
    assert contents == ["a+b=", "2", "and a?", "12", "thanks"] and result.answer == "welcome"


def test_budgets_of_steps_and_tokens_truncate_an_episode():
    steps = episode(compact_client(lambda text: "!get a"), task(budget=Budget(steps=3)))
    assert (steps.status, max(node.turn for node in steps.nodes)) == ("truncated", 2)
    tokens = episode(compact_client(lambda text: "!get a"), task(budget=Budget(tokens=16)))
    assert (tokens.status, tokens.sampled_tokens) == ("truncated", 16)


@settings(max_examples=8)
@given(st.integers(2, 12))
def test_an_episode_with_tools_that_pauses_is_rebuilt_by_replay(cap):
    whole, pieces = episode(compact_client(solve), task()), None
    while pieces is None or pieces.status == "unfinished":
        pieces = episode(compact_client(solve), task(), trajectory=pieces, token_cap=cap)
    assert same(whole, pieces)


class Failing(StoreTools):
    """A store whose machine fails at some of its calls, counted over all episodes, or at opening."""

    failures, calls, closed = (), 0, 0

    async def call(self, name, arguments):
        type(self).calls += 1
        if type(self).calls in self.failures:
            raise SandboxError("it is gone")
        return await super().call(name, arguments)

    async def close(self):
        type(self).closed += 1


@pytest.fixture
def failing(monkeypatch):
    monkeypatch.setitem(toolsets.added, "failing", "tests.agents.test_tool_environment:Failing")
    monkeypatch.setattr(Failing, "calls", 0)
    monkeypatch.setattr(Failing, "closed", 0)
    return task(tools=("calculator", "failing"))


def test_a_tool_whose_machine_fails_is_tried_in_a_rebuilt_environment_and_the_episode_is_the_same(failing, monkeypatch):
    monkeypatch.setattr(Failing, "failures", (2, 4))
    result = episode(compact_client(solve), failing)
    assert same(result, episode(compact_client(solve), task())) and Failing.closed == 3


def test_a_tool_whose_machine_fails_again_and_again_masks_the_episode(failing, monkeypatch):
    monkeypatch.setattr(Failing, "failures", range(2, 99))
    result = episode(compact_client(solve), failing)
    assert (result.status, result.error) == ("masked", "SandboxError: it is gone")


def test_a_task_that_needs_a_sandbox_says_so_where_there_is_none():
    with pytest.raises(UserError, match="'shell' of the task 't' needs a sandbox"):
        episode(compact_client(solve), task(tools=("shell",)))
    with pytest.raises(UserError, match="no toolset 'shall'; did you mean 'shell'"):
        episode(compact_client(solve), task(tools=("shall",)))
    with pytest.raises(UserError, match="'t' needs a tool with a sandbox, such as shell"):
        results((), environment=FilesEnvironment())
    with pytest.raises(UserError, match="its environment 'single_turn' has no tools"):
        wrong = dataclasses.replace(task(), environment="single_turn")
        from k2jax.agents.environments.single_turn import SingleTurn

        episode(compact_client(solve), wrong, SingleTurn())


SANDBOXED = ("python timeout=2", "shell timeout=2", "edit")


def cells(*codes, tools=SANDBOXED, name="bubblewrap", **options):
    """What cells of code show."""
    environment = ToolEnvironment(Services(lambda: backend(name)))
    return results(tools, *(("python", {"code": code}) for code in codes), environment=environment, **options)


def test_the_interpreter_keeps_its_variables_shows_values_and_survives_errors():
    shown = cells(
        "x = 41\nprint('hi')\nx + 1",
        "def f():\n    return 1 / 0\nf()",
        "import os\nos.system('echo from a program'); raise SystemExit",
        "x + 2",
        "x +",
        "os._exit(3)",
        "x",
        "while True: pass",
        "6 * 7",
    )
    assert shown[0] == "hi\n42" and shown[3] == "43"
    assert shown[1].startswith('  File "<code>", line 3') and shown[1].count("File") == 2
    assert shown[1].endswith("ZeroDivisionError: division by zero") and "from a program" in shown[2]
    assert shown[4].endswith("SyntaxError: invalid syntax")
    assert "variables are lost" in shown[5] and shown[6].endswith("NameError: name 'x' is not defined")
    assert shown[7:] == ["[the interpreter was killed after 2 s; its variables are lost]", "42"]


USE_NUMPY = "import numpy as np\nfrom PIL import Image\nnp.asarray(Image.new('L', (3, 2))).shape"
THREADS = "import os\nlen(os.listdir('/proc/self/task'))"


@pytest.mark.parametrize("name", NAMESPACES)
def test_cells_import_the_packages_that_are_named_and_no_others(name):
    tools = ("python packages=pillow+numpy",)
    product = "float(np.ones(200) @ np.ones((200, 200)) @ np.ones(200))"
    shown = cells(USE_NUMPY, "import scipy", "import k2jax", product, THREADS, tools=tools, name=name)
    assert shown[0] == "(2, 3)" and shown[3:] == ["40000.0", "1"]
    assert all("ModuleNotFoundError" in result for result in shown[1:3])
    [without] = cells(USE_NUMPY, tools=("python",), name=name)
    assert without.endswith("ModuleNotFoundError: No module named 'numpy'")


def test_cells_cannot_change_the_packages_of_the_host():
    source, file = Path(np.__file__), "/packages/0/numpy/__init__.py"
    kept = source.read_bytes()
    shown = cells(
        f"open({file!r}, 'rb').read() == {kept!r}",
        f"open({file!r}, 'a')",
        "open('/packages/0/more.py', 'w')",
        "[line.split()[3][:3] for line in open('/proc/self/mounts') if line.split()[1] == '/packages/0/numpy']",
        tools=("python packages=numpy",),
    )
    assert shown[0] == "True" and shown[3] == "['ro,']"
    assert all("Read-only file system" in result or "Permission denied" in result for result in shown[1:3])
    assert source.read_bytes() == kept and not (source.parents[1] / "more.py").exists()


def test_source_of_a_task_may_begin_with_the_future_where_packages_are_shown():
    source = {"python_source": "from __future__ import annotations\nstart = 4"}
    assert cells("import numpy\nint(numpy.sqrt(start))", tools=("python packages=numpy",), metadata=source) == ["2"]


def test_of_a_package_only_what_is_its_own_is_shown():
    packages = host_packages(("six",))
    [shown] = packages.read_only
    assert Path(shown.source).samefile(six.__file__)
    assert shown.inside == "/packages/0/six.py" and packages.folders == ("/packages/0",)
    with pytest.raises(UserError, match="the package 'k2jax' has no list of its files; install it again, by pip"):
        host_packages(("k2jax",))  # an editable one


def test_packages_that_are_not_installed_and_packages_beside_an_image_are_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match="no package 'nonesuch' here for sandboxes to show"):
        toolsets.make("python packages=numpy+nonesuch")
    (tmp_path / "image/usr").mkdir(parents=True)
    made = new_backend("bubblewrap", str(tmp_path))
    environment = ToolEnvironment(Services(lambda: made))
    with pytest.raises(UserError, match="shows no packages in the image of the task 't'"):
        asyncio.run(environment.reset(task(tools=("python packages=numpy",), image="image"), 0))
    asyncio.run(environment.close())
    made.close()


def test_an_interpreter_needs_a_sandbox_in_which_programs_stay():
    environment = ToolEnvironment(Services(lambda: backend("unsafe")))
    with pytest.raises(UserError, match="use the backend bubblewrap or nsjail"):
        asyncio.run(environment.reset(task(tools=("python",)), 0))
    asyncio.run(environment.close())


def test_shell_and_edit_share_the_files_of_one_sandbox():
    shown = results(
        SANDBOXED,
        ("edit", {"command": "create", "path": "a.txt", "text": "one\ntwo\nthree\n"}),
        ("edit", {"command": "replace", "path": "a.txt", "old": "two", "new": "2"}),
        ("shell", {"command": "cat a.txt; echo oops >&2; exit 3"}),
        ("edit", {"command": "view", "path": "/work/a.txt", "first": 2}),
        ("edit", {"command": "view", "path": "."}),
        ("edit", {"command": "replace", "path": "a.txt", "old": "e", "new": ""}),
        ("edit", {"command": "view", "path": "/etc/passwd"}),
        ("edit", {"command": "view", "path": "a.txt", "first": 9}),
        ("edit", {"command": "create", "path": "b.txt"}),
    )
    assert shown[1] == "replaced in a.txt at line 2"
    assert shown[2] == "one\n2\nthree\noops\n[exit code 3]"
    assert shown[3:5] == ["2\t2\n3\tthree", "a.txt"]
    assert "occurs 3 times" in shown[5] and shown[6].startswith("Error: /etc/passwd cannot be read")
    assert "has 3 lines" in shown[7] and "needs the argument 'text'" in shown[8]
    begun = time.monotonic()
    late = results(("shell timeout=0.5",), ("shell", {"command": "echo before; sleep 60"}))
    assert late == ["before\n[killed after 0.5 s]"] and time.monotonic() - begun < 9


def test_a_command_of_a_shell_may_be_as_long_as_a_script():
    """Here-documents make long commands, longer than an argument of a program may be."""
    lines = "".join(f"line {number} $(not run) \\ 'é'\n" for number in range(8000))
    command = f"cat > a.txt << 'END'\n{lines}END\nwc -c < a.txt; cat; echo $0; exit 3"
    [shown] = results(("shell",), ("shell", {"command": command}))
    assert len(command) > 1 << 17 and shown.split() == [str(len(lines.encode())), "/bin/sh", "[exit", "code", "3]"]
    [shown] = results(("shell",), ("shell", {"command": "echo \0" + "x" * (1 << 18)}))
    assert "null character" in shown


def test_what_was_said_in_the_compact_format_is_rendered_as_it_was_sampled():
    message = COMPACT.read(BYTES.encode("hm\n!calc 1+1\n!get a"))
    assert message["content"] == "hm" and len(message["tool_calls"]) == 2
    assert BYTES.decode(COMPACT.render(message)) == "hm\n!calc 1+1\n!get a"
    named = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    assert BYTES.decode(COMPACT.render(named)) == "!f 1"


@given(st.text())
def test_content_cannot_inject_the_marks_of_the_compact_format(text):
    for role in ("user", "tool"):
        ids = COMPACT.render({"role": role, "content": text})
        assert ids[0] == BYTES.bos and not set(ids[1:]) & {BYTES.bos, BYTES.eos}


@pytest.mark.parametrize("make", [ShellTool, EditTool])
def test_a_tool_says_in_which_folder_it_works(make):
    texts = {}
    for folder in ("/work", "/srv/app"):
        toolset = make()
        asyncio.run(toolset.open(Workplace(task(), 0, SimpleNamespace(workdir=folder))))
        texts[folder] = json.dumps(toolset.tools)
    assert " /work" in texts["/work"] and texts["/work"] == json.dumps(make().tools)
    assert texts["/srv/app"] == texts["/work"].replace("/work", "/srv/app")
