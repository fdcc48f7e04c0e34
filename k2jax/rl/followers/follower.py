"""A process that runs no episodes: it replays the controller's log of commands on engines of its own.

It decides nothing by itself: no clock, no set's order and no environment variable takes part. Before it issues a
program it compares what the program is given with what the controller said, and a difference ends the run, because
programs that differ would wait for each other for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn
import weakref

from k2jax.errors import UserError
from k2jax.inference.engine import Engine
from k2jax.inference.request import Request, State
from k2jax.processes.command_tree import MessageTree
from k2jax.processes.values import decode
from k2jax.rl.followers.commands import Commands, Result
from k2jax.rl.followers.digests import digest_of
from k2jax.rl.followers.request_form import request_of
from k2jax.train.signals import StopAskedError


class Follower(Commands):
    """See the module's text, and ``Commands``.

    Args:
        tree: to the other processes.
        fail: ends all processes with a line.
    """

    follows: ClassVar[bool] = True

    def __init__(self, tree: MessageTree, fail: Callable[[str], NoReturn]):
        self._tree, self._fail = tree, fail
        self._engines: list[Engine] = []
        self._joint: dict[str, Callable[[Any], Any]] = {}
        self._requests: weakref.WeakValueDictionary[int, Request] = weakref.WeakValueDictionary()
        self._calls: deque[list[Any]] = deque()
        self._next: dict[str, Any] | None = None  # a message that was read and not used
        self._messages = 0

    def engine(self, engine: Engine) -> Engine:
        """See ``Commands``."""
        number = len(self._engines)
        engine.programs.before = lambda name, inputs: self._compare_program(number, name, inputs)
        self._engines.append(engine)
        return engine

    def issue_while(self, function: Callable[[], Result]) -> None:
        """See ``Commands``; calls are replayed until the controller's ``function`` has ended."""
        self._replay_until("hold")

    def joint(self, name: str, function: Callable[[Any], Result]) -> Callable[[Any], Result]:
        """See ``Commands``; what is returned is not called."""
        self._joint[name] = function
        return function

    def share(self, value: Any) -> Any:
        """See ``Commands``; ``value`` is not used."""
        return self._replay_until("share")["value"]

    def check(self, name: str, digest: Callable[[], bytes] = bytes) -> None:
        """See ``Commands``."""
        said = self._replay_until("check")
        if said["name"] != name or said["digest"] != digest():
            self._differ(name, said["name"])

    def _replay_until(self, kind: str) -> dict[str, Any]:
        """Takes messages of calls up to one of another kind, which has to be ``kind``."""
        while True:
            message = self._read()
            if message["kind"] == "program":
                self._next = message  # the first one of the step that is among the calls
            self._replay()
            if message["kind"] == kind:
                return message
            if message["kind"] == "stop":
                raise StopAskedError
            if message["kind"] == "program":
                if self._next is message:  # and not one behind it
                    self._differ("no program", message["name"])
            elif message["kind"] == "joint":
                self._run_joint(message["name"], message["value"])
            elif message["kind"] != "calls":
                self._differ(kind, message["kind"])

    def _replay(self) -> None:
        while self._calls:
            number, call, *arguments = self._calls.popleft()
            engine = self._engines[number]
            if call == "enqueue":
                self._enqueue(engine, *arguments)
            elif call in ("cancel", "pause"):
                getattr(engine, call)(self._requests[arguments[0]])
            elif call in ("cancel_all", "sort_waiting", "drop_prefixes", "step"):
                getattr(engine, call)()
            else:
                self._differ("a known call", call)

    def _run_joint(self, name: str, value: Any) -> None:
        if name not in self._joint:
            self._differ("a known command", name)
        problem = None
        try:
            self._joint[name](value)
        except UserError as error:
            problem = error
        failed = self._replay_until("done")["failed"]
        if problem is not None and not failed:
            raise problem
        if problem is None and failed:
            self._differ(f"{name} well", f"{name} with an error")

    def _enqueue(self, engine: Engine, number: int, values: dict[str, Any], watched: bool) -> None:
        request = request_of(values, engine)
        if watched:
            request.on_token = lambda request: self._is_stopped(number, request)
        self._requests[number] = request
        engine.enqueue(request)

    def _is_stopped(self, number: int, request: Request) -> bool:
        """Whether the controller's caller has stopped the request here: the message behind this program says it."""
        if request.state != State.RUNNING:
            return False
        if self._next is None:
            self._next = self._read()
        return [number, len(request.tokens)] in self._next["stops"]

    def _compare_program(self, engine: int, name: str, inputs: Any) -> None:
        message, self._next = self._next or self._read(), None
        if message["kind"] != "program":
            self._differ(name, message["kind"])
        if (message["engine"], message["name"]) != (engine, name) or message["digest"] != digest_of(inputs):
            self._differ(name, message["name"])

    def _read(self) -> dict[str, Any]:
        """The message that was read before, or the next one; its calls wait for the end of the step at work."""
        if self._next is not None:
            message, self._next = self._next, None
            return message
        message = decode(self._tree.receive())
        self._messages += 1
        self._calls.extend(message["calls"])
        return message

    def _differ(self, own: str, said: str) -> NoReturn:
        self._fail(
            f"it is about to do {own!r} where process 0 does {said!r}, or with other inputs (message "
            f"{self._messages:,}): the processes have come apart"
        )
