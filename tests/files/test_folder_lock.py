"""A folder is one process's, whatever is deleted in it meanwhile."""

import errno
import fcntl
import subprocess
import sys

import pytest

from k2jax.errors import UserError
from k2jax.files.folder_lock import LOCK, locked_folder
from k2jax.train.workdir import locked

ENTER = """
import pathlib, sys
from k2jax.files.folder_lock import locked_folder
try:
    with locked_folder(pathlib.Path(sys.argv[1])): print("entered")
except BlockingIOError: print("refused")
"""


def entered(folder) -> str:
    """What another process does."""
    return subprocess.run([sys.executable, "-c", ENTER, str(folder)], capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("deleted", [False, True])
def test_a_folder_that_is_held_is_refused_even_when_its_lock_file_is_deleted(tmp_path, deleted):
    with locked(tmp_path):
        if deleted:
            (tmp_path / LOCK).unlink()
        assert entered(tmp_path) == "refused"
        with pytest.raises(UserError, match="in use by another process"), locked(tmp_path):
            pass
    assert entered(tmp_path) == "entered"


def test_where_folders_cannot_be_locked_the_file_is(tmp_path, monkeypatch):
    """As on a network file system, which locks what is open for writing alone."""
    flock = fcntl.flock

    def network(descriptor, operation):
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & 1:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", network)
    with locked_folder(tmp_path), pytest.raises(BlockingIOError), locked_folder(tmp_path):
        pass
