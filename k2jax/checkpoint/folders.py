"""Where a workdir keeps its checkpoints. Without orbax, which takes half a second to import."""

from __future__ import annotations

from pathlib import Path
import re
import shutil
import time

FOLDER = "checkpoints"
_PATIENCE_SECONDS = 10.0
BEST = "best"
"""Name, in place of ``checkpoints/STEP``, of the step that a run marked as its best."""


def run_folder(checkpoint: str | Path) -> Path:
    """The workdir of a checkpoint argument: a workdir, ``WORKDIR/checkpoints/STEP`` or ``WORKDIR/best``."""
    path = Path(checkpoint).absolute()
    if path.name == BEST and not path.exists() and (path.parent / FOLDER).is_dir():
        return path.parent
    is_step = re.fullmatch(r"\d+", path.name) and path.parent.name == FOLDER
    return path.parent.parent if is_step else path


def committed_steps(workdir: str | Path) -> list[int]:
    """Steps of a workdir that are committed at this moment, ascending."""
    folder = Path(workdir) / FOLDER
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(entry.name) for entry in entries if entry.name.isdecimal())


def remove_unfinished(folder: Path) -> None:
    """Removes the saves in a folder of checkpoints, which need not exist, that were never committed.

    In a process that goes on after a save that failed, threads of that save may still make files, and a folder is not
    empty at the moment it is to go: it is tried again for 10 s.

    Raises:
        OSError: one could not be removed in that time.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    for unfinished in folder.glob("*.orbax-checkpoint-tmp*"):
        while unfinished.exists():
            try:
                shutil.rmtree(unfinished)
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
