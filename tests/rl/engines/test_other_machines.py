"""Engines that take weights over the network: from several training processes, and on a machine that has no store."""

import json
import os
import subprocess
import sys

import pytest

from tests.rl.engines.test_engine_runs import OPTIONS, assert_trained_well
from tests.rl.followers.noisy import LOG
from tests.rl.followers.test_processes import RUN
from tests.rl.runs import ROOT
from tests.train.together import end, free_port, python

SEPARATE = {key: value for key, value in OPTIONS.items() if key.startswith(("rl.rollout", "rl.engines", "rl.max"))}
WHOLE = RUN | SEPARATE | {"rl.rollout.look_ahead": 2, "rl.rollout.data": 1, "rl.rollout.slots": 2, "train.steps": 3}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "own"), [(1, 0), (2, 1), (2, 0)])
def test_engines_take_every_version_from_all_processes_of_a_run(count, own, tmp_path):
    workdir, port = tmp_path / "run", free_port()
    run = WHOLE | {"rl.engines.start": own, "rl.engines.listen": f"127.0.0.1:{free_port()}"}
    arguments = ["-m", "tests.rl.followers.member", str(workdir), json.dumps(run)]
    alone = {} if count > 1 else dict.fromkeys(("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"), "")
    variables = alone | {LOG: str(tmp_path / "calls")}
    processes = [python(arguments, index, count, port, **variables) for index in range(count)]
    if not own:
        while not workdir.exists():
            assert all(process.poll() is None for process in processes)
        command = [sys.executable, "-m", "tests.rl.engines.elsewhere", f"--follow={workdir}"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        engine = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    told = end(processes, 900)
    assert [code for code, _, _ in told] == [0] * count, told
    assert_trained_well(workdir, 3, 1)
    rows = [json.loads((workdir / f"rows-{index}.json").read_text()) for index in range(count)]
    assert len(rows[0]) >= 1 and all(each == rows[0] for each in rows)
    if not own:
        text, _ = engine.communicate(timeout=60)
        assert engine.returncode == 0 and "has ended" in text and "serving version 2" in text, text
