"""Engines of orchestrators and of sub-agents with other weights: a ratio that follows the load against fixed ones.

Swarms are played on a clock that only counts. An orchestrator answers, its sub-agents work at once, each for some
answers and calls of a tool, and when the last has ended it goes on. How many sub-agents it asks for grows over the run,
as it does when the orchestrator learns to delegate. An engine has slots, and decodes slower the more of them are used;
where no engine of the role has a free one, a request waits. To change its role an engine ends what it has and loads
other weights. The ratio is reviewed at intervals by ``k2jax.agents.collect.instances``, which is what a cluster would
call; what engines do is a model, whose constants are below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from k2jax.agents.collect.instances import InstanceRatio, RoleLoad
from k2jax.bench.event_clock import EventClock
from k2jax.bench.timing import Row, cost_row

ENGINES, SLOTS = 8, 16
STEP, STEP_OF_A_SEQUENCE = 0.010, 0.0004  # time of a decoding step, and what each sequence adds [s]
EPISODES, LIVE, STAGES = 1200, 96, 4  # swarms, those at a time, answers of an orchestrator
ANSWER, TURNS = 200.0, 3  # mean tokens of an answer, answers of a sub-agent
MOST_SUBAGENTS = 8.0  # of a stage, in the mean, at the end of the run; 0 at its beginning
TOOL = 0.5  # mean time of a call of a tool [s]
REVIEW, LOADING = 20.0, 10.0  # time between two reviews, time to load other weights [s]
ORCHESTRATOR, SUBAGENT = range(2)


class PlayedSwarms(NamedTuple):
    """What a way of dividing the engines comes to.

    Attributes:
        seconds: from the first request to the last answer [s].
        busy: share of the slots of each role's engines that had a request, over the run.
        ratios: engines of the orchestrators after each review, without repetitions.
    """

    seconds: float
    busy: tuple[float, float]
    ratios: list[int]


def measure(rounds: int = 1) -> list[Row]:
    """Rows against half of the engines for each role, and the best fixed ratio; ``rounds`` is not read."""
    ours = play(ENGINES // 2, follows=True)
    fixed = {count: play(count, follows=False) for count in range(1, ENGINES)}
    best = min(fixed, key=lambda count: fixed[count].seconds)
    label = f"a run of swarms, ratio by load ({_words(ours)}; engines of orchestrators {_path(ours)})"
    device, rows = f"{ENGINES} simulated engines", []
    for name, count in (("half each", ENGINES // 2), (f"always {best} of {ENGINES}, the best", best)):
        theirs = f"{name} ({_words(fixed[count])})"
        rows.append(cost_row(label, ours.seconds, fixed[count].seconds, "s", theirs, device=device))
    return rows


def play(orchestrators: int, *, follows: bool, episodes: int = EPISODES, seed: int = 0) -> PlayedSwarms:
    """Plays swarms with so many engines of orchestrators, which change where the ratio follows the load."""
    rng, clock = np.random.default_rng(seed), EventClock()
    fleet = _Fleet(clock, orchestrators)
    begun = ended = 0

    def begin() -> None:
        nonlocal begun
        if begun < episodes:
            begun += 1
            wide = MOST_SUBAGENTS * begun / episodes
            _Swarm(clock, fleet, [int(rng.poisson(wide)) for _ in range(STAGES - 1)], rng, end)

    def end() -> None:
        nonlocal ended
        ended += 1
        begin()

    def review() -> None:
        if ended < episodes:
            fleet.review()
            clock.after(REVIEW, review)

    for _ in range(min(LIVE, episodes)):
        begin()
    if follows:
        clock.after(REVIEW, review)
    while ended < episodes:
        clock.step()
    return PlayedSwarms(clock.now, fleet.busy(), fleet.ratios)


class _Fleet:
    """Engines, each with a role, and a queue of requests for each role."""

    def __init__(self, clock: EventClock, orchestrators: int):
        self._clock = clock
        self._role = [ORCHESTRATOR] * orchestrators + [SUBAGENT] * (ENGINES - orchestrators)
        self._next: list[int | None] = [None] * ENGINES  # the role that an engine is on its way to
        self._running = [0] * ENGINES
        self._queues: tuple[deque, deque] = deque(), deque()
        # Time of slots with a request, of all slots, and of requests in the queues [s].
        self._used, self._had, self._waited = np.zeros((3, 2))
        self._before, self._since, self._reviewed = np.zeros((3, 2)), 0.0, 0.0
        self._ratio = InstanceRatio([orchestrators, ENGINES - orchestrators], SLOTS)
        self.ratios = [orchestrators]

    def submit(self, role: int, tokens: int, done: Callable[[], None]) -> None:
        """Asks for an answer."""
        self._count()
        self._queues[role].append((tokens, done))
        self._fill(role)

    def busy(self) -> tuple[float, float]:
        """Shares of slots that had a request, by role."""
        self._count()
        return tuple(float(share) for share in self._used / np.maximum(self._had, 1e-9))

    def review(self) -> None:
        """Lets an engine change its role where the load asks for it."""
        self._count()
        counted = np.array([self._used, self._had, self._waited])
        used, had, waited = counted - self._before
        seconds, self._before, self._reviewed = self._clock.now - self._reviewed, counted, self._clock.now
        now = self._ratio.instances
        loads = [RoleLoad(now[role], used[role] / max(1e-9, had[role]), waited[role] / seconds) for role in range(2)]
        later = self._ratio.review(loads)
        for role in range(2):
            if later[role] < now[role]:
                engines = [engine for engine in range(ENGINES) if self._goal(engine) == role]
                self._leave(min(engines, key=lambda engine: self._running[engine]), 1 - role)
                self.ratios.append(later[ORCHESTRATOR])

    def _goal(self, engine: int) -> int:
        return self._role[engine] if self._next[engine] is None else self._next[engine]

    def _leave(self, engine: int, role: int) -> None:
        is_under_way, self._next[engine] = self._next[engine] is not None, role
        if not is_under_way and not self._running[engine]:
            self._clock.after(LOADING, lambda: self._arrive(engine))

    def _arrive(self, engine: int) -> None:
        self._count()
        self._role[engine], self._next[engine] = self._goal(engine), None
        self._fill(self._role[engine])

    def _fill(self, role: int) -> None:
        queue = self._queues[role]
        while queue:
            free = [each for each in range(ENGINES) if self._role[each] == role and self._next[each] is None]
            engine = min(free, key=lambda each: self._running[each], default=None)
            if engine is None or self._running[engine] == SLOTS:
                return
            self._count()
            self._running[engine] += 1
            tokens, done = queue.popleft()
            seconds = tokens * (STEP + STEP_OF_A_SEQUENCE * self._running[engine])
            self._clock.after(seconds, lambda engine=engine, done=done: self._end(engine, done))

    def _end(self, engine: int, done: Callable[[], None]) -> None:
        self._count()
        self._running[engine] -= 1
        if self._next[engine] is None:
            self._fill(self._role[engine])
        elif not self._running[engine]:
            self._clock.after(LOADING, lambda: self._arrive(engine))
        done()

    def _count(self) -> None:
        """Adds the time since the last change; an engine that is under way still counts to the role that it leaves."""
        seconds, self._since = self._clock.now - self._since, self._clock.now
        for engine, role in enumerate(self._role):
            self._used[role] += seconds * self._running[engine]
            self._had[role] += seconds * SLOTS
        self._waited += seconds * np.array([len(queue) for queue in self._queues])


class _Swarm:
    """An episode: the orchestrator's answers, and between them sub-agents that work at once."""

    def __init__(
        self,
        clock: EventClock,
        fleet: _Fleet,
        widths: Sequence[int],
        rng: np.random.Generator,
        ended: Callable[[], None],
    ):
        self._clock, self._fleet, self._rng, self._ended = clock, fleet, rng, ended
        self._widths = deque(widths)
        self._ask(ORCHESTRATOR, self._answered)

    def _ask(self, role: int, done: Callable[[], None]) -> None:
        self._fleet.submit(role, 1 + int(self._rng.exponential(ANSWER)), done)

    def _answered(self) -> None:
        if not self._widths:
            self._ended()
            return
        self._at_work = self._widths.popleft()
        for _ in range(self._at_work):
            self._sub_agent(TURNS)
        if not self._at_work:
            self._after_tool(lambda: self._ask(ORCHESTRATOR, self._answered))

    def _sub_agent(self, turns: int) -> None:
        if turns:
            self._ask(SUBAGENT, lambda: self._after_tool(lambda: self._sub_agent(turns - 1)))
            return
        self._at_work -= 1
        if not self._at_work:
            self._ask(ORCHESTRATOR, self._answered)

    def _after_tool(self, go_on: Callable[[], None]) -> None:
        self._clock.after(self._rng.exponential(TOOL), go_on)


def _words(played: PlayedSwarms) -> str:
    return f"busy: orchestrators {played.busy[0]:.0%}, sub-agents {played.busy[1]:.0%}"


def _path(played: PlayedSwarms) -> str:
    return " ".join(str(count) for count in played.ratios)
