"""The Model Context Protocol with a program in a sandbox: a JSON message a line, over its input and output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
import contextlib
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from k2jax.agents.sandbox.types import ExecResult, SandboxError
from k2jax.files.bounded_json import count_values

LONGEST = 1 << 22
"""Bytes of a message from inside; a longer one ends the connection."""
MOST_VALUES = 50_000
"""JSON values of such a message, which is parsed on the event loop; one that has more is no message."""


@contextlib.asynccontextmanager
async def sandbox_transport(
    sandbox: Any, argv: Sequence[str], tell: Callable[[ExecResult], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Starts a server in a sandbox and yields the streams of messages from and to it; ends it afterwards.

    Args:
        sandbox: one in which programs stay (``start``).
        argv: program and arguments.
        tell: called with how it ended and the beginning of its error output, when it is over.

    Raises:
        SandboxError: the sandbox failed.
    """
    process = await sandbox.start(list(argv))
    try:
        reader, writer = await asyncio.open_connection(sock=process.take(), limit=LONGEST)
        into, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, out_of = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as group:
            group.start_soon(_read, reader, into)
            group.start_soon(_write, writer, out_of)
            try:
                yield incoming, outgoing
            finally:
                group.cancel_scope.cancel()
                for stream in (into, incoming, outgoing, out_of):
                    stream.close()
                writer.close()
    finally:
        with anyio.CancelScope(shield=True):
            await process.kill()
            with contextlib.suppress(SandboxError):
                tell(await process.wait())


async def _read(reader: asyncio.StreamReader, into: Any) -> None:
    """Hands messages on until the program ends; what is no message is handed on as the error that it is."""
    with contextlib.suppress(OSError, ValueError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with into:
            while line := await reader.readline():  # ValueError: longer than the limit
                try:
                    if count_values(line, MOST_VALUES) > MOST_VALUES:
                        raise ValueError(f"a message of more than {MOST_VALUES:,} values")
                    message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                except ValueError as error:
                    message = error
                await into.send(message)


async def _write(writer: asyncio.StreamWriter, out_of: Any) -> None:
    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with out_of:
            async for item in out_of:
                writer.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await writer.drain()
