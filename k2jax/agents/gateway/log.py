"""The gateway's logs (see files/append_log.py): one file per rollout, one record per line, each with a checksum.

A record is appended before the client receives the end of its answer: what a client has seen to the end survives the
death of the process.

The log of a rollout that has ended, and whose trajectories are stored, moves to a folder of its own, which no later
process reads at its start.
"""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import os
from pathlib import Path
from typing import Any

from k2jax.errors import UserError
from k2jax.files.append_log import AppendLog, ChecksummedLines, read_log
from k2jax.files.folder_lock import locked_folder

_SUFFIX = ".jsonl"
_CODEC = ChecksummedLines()
_ENDED = "ended"
"""Folder of the logs of rollouts that have ended, within that of the others."""


class _EncodedLines(ChecksummedLines):
    """Lines that ``encoded`` has made."""

    def encode(self, record: Any, index: int) -> bytes:
        return record


def encoded(record: Mapping[str, Any]) -> bytes:
    """The line of a record; one with a long prompt takes a while, which a thread may spend.

    Raises:
        ValueError: it is not JSON.
    """
    return _CODEC.encode(record, 0)


class RolloutLogs:
    """The logs of a folder, which one process at a time may write.

    Args:
        folder: of the logs; it is created.

    Raises:
        UserError: another process writes there.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._logs: dict[str, AppendLog[bytes]] = {}
        self._lock = contextlib.ExitStack()
        try:
            self._lock.enter_context(locked_folder(self.folder))
        except BlockingIOError:
            raise UserError(f"another gateway writes to {self.folder}; stop it first") from None

    def rollouts(self) -> list[str]:
        """Names of the rollouts that have a log and have not been put away."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}"))

    def append(self, rollout: str, record: Mapping[str, Any]) -> None:
        """Adds a record; once this returns, no death of the process loses it.

        Raises:
            OSError: it could not be written; the log is as before.
            UserError: the log is damaged.
        """
        self.append_line(rollout, encoded(record))

    def append_line(self, rollout: str, line: bytes) -> None:
        """Adds a record that ``encoded`` has made a line of; see ``append``."""
        if rollout not in self._logs:
            self._logs[rollout] = AppendLog(self._path(rollout), _EncodedLines(), held=False, mode=0o600)
        self._logs[rollout].append(line)

    def read(self, rollout: str) -> list[dict[str, Any]]:
        """The records of a rollout in the order of writing, without an incomplete last one.

        Raises:
            UserError: a record is damaged.
        """
        path = self._ended(rollout) if self.has_ended(rollout) else self._path(rollout)
        return list(read_log(path, _CODEC))

    def put_away(self, rollout: str) -> None:
        """Moves the log of a rollout in which nothing more happens.

        Raises:
            OSError: it could not be moved; the log is as before.
        """
        self._ended(rollout).parent.mkdir(exist_ok=True)
        os.replace(self._path(rollout), self._ended(rollout))
        self._logs.pop(rollout, None)

    def has_ended(self, rollout: str) -> bool:
        """Whether the log of a rollout has been put away."""
        return self._ended(rollout).exists()

    def close(self) -> None:
        """Lets another process write."""
        self._lock.close()

    def _path(self, rollout: str) -> Path:
        return self.folder / f"{rollout}{_SUFFIX}"

    def _ended(self, rollout: str) -> Path:
        return self.folder / _ENDED / f"{rollout}{_SUFFIX}"
