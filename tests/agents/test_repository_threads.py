"""What takes a while before a task in a repository begins is done in threads, and once in a process."""

import asyncio
import threading
from types import SimpleNamespace

from k2jax.agents.environment import Services
from k2jax.agents.environments import repository
from k2jax.agents.sandbox.types import ExecResult
from k2jax.agents.task import Task

TASK = Task("t", "d", (), "", metadata={"repository": "/x", "base": "0" * 40})


class Idle:
    """A sandbox whose programs end at once."""

    capabilities = SimpleNamespace(file_system="private")

    async def exec(self, argv, **options):
        return ExecResult(0, b"", b"", 0.0)


def test_histories_and_packages_are_packed_in_threads_and_packages_once(monkeypatch):
    threads = {"after": [], "packages": []}

    class Pack:
        size, shallow = 1, ()

        def after(self, head):
            threads["after"].append(threading.current_thread() is threading.main_thread())
            return bytearray(head)

    async def packed_history(*arguments):
        return Pack()

    def metadata_files(name):
        threads["packages"].append(threading.current_thread() is threading.main_thread())
        return []

    monkeypatch.setattr(repository, "packed_history", packed_history)
    monkeypatch.setattr(repository.metadata, "files", metadata_files)
    repository._packed_pytest.cache_clear()
    environment = repository.RepositoryEnvironment(Services(repositories="/"))

    async def prepare():
        await asyncio.gather(*(environment.prepare(TASK, Idle()) for _ in range(8)))

    try:
        asyncio.run(prepare())
    finally:
        repository._packed_pytest.cache_clear()
    assert threads == {"after": [False] * 8, "packages": [False] * len(repository._PYTEST)}
