"""A run's folder: who may continue in it, and what it records about itself."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from pathlib import Path

from k2jax import processes, runtime
from k2jax.checkpoint import committed_steps, run_config
from k2jax.config.build import from_json, to_json
from k2jax.config.identity import changed_key, fixed_keys, flat_keys
from k2jax.config.paths import check_paths
from k2jax.config.phases import run_phases
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.files.folder_lock import locked_folder
from k2jax.files.folder_probe import check_folder
from k2jax.files.local import check_local
from k2jax.train.failed_start import is_bound, set_aside
from k2jax.train.init_from import check_checkpoints


def open_workdir(workdir: str | Path, config: Config) -> Path:
    """Makes the workdir, or checks that it belongs to the same run.

    Raises:
        UserError: it holds a step of a run of another model, corpus, seed or batch size.
    """
    check_local(str(workdir), "--workdir")
    path = Path(workdir)
    if path.exists() and not path.is_dir():
        raise UserError(f"--workdir {path} is a file; name a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--workdir {path} cannot be made: {error.strerror}") from error
    if (path / "config.json").exists() and is_bound(path):
        _check_same(path, run_config(path), config)
    return path


def write_config(workdir: Path, config: Config) -> None:
    """Writes ``config.json``, which makes the folder a run's: only when nothing of the config was refused."""
    write_atomic(workdir / "config.json", to_json(config))


def check_shared(workdir: Path) -> None:
    """Checks, after ``write_config`` in one process of a run, that another one sees its file.

    Raises:
        UserError: this process sees another folder under that path.
    """
    if not (workdir / "config.json").is_file():
        raise UserError(f"--workdir {workdir} is not the folder that process 0 sees; all processes must share it")


def check_equal(first: str, config: Config) -> None:
    """Checks that ``config`` is the one of process 0, whose JSON is ``first``.

    Raises:
        UserError: it is not; it names the keys.
    """
    if first == to_json(config):
        return
    before, now = flat_keys(from_json(first)), flat_keys(config)
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    raise UserError(f"config.{', config.'.join(keys)} differ from process 0; give every process the same command")


@contextlib.contextmanager
def lock_workdir(workdir: str | Path, config: Config) -> Iterator[Path]:
    """The open workdir of a run of this config, which no other run of this machine enters meanwhile.

    Raises:
        UserError: the machine cannot run the config, processes were given different ones, or the workdir is another
            run's or in use.
    """
    runtime.check_kernels(config.model)
    runtime.check_exchange(config)
    for phase in run_phases(config):
        runtime.check_lengths(phase.config, phase.name)
    check_paths(config)
    check_equal(processes.broadcast_from_first("config", to_json(config)), config)
    path = open_workdir(workdir, config)
    with locked(path) if processes.is_first() else contextlib.nullcontext():
        if processes.is_first():
            check_folder(path, "--workdir")
        if not is_bound(path):
            check_checkpoints(config)
        if processes.is_first() and (words := set_aside(path, config)):
            print(words)
        processes.barrier("workdir")
        yield path


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Keeps other processes of this machine from running in the workdir; the system unlocks it when a process dies.

    Raises:
        UserError: another one does, or the folder cannot be written.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked_folder(workdir))
        except BlockingIOError:
            raise UserError(f"{workdir} is in use by another process; wait for it, or use a new --workdir") from None
        except OSError as error:
            raise UserError(f"--workdir {workdir} cannot be locked: {error.strerror}; use another --workdir") from None
        yield


def _check_same(path: Path, old: Config, new: Config) -> None:
    step = max(committed_steps(path), default=0)
    before, now = fixed_keys(old, step), fixed_keys(new, step)
    if key := changed_key(before, now):
        raise UserError(
            f"{path} holds another run: config.{key} is {before.get(key)!r} there and {now.get(key)!r} here; "
            "use a new --workdir, or the value that it has"
        )
