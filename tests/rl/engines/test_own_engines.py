"""Engines that a run starts are replaced when they die, and end the run where that helps nothing."""

import subprocess
import sys

import pytest

from k2jax.errors import UserError
from k2jax.rl.engines.own_engines import RESTARTS, OwnEngines
from k2jax.rl.engines.run_record import FOLDER


class Programs(OwnEngines):
    """Runs other programs in the place of engines, one after another, and the last one again and again."""

    programs = ()

    def _start(self, number):
        program, *self.programs = self.programs if len(self.programs) > 1 else [*self.programs] * 2
        with open(self._log(number), "ab") as log:
            return subprocess.Popen([sys.executable, "-Sc", program], stdin=subprocess.PIPE, stdout=log, stderr=log)


def own(folder, *programs):
    """One engine of a run in a folder, which runs these programs, and what is said."""
    (folder / FOLDER).mkdir()
    said, made = [], type("Own", (Programs,), {"programs": programs})
    return made(folder, 1, said.append), said


def die(engines):
    """Waits for the end of the process that runs now."""
    engines._processes[0].wait(10)


def test_a_dead_engine_is_started_again_a_few_times_between_two_versions(tmp_path):
    engines, said = own(tmp_path, "print('out of memory'); raise SystemExit(1)")
    for version in (0, 1):
        for _ in range(RESTARTS):
            die(engines)
            engines.look(version)
    assert said == [
        f"an engine of the run has ended with code 1, and is started again; see {tmp_path / FOLDER}/engine-0.log"
    ] * (2 * RESTARTS)
    die(engines)
    with pytest.raises(UserError, match=r"an engine of the run has ended with 'out of memory'; see .*engine-0.log"):
        engines.look(1)


def test_an_engine_that_refuses_to_work_is_not_started_again_and_one_that_works_is_left_alone(tmp_path):
    engines, said = own(tmp_path, "input()", "print('error: no such key'); raise SystemExit(2)")
    engines.look(0)
    assert engines._processes[0].poll() is None
    engines._processes[0].kill()
    die(engines)
    engines.look(0)
    assert len(said) == 1
    die(engines)
    with pytest.raises(UserError, match="error: no such key"):
        engines.look(0)


def test_engines_end_with_their_standard_input(tmp_path):
    engines, _ = own(tmp_path, "import sys; sys.stdin.read()")
    engines.close()
    assert engines._processes[0].returncode == 0
