"""Toolsets of servers of the Model Context Protocol: the package's own server over HTTP, and one in a sandbox."""

import asyncio
import contextlib
from pathlib import Path
import shlex
import socket
import time

from mcp.server.mcpserver import MCPServer
import pytest
import uvicorn

from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.registry import toolsets
from k2jax.errors import UserError
from tests.agents.sandbox.backends import survivors
from tests.agents.tool_episodes import results, shown

SERVER = (Path(__file__).parent / "mcp_line_server.py").read_text(encoding="utf-8")
LINES = f"mcp command={shlex.quote(shlex.join(['python', '-I', '-S', '-c', SERVER]))}"


@contextlib.asynccontextmanager
async def http_server():
    """The package's server with one tool; yields its address."""
    offered = MCPServer("test")

    @offered.tool()
    def divide(a: int, b: int) -> str:
        """Divides two integers."""
        return str(a // b)

    listener = socket.create_server(("127.0.0.1", 0))
    app = offered.streamable_http_app(host="127.0.0.1")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await serving


def test_tools_of_a_server_over_http_are_called_beside_others():
    async def run():
        async with http_server() as url:
            return await shown(
                (f"mcp url={url}", "calculator"),
                ("divide", {"a": 7, "b": 2}),
                ("calc", {"operation": "1+1"}),
                ("divide", {"a": "x", "b": 2}),
                ("divide", {"a": 1, "b": 0}),
            )

    texts = asyncio.run(run())
    assert texts[:2] == ["3", "2"]
    assert texts[2].startswith("Error: the arguments['a'] of divide are wrong")
    assert texts[3].startswith("Error: ") and "divide" in texts[3]


def test_a_server_in_a_sandbox_speaks_over_its_input_and_output_and_ends_with_the_episode():
    texts = results((LINES,), ("shout", {"text": "hey"}), ("fail", {"text": ""}), ("shout", {}))
    assert texts[:2] == ["HEY /work", "Error: it failed"] and "'text' is a required property" in texts[2]
    assert not survivors("bubblewrap")


def test_a_server_that_has_answered_and_ends_or_is_gone_is_a_failure_of_the_infrastructure():
    with pytest.raises(EnvironmentFailedError, match="MCP server"):
        results((LINES,), ("exit", {"text": ""}))

    async def run():
        async with http_server() as url:
            tools = (f"mcp url={url} timeout=5", "calculator")
            await shown(tools, ("calc", {"operation": "1+1"}))
        await shown(tools, ("calc", {"operation": "1+1"}))

    with pytest.raises(EnvironmentFailedError, match="/mcp' cannot be used"):
        asyncio.run(run())


def command(code):
    return shlex.quote(shlex.join(["python", "-I", "-S", "-c", code]))


def test_a_server_that_never_answers_ends_a_run_by_its_name_and_does_not_mask_its_episodes():
    with pytest.raises(UserError, match=r"MCP server .* cannot be used: .*; start it, or correct its command"):
        results(("mcp command='python -c pass' timeout=5",))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"MCP server .*sleep.* cannot be used: it has given no answer within 1 s"):
        results((f"mcp command={command('import time; time.sleep(600)')} timeout=1",))
    assert time.monotonic() - began < 10 and not survivors("bubblewrap")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"{port}/mcp' cannot be used: .*; start it, or correct its url"):
            results((f"mcp url=http://127.0.0.1:{port}/mcp timeout=1",))
    with pytest.raises(UserError, match=f"{port}/mcp' cannot be used"):
        results((f"mcp url=http://127.0.0.1:{port}/mcp timeout=5",))


def test_a_call_that_is_not_answered_is_an_error_of_the_tool_within_its_time_and_the_episode_goes_on():
    texts = results((f"{LINES} timeout=4",), ("wait", {"text": ""}), ("shout", {"text": "hey"}))
    assert texts[0].startswith("Error: the MCP server ") and "no answer to wait within 4 s" in texts[0]
    assert texts[1] == "HEY /work"


def test_a_server_that_dies_has_its_last_words_in_the_error():
    code = "import sys; sys.exit('no licence: see the file LICENCE')"
    with pytest.raises(UserError, match=r"cannot be used: .*; it said 'no licence: see the file LICENCE'"):
        results((f"mcp command={command(code)} timeout=20",))


@pytest.mark.parametrize("text", ["mcp", "mcp url=http://x command=y"])
def test_a_server_needs_an_address_or_a_command(text):
    with pytest.raises(UserError, match="either url="):
        toolsets.make(text)
