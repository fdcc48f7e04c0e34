"""The engine on a mesh of 8 emulated devices gives what one device gives."""

import json
import os
import socket
import subprocess
import sys

import jax
import pytest

from k2jax.errors import UserError
from k2jax.inference.engine import Engine
from k2jax.inference.mesh import make_mesh
from tests.emulated import ROOT, run_on
from tests.inference.tiny import MLA


def run(*checks):
    return json.loads(run_on(8, "-m", "tests.inference.mesh_checks", *checks).splitlines()[-1])


def assert_right(case, experts):
    assert case["error"] <= 1e-4
    assert case["drawn error"] <= 1e-4
    assert case["compared"] > 200
    assert case["same twice"]
    assert min(case["cached"]) >= 32  # found again where it was computed
    assert case["left"] == 0
    assert case["experts"] == [experts]  # on each device
    assert case["pages"] == [6 + 1]  # with the scratch page


def test_every_position_equals_one_pass_on_one_device():
    assert_right(run("data 2 x expert 4")["data 2 x expert 4"], experts=2)


@pytest.mark.slow
def test_other_meshes_too():
    found = run("expert 8", "data 8, grouped-query attention", "like one device", "new weights")
    assert_right(found["expert 8"], experts=1)
    assert_right(found["data 8, grouped-query attention"], experts=0)
    assert found["like one device"]["same"]
    assert found["new weights"]["versions"] == [0, 1]
    assert found["new weights"]["error"] <= 1e-4


@pytest.mark.slow
def test_two_processes_give_the_same_tokens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    several = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    command = [sys.executable, "-m", "tests.inference.mesh_checks", "processes"]
    two = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | several | {"JAX_PROCESS_ID": str(i), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    first, second = (json.loads(process.communicate(timeout=600)[0].splitlines()[-1]) for process in two)
    assert first == second
    assert first["error"] <= 1e-4


def test_what_does_not_divide_is_refused():
    with pytest.raises(UserError, match="data 2 x expert 4 devices: there are 1"):
        make_mesh(data=2, expert=4)
    two = jax.sharding.AbstractMesh((2, 1), ("data", "expert"))
    with pytest.raises(UserError, match="slots 5 do not divide over 2 devices; 6 would"):
        Engine(MLA, None, slots=5, mesh=two)
    with pytest.raises(UserError, match=r"pages for one sequence of max_length .* on each of 2 devices"):
        Engine(MLA, None, slots=4, pages=8, max_length=128, mesh=two)
