import os
from pathlib import Path
import subprocess
import sys
import threading
import time

import pytest

from k2jax.data.cache import cache_root, get_or_build, key_of
from tests.refusal import refused

REPOSITORY = Path(__file__).parents[2]


def fill(folder):
    (folder / "file").write_text("whole")


def never(folder):
    raise AssertionError("built again")


def contents(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_folder_is_built_once(tmp_path):
    folder = tmp_path / "a" / "key"
    assert get_or_build(folder, fill) == folder
    assert get_or_build(folder, never) == folder
    assert contents(folder) == ["file"] and contents(tmp_path / "a") == ["key"]


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def fail(folder):
        fill(folder)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        get_or_build(tmp_path / "key", fail)
    assert contents(tmp_path) == []


def test_a_killed_build_is_never_picked_up_and_is_removed_by_the_next(tmp_path):
    script = (
        "import os, sys, signal; from pathlib import Path; from k2jax.data.cache import get_or_build\n"
        "def build(folder):\n"
        "    (folder / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "get_or_build(Path(sys.argv[1]), build)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "key")], cwd=REPOSITORY)
    assert done.returncode == -9
    (left,) = contents(tmp_path)
    assert left.startswith(".key.tmp-")
    get_or_build(tmp_path / "key", fill)
    assert contents(tmp_path) == ["key"] and contents(tmp_path / "key") == ["file"]


def test_processes_that_build_at_once_agree(tmp_path):
    barrier = threading.Barrier(4)
    folders = []

    def build(folder):
        barrier.wait()
        fill(folder)

    def run():
        folders.append(get_or_build(tmp_path / "key", build))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [tmp_path / "key"] * 4
    assert contents(tmp_path) == ["key"] and contents(tmp_path / "key") == ["file"]


def test_the_others_wait_for_the_builder(tmp_path):
    def slow(folder):
        time.sleep(0.3)
        fill(folder)

    builder = threading.Thread(target=get_or_build, args=(tmp_path / "key", slow))
    builder.start()
    assert contents(get_or_build(tmp_path / "key", never, builder=False, wait_seconds=20)) == ["file"]
    builder.join()
    with refused("other did not appear within 0 s: process 0 builds it"):
        get_or_build(tmp_path / "other", never, builder=False, wait_seconds=0.05)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with refused(r"cannot write the cache folder .*set data\.cache_dir"):
        get_or_build(tmp_path / "file" / "key", fill)

    def full(folder):
        raise OSError(28, os.strerror(28))

    with refused(r"no room in .*set data\.cache_dir"):
        get_or_build(tmp_path / "key", full)


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("K2JAX_CACHE", "/from/environment")
    assert cache_root("/configured") == Path("/configured")
    assert cache_root("") == Path("/from/environment")
    monkeypatch.delenv("K2JAX_CACHE")
    assert cache_root("") == Path.home() / ".cache" / "k2jax"


def test_keys_depend_on_content_and_not_on_order():
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1}) != key_of({"a": 1, "b": [3]})
