"""Kernels compile at Kimi K2's shapes with the real compiler: one shape of each for one TPU, or all for four."""

import json
import subprocess
import sys

import pytest

from k2jax.aot import topology
from k2jax.aot.kernel_cases import cases
from k2jax.aot.kernels import compile_cases, vmem_bytes
from k2jax.aot.report.expert_parts import expert_parts_table
from tests.command import run_command

TOPOLOGIES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
BOTH = {"mla_attention", "routed_experts", "grouped_matmul", "grouped_matmul_transposed", "expert_dispatch + combine"}
FORWARD = {"mla_decode", "newton_schulz"}
WANTED = {(k, d) for k in BOTH for d in ("forward", "backward")} | {(k, "forward") for k in FORWARD}


def check(kernel):
    only_copies = kernel["kernel"].startswith("expert_dispatch")  # from HBM to another chip's HBM
    assert only_copies or 0 < kernel["vmem_bytes"] <= kernel["vmem_limit_bytes"], kernel
    assert kernel["roofline_seconds"] > 0, kernel


@pytest.mark.slow
def test_one_shape_of_every_kernel_compiles_and_fits():
    topology.prepare()
    first = {}
    for number, case in enumerate(cases()):
        first.setdefault((case.kernel, case.direction), number)
    assert set(first) == WANTED
    compiled = list(compile_cases(list(first.values()), ["v5p:2x2x1"]))
    assert {(kernel.kernel, kernel.direction) for kernel in compiled} == WANTED
    for kernel in compiled:
        assert kernel.fits
        check(vars(kernel))


@pytest.mark.slow
def test_every_kernel_compiles_and_fits_everywhere():
    command = [sys.executable, "-m", "k2jax.aot", "kernels", f"--topologies={','.join(TOPOLOGIES)}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = json.loads(done.stdout)
    assert len(compiled) == len(TOPOLOGIES) * len(cases())
    for name in TOPOLOGIES:
        on_topology = [kernel for kernel in compiled if kernel["topology"] == name]
        assert {(kernel["kernel"], kernel["direction"]) for kernel in on_topology} == WANTED
        for kernel in on_topology:
            check(kernel)


def test_the_command_compiles_one_kernel():
    command = [sys.executable, "-m", "k2jax.aot", "kernels", "--topologies=v5e:2x2", "--only=mla_decode", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    (kernel,) = json.loads(done.stdout)
    assert (kernel["kernel"], kernel["topology"]) == ("mla_decode", "v5e:2x2")
    check(kernel)


def test_parts_of_the_exchange_by_hand():
    """32,768 copies for 24 experts in two parts: 682.7 rows of each, of which sub-blocks of 128 compute 127 more."""
    lines = expert_parts_table(["v5p:2x2x1"]).splitlines()
    two = next(line.split() for line in lines if line.startswith("    2 "))
    flops = 2 * 24 * 2 * (682.67 + 127) * 3 * 7168 * 2048
    assert two[1:3] == ["683", "810"]
    assert float(two[-3]) == pytest.approx(flops / 1e12, rel=0.01)
    assert float(two[-1]) == pytest.approx(1e3 * flops / 459e12, rel=0.01)


def test_on_chip_memory_is_read_from_the_program():
    call = '%a = f32[8] custom-call(), custom_call_target="tpu_custom_call", '
    assert vmem_bytes(call + regions("used_scoped_memory_configs", (2, 0, 99), (1, 0, 40))) == 40
    below = regions("scoped_memory_configs", (1, 1000, 64))  # an operand of 1,000 bytes lies under the kernel's region
    assert vmem_bytes(call + below + "," + regions("used_scoped_memory_configs", (1, 0, 1040))) == 40
    assert vmem_bytes("ROOT %add = f32[8] add(%a, %b)") == 0


def regions(key, *listed):
    inside = (f'{{"memory_space":"{space}","offset":"{offset}","size":"{size}"}}' for space, offset, size in listed)
    return f'"{key}":[{",".join(inside)}]'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernals"], "kernels"),
        (["kernels", "--topologies=v9:2x2"], "no TPU generation 'v9'"),
        (["kernels", "--topologies="], "--topologies is empty"),
        (["kernels", "--topologies=v5e:2x2", "--only=atention"], "no kernel's name contains 'atention'"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, message):
    done = run_command("k2jax.aot", *arguments)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
