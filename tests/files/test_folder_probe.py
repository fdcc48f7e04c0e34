"""A folder that lacks what a run needs is refused before the run relies on it."""

import errno
import os
from pathlib import Path

import pytest

from k2jax.files import folder_probe
from k2jax.files.folder_probe import check_folder
from tests.refusal import refused


def fails(*arguments):
    raise OSError(errno.ENOSYS, "Function not implemented")


def nothing(*arguments):
    """A call that says it worked."""


def folders_fail(real):
    return lambda old, new: fails() if Path(old).is_dir() else real(old, new)


def copied(old, new):
    """A folder that is renamed object by object, and was not finished."""
    Path(new).mkdir()
    (Path(new) / "file").write_bytes((Path(old) / "file").read_bytes())


def test_a_usual_folder_has_all_of_it_and_keeps_nothing(tmp_path):
    check_folder(tmp_path, "--workdir")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "call", "words"),
    [
        ("fsync", fails, r"making folders and files does not work there \(Function not implemented\), of which"),
        ("replace", fails, "replacing a file by a rename does not work there"),
        ("replace", nothing, "replacing a file by a rename does not work there .it reads b'second' and not b'first'"),
        ("truncate", fails, "shortening a file does not work there"),
        ("truncate", nothing, "shortening a file does not work there .it reads b'first and more'"),
        (
            "rename",
            folders_fail(os.rename),
            "renaming a folder does not work there .Function not implemented., by which a",
        ),
        ("rename", copied, "renaming a folder does not work there .the old name is still there"),
    ],
)
def test_what_is_missing_is_named_in_one_line(tmp_path, monkeypatch, name, call, words):
    monkeypatch.setattr(folder_probe.os, name, call)
    with refused(f"--workdir {tmp_path}: {words}"):
        check_folder(tmp_path, "--workdir")
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


def test_a_run_tries_its_workdir_at_its_start(tmp_path, monkeypatch):
    from k2jax.config import defaults, resolve
    from k2jax.train.workdir import lock_workdir

    monkeypatch.setattr(folder_probe.os, "truncate", fails)
    with refused("--workdir .*: shortening a file"), lock_workdir(tmp_path / "run", resolve(defaults("pretrain"))):
        pass
