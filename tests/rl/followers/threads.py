"""Processes of a run as threads of one process, for tests of what they say to each other."""

from concurrent.futures import ThreadPoolExecutor
import threading

from k2jax.processes.command_tree import MessageTree
from k2jax.processes.rendezvous import ProcessLostError


class Meeting:
    """What threads have told each other."""

    def __init__(self, count):
        self.count, self.texts, self.changed, self.lost = count, {}, threading.Condition(), []

    def tell(self, name, text):
        with self.changed:
            self.texts[name] = text
            self.changed.notify_all()

    def read(self, name, seconds):
        with self.changed:
            if not self.changed.wait_for(lambda: name in self.texts, seconds):
                raise ProcessLostError(name)
            return self.texts[name]

    def miss(self, index):
        with self.changed:
            self.lost.append(index)
            self.changed.notify_all()


class Member:
    """One thread's ``Group``."""

    def __init__(self, index, meeting):
        self.index, self.count, self.news_seconds = index, meeting.count, None
        self.tell, self.read, self._meeting = meeting.tell, meeting.read, meeting

    def broadcast_from_first(self, name, text):
        if self.index == 0:
            self.tell(name, text)
        return self.read(name, 20)

    def own_host(self):
        return "127.0.0.1"


def trees(count):
    """The trees of so many processes, and what they have missed of each other."""
    meeting = Meeting(count)
    make = lambda index: MessageTree(Member(index, meeting), "test", meeting.miss)  # noqa: E731
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(make, range(count))), meeting


def end(trees):
    """Ends trees as processes do: the first one, and meanwhile the others."""
    with ThreadPoolExecutor(len(trees)) as pool:
        list(pool.map(lambda tree: tree.__exit__(None, None, None), trees))


def drop(trees):
    """Ends trees of which a process is gone."""
    for tree in trees:
        tree._ended.set()
    for tree in trees:
        for link in (tree._parent, *tree._children):
            if link is not None:
                link.finish()
