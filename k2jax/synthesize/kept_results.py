"""What a stage has made, kept by content: a log with a record for each, from which a killed run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from k2jax.errors import UserError
from k2jax.files.append_log import AppendLog, ChecksummedLines, read_log
from k2jax.synthesize.asking import Call
from k2jax.synthesize.questions import Reply
from k2jax.synthesize.stages import Made

LOG = "results.log"
STAGES = "stages"


class StageResult(NamedTuple):
    """What a stage made of a record.

    Attributes:
        key: content of the record and the stage.
        made: records and what was dropped.
        calls: answers of models.
    """

    key: str
    made: Made
    calls: tuple[Call, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON value; ``from_json`` is the inverse."""
        calls = [[call.key, call.role, list(call.reply)] for call in self.calls]
        return {"key": self.key, "kept": self.made.kept, "dropped": self.made.dropped, "calls": calls}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StageResult:
        """Reads a result."""
        dropped = [(reason, record) for reason, record in values["dropped"]]
        calls = tuple(Call(key, role, Reply(*reply)) for key, role, reply in values["calls"])
        return cls(values["key"], Made(values["kept"], dropped), calls)


class KeptResults:
    """The results of a stage in its folder; the file is locked while it is open.

    Args:
        folder: of the stage.
        report: receives a line about an incomplete last record.

    Attributes:
        found: results by key.
    """

    def __init__(self, folder: Path, report: Any = print):
        self.found: dict[str, StageResult] = {}
        self._log = AppendLog(folder / LOG, ChecksummedLines(), report=report)
        self._log.open(self._take)

    def _take(self, values: Mapping[str, Any]) -> None:
        result = StageResult.from_json(values)
        self.found.setdefault(result.key, result)

    def keep(self, result: StageResult) -> None:
        """Keeps a result; once this returns, no death of the process loses it."""
        if result.key not in self.found:
            self._log.append(result.to_json())
            self.found[result.key] = result

    def close(self) -> None:
        """Waits for the disk."""
        self._log.close()


class KeptAnswers:
    """All answers of a run, by the content of their questions.

    Args:
        folder: of the run.

    Raises:
        UserError: no run is there, or one of its logs is damaged.
    """

    def __init__(self, folder: Path):
        self._replies: dict[str, Reply] = {}
        logs = sorted(folder.glob(f"{STAGES}/*/{LOG}"))
        if not logs:
            raise UserError(f"{folder} has no answers to replay; name the workdir of another run")
        for path in logs:
            for call in _calls(path):
                self._replies[call.key] = call.reply

    def get(self, key: str) -> Reply | None:
        """The answer to a question; None where there is none."""
        return self._replies.get(key)


def _calls(path: Path) -> Iterator[Call]:
    for values in read_log(path, ChecksummedLines()):
        yield from StageResult.from_json(values).calls
