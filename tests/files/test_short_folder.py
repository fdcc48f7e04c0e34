"""A folder of sockets is there for a block, and a killed process leaves it until the next one begins."""

import os
from pathlib import Path
import subprocess
import sys
import tempfile

import pytest

from k2jax.files.short_folder import short_folder

KILLED = "import os, sys; from pathlib import Path; from k2jax.files.short_folder import short_folder; "
KILLED += "made = short_folder(Path(sys.argv[1])); (made.__enter__() / 's').touch(); os.kill(os.getpid(), 9)"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    return tmp_path / "t"


def test_the_folder_of_a_killed_process_is_deleted_by_the_next(tmp_path, temporary):
    note = tmp_path / "run" / "note"
    subprocess.run([sys.executable, "-c", KILLED, note], cwd=Path(__file__).parents[2], check=False)
    [left] = temporary.iterdir()
    with short_folder(note) as folder:
        assert folder.parent == temporary and folder != left and not left.exists()
        assert folder.stat().st_mode & 0o777 == 0o700 and note.stat().st_mode & 0o777 == 0o600
    assert not list(temporary.iterdir()) and not note.exists()


@pytest.mark.parametrize("kind", ["other name", "other mode", "link", "file", "none", "no path"])
def test_nothing_else_that_a_note_names_is_deleted(kind, tmp_path):
    note, named = tmp_path / "note", tmp_path / ("mine" if kind == "other name" else "k2jax-abcd")
    if kind in ("other name", "other mode"):
        named.mkdir(mode=0o700 if kind == "other name" else 0o755)
        (named / "kept").touch()
    elif kind == "link":
        (tmp_path / "k2jax-real").mkdir(mode=0o700)
        os.symlink(tmp_path / "k2jax-real", named)
    elif kind == "file":
        named.touch(0o700)
    note.write_bytes(b"\x00\xff" if kind == "no path" else str(named).encode())
    with short_folder(note):
        pass
    assert named.exists() is (kind not in ("none", "no path"))
