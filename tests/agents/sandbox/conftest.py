"""Fixtures of the sandboxes' tests: files of the host that nothing inside may touch."""

import os

import pytest

from tests.agents.sandbox.backends import backend, survivors


class Witness:
    """A folder of the host with a secret in it."""

    SECRET = "the host's secret 5f1c"

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "secret.txt"
        self.file.write_text(self.SECRET)
        self._before = self._state()

    def _state(self):
        stats = {path: path.stat() for path in (self.folder, self.file)}
        return (
            os.listdir(self.folder),
            self.file.read_bytes(),
            {path: (s.st_mtime_ns, s.st_ctime_ns, s.st_mode, s.st_nlink) for path, s in stats.items()},
        )

    def unchanged(self):
        return self._state() == self._before


@pytest.fixture
def witness(tmp_path):
    """Fails a test after which the host's files are not what they were."""
    folder = tmp_path / "host"
    folder.mkdir()
    seen = Witness(folder)
    yield seen
    assert seen.unchanged()


@pytest.fixture
def name(request):
    """A backend; nothing that it started may be left when a test ends."""
    backend(request.param)
    yield request.param
    assert not survivors(request.param)
