"""The tool bash: one shell for an episode, whatever commands do to it."""

import asyncio
import os
import re
import signal

import pytest

from k2jax.agents.sandbox import SandboxError, SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.sandbox.bubblewrap import BubblewrapBackend
from k2jax.agents.task import Task
from k2jax.agents.toolsets.shell_session import ShellSession
from k2jax.agents.toolsets.types import ToolError, Workplace
from k2jax.errors import UserError

TASK = Task("one", "x", ({"role": "user", "content": "x"},), "exact")


def session(use, backend=None, **options):
    """What a coroutine function returns that is given the tool and its sandbox."""
    backend = backend or BubblewrapBackend()

    async def run():
        async with await backend.open(SandboxSpec()) as sandbox:
            toolset = ShellSession(**options)
            await toolset.open(Workplace(TASK, 0, sandbox))
            try:
                return await use(toolset.bash, sandbox)
            finally:
                await toolset.close()

    try:
        return asyncio.run(run())
    finally:
        getattr(backend, "close", lambda: None)()


def said(*commands, **options):
    """What a shell says to some commands, one after another."""

    async def use(bash, sandbox):
        return [await bash(command) for command in commands]

    return session(use, **options)


def test_folder_variables_functions_and_background_programs_last():
    assert said(
        "cd /tmp; x=3; f() { echo \"f $x\"; }; (sleep 0.2; echo done > later) & echo started",
        "pwd; f; echo 'a  b' > file",
        "wait; cat later file; (exit 7)",
        "echo $?",
    ) == ["started", "/tmp\nf 3", "done\na  b\n[exit code 7]", "0"]  # fmt: skip


def test_what_ends_other_shells_does_not_end_this_one_or_the_next_command_begins_another():
    new = "the next command begins a new shell]"
    first, second, third, fourth = said("if then", 'x=1; cat; read y; echo "<$y>"', "exit 3", 'echo "<$x>"')
    assert "syntax error" in first and first.endswith("[exit code 2]")
    assert (second, third, fourth) == ("<>", f"[the shell has ended with code 3; {new}", "<>")
    slow, gone = said("x=1; echo begun; sleep 60", 'echo "<$x>"; pgrep sleep', timeout=0.5)
    assert slow == f"begun\n[killed after 0.5 s; {new}" and gone.startswith("<>\n[exit code")


def test_outputs_are_bounded_and_bytes_are_shown_and_outputs_that_were_sent_away_are_missed_alone():
    long, strange, away, back = said(
        "yes | head -c 300000", "printf '\\377x\\n\\n'; echo e >&2", "exec > /tmp/o; echo 1", "cat /tmp/o >&9"
    )
    assert len(long) < 66_000 and long.endswith("[output beyond 65,536 bytes was dropped]")
    assert (strange, away, back) == ("\ufffdx\n\ne", "", "1")


def test_a_long_command_and_one_with_quotes_are_run_as_they_are_and_others_are_refused():
    text = "echo '" + "x" * 300_000 + "' | wc -c; echo \"it's\"\n# $(exit 1)\n"
    assert said(text) == ["300001\nit's"]
    with pytest.raises(ToolError, match="null character"):
        said("echo \0")
    with pytest.raises(ToolError, match="no text"):
        said("echo \ud800")


def test_a_restart_is_a_new_shell_and_a_program_that_goes_on_is_heard_by_the_next_command():
    async def use(bash, sandbox):
        await bash("x=1; (sleep 0.3; echo late) &")
        await asyncio.sleep(0.6)
        return [await bash('echo "<$x>"'), await bash('echo "<$x>"', restart=True)]

    assert session(use) == ["late\n<1>", "<>"]


def test_a_sandbox_that_is_gone_is_no_mistake_of_the_command():
    backend = BubblewrapBackend()

    async def use(bash, sandbox):
        await bash("x=1")
        os.kill(backend._link.process_id, signal.SIGKILL)
        await asyncio.sleep(0.3)
        with pytest.raises(SandboxError):
            await bash("echo x")

    session(use, backend)


def test_a_sandbox_where_no_program_stays_is_refused():
    with pytest.raises(UserError, match="bubblewrap or nsjail, or the toolset 'shell'"):
        session(None, make_backend("unsafe"))


def test_what_the_model_reads_of_it():
    [tool] = ShellSession().tools
    assert tool["function"]["name"] == "bash" and tool["function"]["parameters"]["required"] == ["command"]
    assert re.match("Runs a command in a shell that keeps", tool["function"]["description"])
