"""Every user of the append-only log, behind one interface: numbers are appended, and read back in order."""

from pathlib import Path

from k2jax.agents import Task
from k2jax.agents.collect.journal import Emission, Journal, read_journal
from k2jax.agents.collect.queue_file import WrittenTask, read_task
from k2jax.agents.collect.worker import SpawnedTasks
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.gateway.log import RolloutLogs
from k2jax.agents.verdicts import LoggedVerdict, VerdictLog
from k2jax.report.metrics import MetricsLog, read_metrics
from k2jax.trajectory import Reward, TrajectoryStore, read_trajectories
from tests.trajectory.trees import chat


class User:
    """A log that is written; ``file`` is its path in the folder."""

    def close(self) -> None:
        self._log.close()


class Rollouts(User):
    file = "a.jsonl"

    def __init__(self, folder: Path, saved: list[int]):
        self._log = RolloutLogs(folder)

    def append(self, number: int) -> None:
        self._log.append("a", {"number": number, "text": "ü\u2028\r\n"})

    @staticmethod
    def read(folder: Path, saved: list[int]) -> list[int]:
        logs = RolloutLogs.__new__(RolloutLogs)  # without the lock, which the writer holds
        logs.folder = folder
        return [record["number"] for record in logs.read("a")] if logs.rollouts() else []


class Emissions(User):
    file = "journal"

    def __init__(self, folder: Path, saved: list[int]):
        self._log = Journal(folder)
        assert [emission.tokens for emission in self._log.emissions] == saved

    def append(self, number: int) -> None:
        self._log.append(Emission((0, 0, number), "masked", tokens=number))

    @staticmethod
    def read(folder: Path, saved: list[int]) -> list[int]:
        return [emission.tokens for emission in read_journal(folder)]


class Trajectories(User):
    file = "5.k2t"

    def __init__(self, folder: Path, saved: list[int]):
        self._log = TrajectoryStore(folder)

    def append(self, number: int) -> None:
        self._log.append(5, chat(number))

    @staticmethod
    def read(folder: Path, saved: list[int]) -> list[int]:
        path = folder / "5.k2t"
        return [t.key[2] for t in read_trajectories(path)] if path.exists() else []


class Verdicts(User):
    file = "step-00000000.jsonl"

    def __init__(self, folder: Path, saved: list[int]):
        self._log = VerdictLog(folder)

    def append(self, number: int) -> None:
        self._log.append(
            EpisodeKey("train", 0, 0, number), LoggedVerdict("d", Reward(0.5, info={"text": "ü\u2028\r\n"}))
        )

    def close(self) -> None:
        """The log is open while it writes alone."""

    @staticmethod
    def read(folder: Path, saved: list[int]) -> list[int]:
        log = VerdictLog(folder)
        return [number for number in range(100) if log.get(EpisodeKey("train", 0, 0, number)) is not None]


class Metrics(User):
    file = "metrics.jsonl"

    def __init__(self, folder: Path, saved: list[int]):
        self._log = MetricsLog(folder, resume_step=saved[-1] if saved else 0, tensorboard=False)

    def append(self, number: int) -> None:
        self._log.write(number, {"loss": 0.5, "heads": [[1.0, 2.0]]})

    @staticmethod
    def read(folder: Path, saved: list[int]) -> list[int]:
        return [record["step"] for record in read_metrics(folder)]


class Started(User):
    file = "shards/3/tasks.jsonl"

    def __init__(self, folder: Path, saved: list[int]):
        self._folder, self._log = folder / "shards" / "3", SpawnedTasks(folder, 3, None)

    def append(self, number: int) -> None:
        written = WrittenTask("kind", Task(str(number), "d", (), "final_answer"))
        assert read_task(self._folder, self._log._written.append(written.line())) == written

    @staticmethod
    def read(folder: Path, saved: list[int]) -> list[int]:
        path, offset, numbers = folder / Started.file, 0, []
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            if line.endswith(b"\n"):
                numbers.append(int(read_task(path.parent, offset).task.id))
            offset += len(line)
        return numbers


USERS = (Rollouts, Emissions, Trajectories, Verdicts, Metrics, Started)
CHECKED = (Rollouts, Emissions, Trajectories, Verdicts)
"""Those that refuse a damaged record; a run sets damaged metrics aside, and started tasks have no checksums."""
