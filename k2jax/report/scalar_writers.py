"""Where a run's scalars go beside ``metrics.jsonl``: TensorBoard events in the workdir, a run of Weights & Biases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
from pathlib import Path
import secrets
import sys
import time
from typing import Any, NamedTuple, Protocol

from k2jax.errors import UserError, abbreviate
from k2jax.files.atomic import write_atomic

Scalars = Mapping[str, int | float]
_RUN_ID = "run_id"


class ScalarWriter(Protocol):
    """A place for numbers by step."""

    def add(self, step: int, scalars: Scalars) -> None:
        """Takes the finite numbers of a step, by their names."""

    def close(self) -> None:
        """Hands over what is buffered."""


class WandbProject(NamedTuple):
    """What a run of Weights & Biases is called, and what it says of itself.

    Attributes:
        project: ``PROJECT`` or ``ENTITY/PROJECT``.
        config: the run's configuration, JSON values by key.
    """

    project: str
    config: Mapping[str, Any]


class TensorBoard:
    """Event files.

    Args:
        folder: where they lie; events of steps after ``resume_step`` are purged.
        resume_step: the restored step, 0 for a new run.
    """

    def __init__(self, folder: Path, resume_step: int):
        with _without_torch():
            from tensorboardX import SummaryWriter

        purged = resume_step + 1 if folder.exists() else None
        # Event files are named by the second, so two runs within a second would overwrite each other's file.
        self._events = SummaryWriter(str(folder), purge_step=purged, filename_suffix=f".{time.time_ns()}")

    def add(self, step: int, scalars: Scalars) -> None:
        """See ``ScalarWriter``."""
        for key, value in scalars.items():
            self._events.add_scalar(key, value, step)

    def close(self) -> None:
        """See ``ScalarWriter``."""
        self._events.close()


class Wandb:
    """A run of Weights & Biases, the same one whenever a workdir is resumed.

    Only scalars and the configuration leave the machine: no code, output, packages or measurements of the system.
    ``WANDB_MODE=offline`` and the other variables of ``wandb`` hold.

    Args:
        workdir: of the run; ``wandb/`` in it holds the id, and what is not sent yet.
        project: where the run belongs.

    Attributes:
        place: the run's address, or the folder of one that is offline.

    Raises:
        UserError: the package is not installed, nobody is logged in, or the server refuses the run.
    """

    def __init__(self, workdir: Path, project: WandbProject):
        with _without_torch():
            try:
                import wandb
            except ModuleNotFoundError as error:
                raise UserError(f'config.log.wandb: {error.name} is not installed: pip install -e ".[wandb]"') from None
        entity, _, name = project.project.rpartition("/")
        private = {"disable_git": True, "save_code": False, "x_disable_meta": True, "x_disable_stats": True}
        settings = wandb.Settings(console="off", silent=True, x_save_requirements=False, **private)
        try:
            self._run = wandb.init(
                entity=entity or None,
                project=name,
                name=workdir.name,
                id=_run_id(workdir / "wandb"),
                resume="allow",
                dir=str(workdir),
                config=dict(project.config),
                allow_val_change=True,  # keys may change when a run is resumed
                settings=settings,
            )
        except wandb.Error as error:
            reason = abbreviate(" ".join(str(error).split()), 200)
            raise UserError(
                f"config.log.wandb: {reason}; run `wandb login`, or set WANDB_MODE=offline and send the run later"
            ) from None
        self.place = str(Path(self._run.dir).parent) if self._run.offline else self._run.url

    def add(self, step: int, scalars: Scalars) -> None:
        """See ``ScalarWriter``; a step that the server has already is not taken again."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """See ``ScalarWriter``."""
        self._run.finish()


def _run_id(folder: Path) -> str:
    """The id in a folder, which is made where there is none."""
    file = folder / _RUN_ID
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(file, secrets.token_hex(8))
    return file.read_text().strip()


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Nothing that is imported imports torch where it is installed: that takes seconds, and numbers do not need it."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
