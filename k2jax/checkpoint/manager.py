"""Checkpoints of a workdir: ``checkpoints/STEP/{params,optimizer,meta,extra}``, written in the background.

A step folder appears, by a rename, only when everything in it is written, so a run killed mid-save leaves nothing that
could be picked up. Parameters and optimizer state are separate items: other commands read the parameters alone, through
``streaming``. ``extra`` is there where a training loop keeps more than the optimizer does.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
from pathlib import Path
import re
from typing import Any

import jax
import orbax.checkpoint as ocp

from k2jax.checkpoint.extra import decode, encode
from k2jax.checkpoint.reading import chunk_bytes, lay_out, reading_layout
from k2jax.config.build import from_json
from k2jax.config.schema import Config
from k2jax.errors import UserError

FORMAT = 2
"""Number of the on-disk format; a checkpoint with another one is refused by name."""

FOLDER = "checkpoints"


class Checkpoints:
    """The checkpoints of one workdir.

    Args:
        workdir: the run's folder.
        keep: how many of the newest to keep; None keeps all.
        read_only: for readers, who must not tidy up what a running owner is writing.
    """

    def __init__(self, workdir: str | Path, keep: int | None = None, read_only: bool = False):
        self.folder = Path(workdir).absolute() / FOLDER
        options = {"read_only": True} if read_only else {"max_to_keep": keep, "cleanup_tmp_directories": True}
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(**options),
            item_names=("params", "optimizer", "meta", "extra"),
        )

    def steps(self) -> list[int]:
        """Committed steps, ascending."""
        return sorted(self._manager.all_steps())

    def newest(self) -> int | None:
        """The newest step that is committed at this moment; a save that is under way does not count."""
        return self.newest_of(self.folder.parent)

    @staticmethod
    def newest_of(workdir: Path) -> int | None:
        """The newest committed step of a workdir; None where there is no checkpoint."""
        folder = Path(workdir) / FOLDER
        entries = folder.iterdir() if folder.is_dir() else ()
        return max((int(entry.name) for entry in entries if entry.name.isdecimal()), default=None)

    def save(self, step: int, params: Any, optimizer: Any, meta: dict, extra: Any = None) -> None:
        """Starts a save; ``wait`` or ``close`` returns when it is committed.

        Args:
            step: optimizer steps done.
            params: parameter tree.
            optimizer: optimizer state.
            meta: JSON values that belong to the state: counters, fingerprints.
            extra: a tree of JSON values and NumPy arrays that the training loop keeps; None keeps nothing.
        """
        items: dict[str, Any] = {
            "params": ocp.args.StandardSave(params, save_args=_chunks(params)),
            "optimizer": ocp.args.StandardSave(optimizer, save_args=_chunks(optimizer)),
            "meta": ocp.args.JsonSave({**meta, "format": FORMAT, "step": step}),
        }
        if extra is not None:
            items["extra"] = ocp.args.JsonSave(encode(extra))
        self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def extra(self, step: int) -> Any:
        """The extra item saved with ``step``; None where there is none.

        Raises:
            UserError: the checkpoint is damaged.
        """
        if not (self.folder / str(step) / "extra").exists():
            return None
        with self._one_line(step):
            return decode(self._manager.restore(step, args=ocp.args.Composite(extra=ocp.args.JsonRestore()))["extra"])

    def meta(self, step: int) -> dict:
        """The JSON values saved with ``step``.

        Raises:
            UserError: the checkpoint is damaged or of another format.
        """
        restored = self._restore(step, meta=ocp.args.JsonRestore())["meta"]
        if not isinstance(restored, dict) or restored.get("format") != FORMAT:
            raise UserError(
                f"{self.folder / str(step)} has checkpoint format {(restored or {}).get('format')}, this version reads "
                f"{FORMAT}; use the version of k2jax that wrote it"
            )
        return restored

    def restore(self, step: int, params: Any, optimizer: Any) -> tuple[Any, Any]:
        """Parameters and optimizer state of ``step``.

        Args:
            step: a committed step.
            params: ShapeDtypeStructs (with shardings) of the parameters.
            optimizer: the same of the optimizer state.

        Raises:
            UserError: the checkpoint is damaged, or belongs to another model or optimizer.
        """
        wanted, folder = {"params": params, "optimizer": optimizer}, self.folder / str(step)
        with self._one_line(step):
            layouts = {item: reading_layout(folder / item, tree) for item, tree in wanted.items()}
        restored = self._restore(step, **{item: ocp.args.StandardRestore(tree) for item, tree in layouts.items()})
        return tuple(lay_out(restored[item], tree) for item, tree in wanted.items())

    def _restore(self, step: int, **items: Any) -> Any:
        with self._one_line(step):
            return self._manager.restore(step, args=ocp.args.Composite(**items))

    @contextlib.contextmanager
    def _one_line(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # orbax and tensorstore raise many kinds; each means this step cannot be read
            reason = " ".join(str(error).split())[:200]
            others = [other for other in self.steps() if other != step]
            mend = f"move it away to go on from step {others[-1]}" if others else "no other step is left"
            raise UserError(
                f"checkpoint {self.folder / str(step)} cannot be read ({reason}); if it is damaged, {mend}"
            ) from error

    def wait(self) -> None:
        """Returns when every save that was started is committed."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, then releases the background threads."""
        self.wait()
        self._manager.close()


def _chunks(tree: Any) -> Any:
    return jax.tree.map(lambda x: ocp.SaveArgs(chunk_byte_size=chunk_bytes(x.nbytes)), tree)


def run_config(workdir: str | Path) -> Config:
    """The configuration a workdir was made with.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    path = Path(workdir) / "config.json"
    if not path.is_file():
        raise UserError(f"{workdir} is not the workdir of a run: it has no config.json")
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def run_folder(checkpoint: str | Path) -> Path:
    """The workdir of a checkpoint argument: a workdir, or ``WORKDIR/checkpoints/STEP``."""
    path = Path(checkpoint).absolute()
    is_step = re.fullmatch(r"\d+", path.name) and path.parent.name == FOLDER
    return path.parent.parent if is_step else path


def checkpoint_step(checkpoint: str | Path) -> Path:
    """The folder of one step, of this version's format: the one that is named, or the newest of a workdir.

    Raises:
        UserError: there is none, or it is damaged or of another format.
    """
    path, workdir = Path(checkpoint).absolute(), run_folder(checkpoint)
    run_config(workdir)
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        steps = checkpoints.steps()
        step = int(path.name) if workdir != path else (steps[-1] if steps else None)
        if step not in steps:
            raise UserError(f"no checkpoint {path}; there are steps {steps}")
        checkpoints.meta(step)
        return checkpoints.folder / str(step)
