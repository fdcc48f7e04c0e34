"""Verdicts on disk: each is written before it is used, and a resumed run replays what it has written.

A file for every step of a purpose, of one JSON object a line behind its CRC-32 (see files/append_log.py).
"""

from __future__ import annotations

from collections.abc import Callable
import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple, get_args

from k2jax.agents.environment import OUTCOME
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.files.append_log import AppendLog, ChecksummedLines, read_log
from k2jax.trajectory import Reward, Trajectory
from k2jax.trajectory.types import NO_TURN, Purpose

COMPARED = -2
"""Turn of a verdict on a comparison of two samples of a prompt; its call is the number of the other sample."""
_NONE = -1  # turn and call of a verdict on a whole episode
_NAMES: dict[Purpose, str] = {"train": "step", "eval": "eval", "budget": "budget"}
"""Of the files of a purpose."""


class Verdict(NamedTuple):
    """What is known of an episode, or of a call within it.

    Attributes:
        digest: of what was judged, see ``digest_of``.
        reward: its reward, or None where there is none.
        error: why there is none; the sample is masked.
    """

    digest: str
    reward: Reward | None
    error: str = ""


class VerdictLog:
    """Append-only verdicts by the episode's key, turn and call.

    Example:
        >>> log = VerdictLog(workdir / "verdicts")
        >>> log.append(EpisodeKey("train", 12, 0, 3), Verdict(digest, Reward(1.0)))
        >>> log.get(EpisodeKey("train", 12, 0, 3)).reward.value
        1.0
    """

    def __init__(self, folder: str | os.PathLike):
        """Reads nothing yet; the folder is made with the first verdict."""
        self._folder = Path(folder)
        self._logs: dict[tuple[Purpose, int], AppendLog[dict[str, Any]]] = {}
        self._steps: dict[tuple[Purpose, int], dict[tuple[int, ...], Verdict]] = {}

    def get(self, key: EpisodeKey, turn: int = _NONE, call: int = _NONE) -> Verdict | None:
        """The last verdict under a key, or None.

        Raises:
            UserError: the step's file is damaged.
        """
        return self._verdicts(key.purpose, key.step).get((*key.place, turn, call))

    def append(self, key: EpisodeKey, verdict: Verdict, turn: int = _NONE, call: int = _NONE) -> None:
        """Writes a verdict; when this returns, the death of the process does not lose it.

        Raises:
            UserError: it cannot be written.
        """
        verdicts, place = self._verdicts(key.purpose, key.step), (*key.place, turn, call)
        record: dict[str, Any] = {"key": place, "digest": verdict.digest, "error": verdict.error}
        if verdict.reward is not None:
            record["reward"] = verdict.reward._asdict()
        path, file = self._path(key.purpose, key.step), (key.purpose, key.step)
        if file not in self._logs:
            self._logs[file] = AppendLog(path, _Lines(), held=False)
        try:
            self._logs[file].append(record)
        except OSError as error:
            raise UserError(f"cannot write the verdict log {path}: {error.strerror}; free some space") from None
        verdicts[place] = verdict

    def forget(self, unneeded: Callable[[Purpose, int], bool]) -> None:
        """Deletes the verdicts of the purposes and steps of which ``unneeded`` is true."""
        for purpose in get_args(Purpose):
            for path in self._folder.glob(f"{_NAMES[purpose]}-*.jsonl"):
                step = int(path.stem.removeprefix(f"{_NAMES[purpose]}-"))
                if unneeded(purpose, step):
                    path.unlink(missing_ok=True)
                    self._steps.pop((purpose, step), None)
                    self._logs.pop((purpose, step), None)

    def _path(self, purpose: Purpose, step: int) -> Path:
        return self._folder / f"{_NAMES[purpose]}-{step:08d}.jsonl"

    def _verdicts(self, purpose: Purpose, step: int) -> dict[tuple[int, ...], Verdict]:
        if (purpose, step) not in self._steps:
            path = self._path(purpose, step)
            self._steps[purpose, step] = dict(map(_verdict, read_log(path, _Lines()))) if path.exists() else {}
        return self._steps[purpose, step]


class _Lines(ChecksummedLines):
    remedy = "delete the file to judge again"


def _verdict(record: dict[str, Any]) -> tuple[tuple[int, ...], Verdict]:
    reward = Reward(**record["reward"]) if "reward" in record else None
    return tuple(record["key"]), Verdict(record["digest"], reward, record["error"])


def digest_of(task: Task, trajectory: Trajectory) -> str:
    """Checksum of a task, the messages that were sampled for it, whether the episode was cut, and its outcome."""
    messages = [node.message for node in trajectory.nodes if node.turn != NO_TURN]
    outcome = [trajectory.metadata[OUTCOME]] if OUTCOME in trajectory.metadata else []
    content = json.dumps([task.to_json(), trajectory.status, messages, *outcome], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
