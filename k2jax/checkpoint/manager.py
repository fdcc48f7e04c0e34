"""Checkpoints of a workdir: ``checkpoints/STEP/{params,optimizer,meta,extra}``, written in the background.

A step folder appears, by a rename, only when everything in it is written, so a run killed mid-save leaves nothing that
could be picked up. Parameters and optimizer state are separate items: other commands read the parameters alone, through
``streaming``. ``extra`` is there where a training loop keeps more than the optimizer does.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from k2jax import processes
from k2jax.checkpoint.extra import decode, encode
from k2jax.checkpoint.folders import BEST, FOLDER, committed_steps, remove_unfinished, run_folder
from k2jax.checkpoint.meta import WrongFormatError, check, digest, has_checksums, sealed
from k2jax.checkpoint.reading import chunk_bytes, lay_out, reading_layout
from k2jax.checkpoint.storage import read_all, tree_handler
from k2jax.config.build import from_json
from k2jax.config.identity import changed_fixed_key
from k2jax.config.phases import phase_at
from k2jax.config.schema import Config
from k2jax.errors import UserError


@dataclasses.dataclass
class _Retention:
    """Which checkpoints stay: the newest ``keep`` (None: all) and the step ``kept``; a policy of orbax."""

    keep: int | None
    kept: int | None = None

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        oldest = 0 if self.keep is None else len(checkpoints) - self.keep
        return [index >= oldest or info.step == self.kept for index, info in enumerate(checkpoints)]


class Checkpoints:
    """The checkpoints of one workdir.

    Args:
        workdir: the run's folder.
        keep: how many of the newest to keep; None keeps all.
        read_only: for readers, who must not tidy up what a running owner is writing.
    """

    def __init__(self, workdir: str | Path, keep: int | None = None, read_only: bool = False):
        self.folder = Path(workdir).absolute() / FOLDER
        self._retention = _Retention(keep)
        if not read_only and processes.is_first():
            remove_unfinished(self.folder)
        options = {"read_only": True} if read_only else {"preservation_policy": self._retention}
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(**options),
            item_handlers={
                "params": tree_handler(),
                "optimizer": tree_handler(),
                "meta": ocp.JsonCheckpointHandler(),
                "extra": ocp.JsonCheckpointHandler(),
            },
        )

    def steps(self) -> list[int]:
        """Committed steps, ascending; a save that is under way does not count."""
        return committed_steps(self.folder.parent)

    def keep_step(self, step: int | None) -> None:
        """Lets a step stay beside the newest ones, from the next save on and instead of the one kept so far."""
        self._retention.kept = step

    def save(self, step: int, params: Any, optimizer: Any, meta: dict, extra: Any = None) -> None:
        """Starts a save; ``wait`` or ``close`` returns when it is committed.

        Args:
            step: optimizer steps done.
            params: parameter tree.
            optimizer: optimizer state.
            meta: JSON values that belong to the state: counters, fingerprints.
            extra: a tree of JSON values and NumPy arrays that the training loop keeps; None keeps nothing.

        Raises:
            UserError: this save, or the one before it, could not be written.
        """
        encoded = None if extra is None else encode(extra)
        meta = sealed(meta, step, encoded)
        items = {
            name: ocp.args.PyTreeSave(tree, _chunks(tree), custom_metadata={"save": meta["save"]})
            for name, tree in (("params", params), ("optimizer", optimizer))
        }
        items["meta"] = ocp.args.JsonSave(meta)
        if encoded is not None:
            items["extra"] = ocp.args.JsonSave(encoded)
        with self._writing():
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def extra(self, step: int) -> Any:
        """The extra item saved with ``step``; None where there is none.

        Raises:
            UserError: the checkpoint is damaged.
        """
        meta, folder = self.meta(step), self.folder / str(step)
        with _one_line(folder):
            return _extra(meta, folder)

    def meta(self, step: int) -> dict:
        """The JSON values saved with ``step``.

        Raises:
            UserError: the checkpoint is damaged or of another format.
        """
        return read_meta(self.folder / str(step))

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
        note_unchecked(self.meta(step), folder)
        with _one_line(folder):
            layouts = {item: reading_layout(folder / item, tree) for item, tree in wanted.items()}
            arguments = {
                item: ocp.args.PyTreeRestore(
                    tree, restore_args=ocp.checkpoint_utils.construct_restore_args(tree), partial_restore=False
                )
                for item, tree in layouts.items()
            }
            restored = self._manager.restore(step, args=ocp.args.Composite(**arguments))
        return tuple(lay_out(restored[item], tree) for item, tree in wanted.items())

    def wait(self) -> None:
        """Returns when every save that was started is committed.

        Raises:
            UserError: one could not be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, then releases the background threads; raises what ``wait`` raises."""
        try:
            self.wait()
        finally:
            with self._writing():
                self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of tensorstore and orbax, many kinds, also from the threads of an earlier save
            steps = self.steps()
            kept = f"step {steps[-1]} is whole" if steps else "no step was saved before"
            raise not_written(self.folder, error, f"{kept}: ") from error


def _chunks(tree: Any) -> Any:
    return jax.tree.map(lambda x: ocp.SaveArgs(chunk_byte_size=chunk_bytes(x.nbytes)), tree)


def read_meta(step_folder: Path) -> dict:
    """The JSON values of a step, checked.

    Raises:
        UserError: the checkpoint is damaged or of another format.
    """
    with _one_line(step_folder):
        return _meta(step_folder)


def note_unchecked(meta: dict, step_folder: Path) -> None:
    """Says in a line that a checkpoint of an older format carries no checksums, on the first process."""
    if not has_checksums(meta) and processes.is_first():
        print(f"checkpoint {step_folder} carries no checksums (an older version wrote it): damage would go unnoticed")


def not_written(folder: Path, error: Exception, kept: str = "") -> UserError:
    """The message for a checkpoint that could not be written; ``kept`` says what there is instead."""
    reason = _line(_root(error))
    return UserError(
        f"a checkpoint could not be written to {folder} ({reason}); {kept}make room, or mend what is wrong, and start "
        "again"
    )


def damaged(step_folder: Path, error: Exception) -> UserError:
    """The message for a step that cannot be read: why, and from which other step the run can go on.

    In a run of one process, what is said to be whole has been read.
    """
    if isinstance(error, WrongFormatError):
        return UserError(f"checkpoint {step_folder} cannot be read: {_line(error)}")
    others = [step for step in committed_steps(step_folder.parent.parent)[::-1] if str(step) != step_folder.name]
    if processes.count() > 1:  # a file that one process cannot read may be whole for another
        mend = f"move it away to go on from step {others[0]}" if others else "no other step is left"
        return UserError(f"checkpoint {step_folder} cannot be read ({_line(error)}); if it is damaged, {mend}")
    found = _damage(step_folder)
    if found is None:
        whole, reason = "can be read and is whole, but does not serve here", _line(error)
    else:
        whole, reason = "is damaged", _line(found)
    sound = next((step for step in others if _damage(step_folder.parent / str(step)) is None), None)
    mend = "no other step is whole" if sound is None else f"move it away to go on from step {sound}, which is whole"
    return UserError(f"checkpoint {step_folder} {whole} ({reason}); {mend}")


def _root(error: BaseException) -> BaseException:
    """The first cause of an error: what the system said, below what libraries made of it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@contextlib.contextmanager
def _one_line(step_folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # orbax and tensorstore raise many kinds; each means this step cannot be read
        raise damaged(step_folder, error) from error


def _damage(step_folder: Path) -> Exception | None:
    """What keeps a step from being read; None if all of it can be read and is what was written."""
    try:
        meta = _meta(step_folder)
        _extra(meta, step_folder)
        for item in ("params", "optimizer"):
            if (step_folder / item).is_dir():
                read_all(step_folder / item)
    except Exception as error:  # as above
        return error
    return None


def _meta(step_folder: Path) -> dict:
    return check(_json(step_folder / "meta"), step_folder)


def _extra(meta: dict, step_folder: Path) -> Any:
    item = step_folder / "extra"
    if not item.exists() and "extra" not in meta:
        return None
    encoded = _json(item)
    if has_checksums(meta) and digest(encoded) != meta.get("extra"):
        raise ValueError("extra is not what was saved: its sha256 differs")
    return decode(encoded)


def _json(item: Path) -> Any:
    return json.loads((item / "metadata").read_text(encoding="utf-8"))


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
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise UserError(
            f"{path} is damaged ({error}); put a copy back, or delete it and start the same experiment again"
        ) from error


def checkpoint_config(checkpoint: str | Path) -> Config:
    """The configuration in which a checkpoint was saved: of a run with phases, that of the phase in which it lies.

    Args:
        checkpoint: as of ``checkpoint_step``, which is looked for only where the run has phases.

    Raises:
        UserError: as of ``run_config``, and where there are phases of ``checkpoint_step``.
    """
    config = run_config(run_folder(checkpoint))
    return phase_at(config, int(checkpoint_step(checkpoint).name)).config if config.phases else config


def checkpoint_step(checkpoint: str | Path) -> Path:
    """The folder of one step, of this version's format: the one that is named, the best or the newest of a workdir.

    Raises:
        UserError: there is none, or it is damaged or of another format.
    """
    path, workdir = Path(checkpoint).absolute(), run_folder(checkpoint)
    config, steps = run_config(workdir), committed_steps(workdir)
    step = steps[-1] if steps else None
    if workdir != path:
        step = _best_step(workdir, step) if path.name == BEST else int(path.name)
    if step not in steps:
        raise UserError(f"no checkpoint {path}; there are steps {steps}")
    folder = workdir / FOLDER / str(step)
    meta = read_meta(folder)
    note_unchecked(meta, folder)
    check_config(meta, config, f"{folder} does not belong to {workdir / 'config.json'}")
    return folder


def _best_step(workdir: Path, newest: int | None) -> int | None:
    """The step that the newest checkpoint names as the best so far; it is committed, since saves are in order."""
    best = None if newest is None else read_meta(workdir / FOLDER / str(newest)).get("best")
    if best is None:
        raise UserError(f"{workdir} marks no step as its best; that takes config.train.patience and a validation")
    return best


def check_config(meta: dict, config: Config, what: str) -> None:
    """Checks that a checkpoint was saved by a run of the same model, data and seed.

    Raises:
        UserError: it was not; the line begins with ``what`` and names a key.
    """
    if changed := changed_fixed_key(meta.get("config", {}), config, meta["step"]):
        key, saved, now = changed
        raise UserError(
            f"{what}: config.{key} is {saved!r} in the checkpoint and {now!r} here; put the file back, or use a new "
            "--workdir"
        )
