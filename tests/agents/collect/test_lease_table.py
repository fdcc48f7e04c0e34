"""The lease table under every order of events, against a model that knows nothing of queues."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
import pytest

from k2jax.agents.collect.lease_table import LeaseTable

ATTEMPTS, LOSSES = 2, 3


class LeaseTableMachine(RuleBasedStateMachine):
    """Tasks are numbered in the order of their making; ``state`` is what an observer knows of each."""

    def __init__(self):
        super().__init__()
        self.table = LeaseTable(ATTEMPTS, LOSSES)
        self.orders, self.parents = {}, {}
        self.state, self.paused = {}, {}  # waiting, leased, paused or ended; places
        self.failures, self.losses = Counter(), Counter()
        self.ends = Counter()
        self.leases, self.capacity = {}, {}
        self.made = self.hired = 0
        self.every_lease = set()

    @initialize()
    def a_busy_beginning(self):
        self.hire(2)
        self.hire(1)
        for age in (1, 0, 2):
            self.add(age)
        for _ in range(2):
            self.grant()
        for lease in list(self.leases.values()):
            self.begin_child(lease.number)
        self.grant()

    def living(self, state):
        return [task for task, each in self.state.items() if each == state]

    def offspring(self, task):
        children = [child for child, parent in self.parents.items() if parent == task and self.state[child] != "ended"]
        return [each for child in children for each in [*self.offspring(child), child]]

    def note(self, ends, expected):
        """The ends are those expected, and every lease of an ended task is named."""
        assert {ended.task: ended.end for ended in ends} == expected
        assert len(ends) == len(expected)
        for ended in ends:
            self.ends[ended.task] += 1
            held = [lease for lease in self.leases.values() if lease.task == ended.task]
            current = [lease for lease in held if self.state[ended.task] == "leased" and lease.number not in self.stale]
            assert ([] if ended.lease is None else [ended.lease]) == current
            self.state[ended.task] = "ended"

    @property
    def stale(self):
        """Leases that are held, of tasks that have another one or have ended."""
        newest = {}
        for number, lease in self.leases.items():
            newest[lease.task] = max(number, newest.get(lease.task, -1))
        return {n for n, lease in self.leases.items() if n != newest[lease.task] or self.state[lease.task] != "leased"}

    @rule(capacity=st.integers(1, 3))
    @precondition(lambda self: len(self.capacity) < 4)
    def hire(self, capacity):
        self.capacity[self.hired] = capacity
        self.table.join(self.hired, capacity)
        self.hired += 1

    @rule(age=st.integers(0, 3))
    def add(self, age):
        self.orders[self.made], self.parents[self.made] = (age, self.made), None
        self.state[self.made] = "waiting"
        self.table.add(self.made, self.orders[self.made])
        self.made += 1

    @rule(data=st.data())
    @precondition(lambda self: self.leases)
    def start(self, data):
        self.begin_child(data.draw(st.sampled_from(sorted(self.leases))))

    def begin_child(self, number):
        parent, valid = self.leases[number].task, number not in self.stale
        assert self.table.start(number, self.made) == valid
        if valid:
            before = [self.orders[each] for each, owner in self.parents.items() if owner == parent]
            self.orders[self.made], self.parents[self.made] = (*self.orders[parent], len(before)), parent
            self.state[self.made] = "waiting"
        self.made += valid

    @rule()
    def grant(self):
        room = {w: c - sum(lease.worker == w for lease in self.leases.values()) for w, c in self.capacity.items()}
        waiting = self.living("waiting")
        started = [task for task in waiting if self.parents[task] is not None]
        may = waiting if any(free > 0 for free in room.values()) else started if room else []
        lease = self.table.grant()
        if not may:
            assert lease is None
            return
        assert lease.task == min(may, key=lambda task: self.orders[task])
        assert room[lease.worker] == max(room.values())
        assert lease.paused == self.paused.get(lease.task)
        assert lease.number not in self.every_lease
        self.every_lease.add(lease.number)
        self.leases[lease.number], self.state[lease.task] = lease, "leased"

    def give_back(self, data):
        """A lease that a worker names, and its task where it is still the task's."""
        number = data.draw(st.sampled_from(sorted(self.every_lease)))
        valid = number in self.leases and number not in self.stale
        lease = self.leases.pop(number, None)
        return number, lease.task if valid else None

    @rule(data=st.data())
    @precondition(lambda self: self.every_lease)
    def finish(self, data):
        number, task = self.give_back(data)
        ends = self.table.finish(number, "place")
        if task is not None:
            assert ends[-1].task == task and ends[-1].result == "place"
        self.note_given_back(ends, task, {} if task is None else {task: "done"})

    @rule(data=st.data())
    @precondition(lambda self: self.every_lease)
    def fail(self, data):
        number, task = self.give_back(data)
        self.failures[task] += 1
        masked = task is not None and self.failures[task] == ATTEMPTS
        self.note_given_back(self.table.fail(number, "broken"), task, {task: "masked"} if masked else {})
        if task is not None and not masked:
            self.state[task] = "waiting"

    @rule(data=st.data())
    @precondition(lambda self: self.every_lease)
    def pause(self, data):
        number, task = self.give_back(data)
        self.note_given_back(self.table.pause(number, f"at {number}"), task, {})
        if task is not None:
            self.state[task], self.paused[task] = "paused", f"at {number}"

    def note_given_back(self, ends, task, own):
        """A lease that was not valid changes nothing; with a valid one everything ends that its task had started."""
        if task is not None:
            self.state[task] = "given back"
            own = dict.fromkeys(self.offspring(task), "cancelled") | own
        self.note(ends, own)

    @rule(data=st.data())
    @precondition(lambda self: self.state)
    def wake(self, data):
        task = data.draw(st.sampled_from(sorted(self.state)))
        assert self.table.wake(task) == (self.state[task] == "paused")
        if self.state[task] == "paused":
            self.state[task] = "waiting"

    @rule(data=st.data())
    @precondition(lambda self: self.capacity)
    def lose(self, data):
        worker = data.draw(st.sampled_from(sorted(self.capacity)))
        stale = self.stale
        lost = [lease for lease in self.leases.values() if lease.worker == worker]
        tasks = sorted((lease.task for lease in lost if lease.number not in stale), key=lambda task: self.orders[task])
        expected = {}
        for lease in lost:
            del self.leases[lease.number]
        for task in tasks:
            self.losses[task] += 1
            self.state[task] = "given back"
        for task in tasks:
            expected |= dict.fromkeys(self.offspring(task), "cancelled")
        expected |= {task: "masked" for task in tasks if self.losses[task] == LOSSES and task not in expected}
        del self.capacity[worker]
        self.note(self.table.lose(worker), expected)
        for task in tasks:
            if task not in expected:
                self.state[task] = "waiting"

    @rule(data=st.data())
    @precondition(lambda self: self.state)
    def cancel(self, data):
        task = data.draw(st.sampled_from(sorted(self.state)))
        ended = self.state[task] == "ended"
        self.note(self.table.cancel(task), {} if ended else dict.fromkeys([*self.offspring(task), task], "cancelled"))

    @invariant()
    def every_task_ends_at_most_once_and_none_is_forgotten(self):
        assert not self.ends or max(self.ends.values()) == 1
        assert len(self.table) == len(self.state) - len(self.ends)

    @invariant()
    def leases_are_those_that_workers_hold(self):
        assert self.table.leases == self.leases
        assert self.table.running == len(self.living("leased"))
        assert {lease.worker for lease in self.table.leases.values()} <= self.capacity.keys()

    def teardown(self):
        """Workers that finish what they are given bring everything to its end."""
        self.hire(5)
        for task in self.living("paused"):
            self.table.wake(task)
        for number in list(self.leases):
            self.ends.update(ended.task for ended in self.table.finish(number))
        while (lease := self.table.grant()) is not None:
            self.ends.update(ended.task for ended in self.table.finish(lease.number))
        assert self.ends == Counter(self.state.keys())
        assert not self.table.leases


TestLeaseTable = LeaseTableMachine.TestCase
TestLeaseTable.settings = settings(max_examples=30, stateful_step_count=24)


def test_names_and_workers_are_not_taken_twice():
    table = LeaseTable()
    table.add("a", (0,))
    table.join("w", 1)
    with pytest.raises(ValueError, match="'a'"):
        table.add("a", (1,))
    with pytest.raises(ValueError, match="'w'"):
        table.join("w", 1)


def test_a_task_that_is_run_again_starts_the_same_tasks_again():
    """The child's first lease is still with its worker; what comes of it does not count for the second child."""
    table = LeaseTable()
    table.join("w", 2)
    table.add("parent", (0,))
    first = table.grant()
    assert table.start(first.number, "child")
    old = table.grant()
    (ended,) = table.fail(first.number)
    assert (ended.task, ended.end, ended.lease) == ("child", "cancelled", old)
    assert table.start(table.grant().number, "child")
    assert table.finish(old.number) == []
    child = table.grant()
    assert child.task == "child" and table.grant() is None
    assert table.finish(child.number)[0].end == "done"
