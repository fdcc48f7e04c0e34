"""A save that cannot be written is one line, and nothing that was saved before is lost."""

import contextlib
import itertools
import resource
import threading
import time

import pytest

from k2jax.checkpoint import Checkpoints
from k2jax.checkpoint.folders import remove_unfinished
from k2jax.errors import UserError
from tests.checkpoint.test_integrity import large
from tests.checkpoint.test_manager import same, shapes


@contextlib.contextmanager
def files_end_at(size: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of threads that orbax gave up
@pytest.mark.parametrize("size", [100_000, 50])
def test_the_step_before_is_whole_and_saving_goes_on_when_there_is_room(tmp_path, size):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, *large(3), {})
    checkpoints.wait()
    with files_end_at(size), pytest.raises(UserError, match=r"could not be written .*; step 3 is whole: make room"):
        checkpoints.save(4, *large(4), {})
        checkpoints.close()
    again = Checkpoints(tmp_path)
    assert again.steps() == [3]
    same(again.restore(3, *shapes(large(0))), large(3))
    again.save(4, *large(4), {})
    again.close()
    assert again.steps() == [3, 4]


def test_a_save_whose_threads_still_write_is_removed(tmp_path):
    """What a process meets that opens a workdir again while threads of the save that failed are at work."""
    folder = tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp" / "params" / "d"
    folder.mkdir(parents=True)
    until = time.monotonic() + 0.3

    def write() -> None:
        for name in itertools.count():
            if time.monotonic() > until:
                return
            with contextlib.suppress(FileNotFoundError):
                (folder / str(name)).touch()

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    remove_unfinished(tmp_path / "checkpoints")
    for writer in writers:
        writer.join()
    assert list((tmp_path / "checkpoints").iterdir()) == []
