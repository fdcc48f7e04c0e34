"""Tasks on the machines of a Ray cluster (extra ``ray``), which see the cache and the sources under the same paths.

Tasks are written to the cache by whoever does them, so Ray carries their descriptions alone: a lost machine loses what
it was doing, and Ray gives that to another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
import itertools
import os
import pickle
import sys
from typing import Any, TypeVar

from k2jax.agents.collect.launchers import connect_to_ray
from k2jax.data.preparation.task_process import AHEAD, MOST_TRIES, THREADS, outcome, result
from k2jax.errors import UserError

Item, Result = TypeVar("Item"), TypeVar("Result")
_LOCAL = "local:"


class RayPool:
    """A ``TaskPool`` of one process for every processor of a cluster.

    Args:
        address: ``ray://HOST:PORT``, ``HOST:PORT``, ``auto`` for the cluster that this machine belongs to, or
            ``local:N`` for a new one of N nodes on this machine, of one processor each, which ends with the pool.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str):
        self._cluster = _local_cluster(address) if address.startswith(_LOCAL) else None
        self._ray = connect_to_ray(self._cluster.address if self._cluster else address)
        options = {"num_cpus": 1, "max_retries": MOST_TRIES, "scheduling_strategy": "SPREAD"}
        self._task = self._ray.remote(_outcome).options(**options)

    def run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """See ``TaskPool``."""
        ray, items = self._ray, iter(items)
        sent, here = ray.put(pickle.dumps(function)), (os.getcwd(), list(sys.path))
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting = deque(self._task.remote(sent, item, here) for item in itertools.islice(items, most))
        try:
            while waiting:
                try:
                    made = ray.get(waiting[0])
                except ray.exceptions.RayError as error:
                    line = " ".join(str(error).split())[:200]
                    raise UserError(f"machines of the Ray cluster were lost again and again: {line}") from None
                waiting.popleft()
                yield result(made)
                waiting.extend(self._task.remote(sent, item, here) for item in itertools.islice(items, 1))
        finally:
            for task in waiting:
                ray.cancel(task, force=True)

    def close(self) -> None:
        """See ``TaskPool``."""
        self._ray.shutdown()
        if self._cluster:
            self._cluster.shutdown()


def _local_cluster(address: str) -> Any:
    """Nodes of one processor on this machine."""
    try:
        from ray.cluster_utils import Cluster
    except ModuleNotFoundError:
        raise UserError('Ray is not installed: pip install -e ".[ray]"') from None
    count = address.removeprefix(_LOCAL)
    if not count.isdecimal() or not int(count):
        raise UserError(f"--cluster={address}: write local:3 for a cluster of three nodes on this machine")
    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    for _ in range(int(count) - 1):
        cluster.add_node(**node)
    return cluster


def _outcome(function: bytes, item: Any, here: tuple[str, list[str]]) -> bytes:
    """What a machine of the cluster does; relative paths of a configuration mean the same there where they exist."""
    folder, paths = here
    os.environ.update(THREADS)
    sys.path += [path for path in paths if path not in sys.path]
    if os.path.isdir(folder):
        os.chdir(folder)
    return outcome(pickle.loads(function), item)
