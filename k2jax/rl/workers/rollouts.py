"""The window at work: episodes begin where there is room, oldest prompts first, and complete groups are logged.

It lives on the run's event loop from the first iteration to the end of the run. Between two iterations the engine is
held: tools and verdicts go on, and a request waits for the next weights.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
import contextlib
import dataclasses

from k2jax.agents.collect.event_loop import end_all
from k2jax.agents.collect.worker import Waits
from k2jax.agents.mixture import TaskMixture
from k2jax.rl.groups import PromptGroup
from k2jax.rl.iteration_metrics import oldest_version
from k2jax.rl.workers.group_log import GroupLog, Place
from k2jax.rl.workers.window import DrawWindow
from k2jax.rl.workers.worker_episodes import WorkerEpisodes
from k2jax.trajectory import Trajectory

_BEGUN = 32
"""Episodes that begin in one turn of the event loop."""
_WATCH = 0.5
"""Time between two looks at the engine [s]."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """What an iteration trains on.

    Attributes:
        groups: in the order of their prompts.
        overtaken: numbers of those that an earlier batch had overtaken.
        waits: of the episodes, those of groups that an earlier process has sampled left out.
        left_behind: open prompts that this batch has overtaken.
        stale: complete groups that were dropped since the last batch, because their oldest tokens were too old.
    """

    groups: list[PromptGroup]
    overtaken: set[int]
    waits: list[Waits]
    left_behind: int
    stale: int = 0


class Rollouts:
    """Runs the episodes of a run's prompts; every method is called on the event loop.

    Args:
        episodes: runs one.
        mixture: prompts.
        window: which of them.
        log: of complete groups.
        limit: returns how many episodes may run now.
        check_engine: raises what has ended the engine, if anything has.
        sampled_by: returns the least version of the weights by which a token is sampled that is asked for now; None are
            the trainer's.

    Attributes:
        begins: whether episodes begin; an evaluation sets it to False, or the window would run far ahead of training.
    """

    def __init__(
        self,
        episodes: WorkerEpisodes,
        mixture: TaskMixture,
        window: DrawWindow,
        log: GroupLog,
        limit: Callable[[], int],
        check_engine: Callable[[], None],
        *,
        sampled_by: Callable[[], int | None] = lambda: None,
    ):
        self._episodes, self._mixture, self._window, self._log = episodes, mixture, window, log
        self._limit, self._check_engine, self._sampled_by = limit, check_engine, sampled_by
        self._prompts, self._samples = episodes.config.rl.rollout.prompts, episodes.config.rl.rollout.samples
        self._groups: dict[int, PromptGroup] = {}
        self._waiting: deque[tuple[int, int]] = deque()  # (prompt, sample) that have not begun
        self._running: set[asyncio.Task[None]] = set()
        self._waits: dict[int, list[Waits]] = {}
        self._left: Counter[int] = Counter()
        self._most_stale, self._oldest, self._stale = episodes.config.rl.max_staleness, {}, 0
        self._logged: dict[Place, list[Trajectory]] = {}  # by earlier processes
        self._writer = ThreadPoolExecutor(1, "groups")  # of the log: one call at a time, in order
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._step, self._version = 0, 0  # the next update once one is waited for, and the version of its weights
        self.begins = True

    @property
    def running(self) -> int:
        """Episodes that have begun and not ended."""
        return len(self._running)

    def place(self, number: int) -> Place:
        """The key of a prompt: the iteration to which it belongs by its number, and its place there."""
        step, place = divmod(number, self._prompts)
        return 1 + step, place

    def restore(self, drawn: int, open_numbers: Iterable[int]) -> None:
        """Goes on from a checkpoint: open groups that are complete on disk are used, and the others begin anew."""
        self._window.restore(drawn, open_numbers)
        is_needed = lambda number: number in self._window.open or number >= drawn  # noqa: E731
        logged = self._log.read().items()
        self._logged = {place: group for place, group in logged if is_needed(self._number(place))}
        for number in sorted(self._window.open):
            self._begin(number)

    async def batch(self, step: int) -> Batch:
        """Waits for the groups of an iteration.

        Raises:
            UserError: a mistake in a task.
            RuntimeError: the engine has failed, or a worker has met a mistake of the program.
        """
        self._step, self._version = step, step - 1
        while True:
            self._check_engine()  # first: what has ended the engine says more than what it led to
            if self._error is not None:
                raise self._error
            self._renew(step - 1)
            self._fill()
            taken = self._window.take()
            if taken is not None:
                self._version = step
                asyncio.get_running_loop().call_soon(self.go_on)  # there is room for others now
                return self._handed_on(*taken)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _WATCH)

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error."""
        self._error = self._error or error
        self._changed.set()

    async def close(self) -> None:
        """Ends all episodes; their environments are closed."""
        self.begins = False
        await end_all(self._running)
        await self._on_writer(self._log.close)  # behind an append whose episode was cancelled: a thread goes on
        self._writer.shutdown()

    def _number(self, place: Place) -> int:
        return (place[0] - 1) * self._prompts + place[1]

    def _handed_on(self, batch: list[int], overtaken: list[int]) -> Batch:
        groups = [self._groups.pop(number) for number in batch]
        for number in batch:
            del self._oldest[number]
        waits = [each for number in batch for each in self._waits.pop(number, ())]
        late = {number for number in batch if self._left.pop(number, 0)}
        self._left.update(overtaken)
        stale, self._stale = self._stale, 0
        return Batch(groups, late, waits, len(overtaken), stale)

    def _renew(self, version: int) -> None:
        """Begins the groups anew whose oldest token is too old for an update of the weights of a version.

        Each of them ends in time at last: what it overtakes is bounded, and then the training waits for it.
        """
        if self._most_stale is None:
            return
        for number in sorted(self._window.complete, reverse=True):  # the oldest begins first
            if self._oldest[number] >= version - self._most_stale:
                continue
            self._window.again(number)
            self._stale += 1
            self._waits.pop(number, None)
            group = self._groups[number]
            self._groups[number] = PromptGroup(number, group.key, group.prompt, [None] * self._samples)
            self._waiting.extendleft((number, sample) for sample in reversed(range(self._samples)))

    def _finish(self, number: int) -> None:
        self._oldest[number] = oldest_version(self._groups[number].trajectories)
        self._window.finish(number)

    def _fill(self) -> None:
        """Begins episodes while there is room, some at a time: the event loop has others to serve."""
        for _ in range(_BEGUN):
            if not self.begins or len(self._running) >= self._limit():
                return
            if not self._waiting:
                number = self._window.draw(self._batches_in_time())
                if number is None:
                    return
                self._begin(number)
                continue
            episode = asyncio.ensure_future(self._run(*self._waiting.popleft()))
            self._running.add(episode)
            episode.add_done_callback(self._running.discard)
        asyncio.get_running_loop().call_soon(self.go_on)

    def _batches_in_time(self) -> int | None:
        """In how many of the next batches a prompt that begins now would not be too old; None are all of them.

        While the trainer updates, engines of their own are a version behind, or more where weights travel.
        """
        sampled_by = self._sampled_by()
        if self._most_stale is None or sampled_by is None:
            return None
        return max(0, self._most_stale + 1 - (self._version - sampled_by))

    def _begin(self, number: int) -> None:
        """Lets the episodes of a prompt wait for room; a group that an earlier process has completed is complete."""
        key = self.place(number)
        logged = self._logged.pop(key, None)
        trajectories = [None] * self._samples if logged is None else list(logged)
        self._groups[number] = PromptGroup(number, key, self._mixture.prompt(number), trajectories)
        if logged is None:
            self._waiting.extend((number, sample) for sample in range(self._samples))
        else:
            self._finish(number)

    async def _run(self, number: int, sample: int) -> None:
        try:
            group = self._groups[number]
            trajectory, waits = await self._episodes.episode(self._step, group, sample)
            group.trajectories[sample] = trajectory
            self._waits.setdefault(number, []).append(waits)
            if group.complete:
                await self._on_writer(self._log.append, group.trajectories)
                self._finish(number)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # nobody waits for this task
            self.fail(error)
        self._changed.set()
        asyncio.get_running_loop().call_soon(self.go_on)

    def _on_writer(self, function: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._writer, function, *arguments)

    def go_on(self) -> None:
        """Begins the next episodes also while nobody waits for a batch: their tools need no engine."""
        if self._error is None and self._step:
            self._fill()
