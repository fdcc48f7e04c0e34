"""The event loop of a run: beside another one, and ended with all that it runs."""

import asyncio
import threading

import pytest

from k2jax.rl.event_loop import EventLoop


async def _thread_name():
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_coroutines_run_where_another_event_loop_is_running_already():
    async def notebook():
        with EventLoop() as loop:
            return [loop.run(_thread_name()) for _ in range(2)]

    assert asyncio.run(notebook()) == ["rollouts", "rollouts"]


@pytest.mark.filterwarnings("error")
def test_the_thread_ends_without_an_error():
    with EventLoop() as loop:
        loop.run(_thread_name())
    assert not any(thread.name == "rollouts" for thread in threading.enumerate())


def test_what_a_coroutine_raises_reaches_the_caller():
    async def fail():
        raise ValueError("no")

    with EventLoop() as loop, pytest.raises(ValueError, match="no"):
        loop.run(fail())


def test_what_still_runs_at_the_end_is_cancelled():
    ended = []

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def start():
        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        return task

    with EventLoop() as loop:
        task = loop.run(start())
    assert ended and task.cancelled()
