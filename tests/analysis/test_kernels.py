"""Every kernel compiles at Kimi K2's shapes with the real compiler: for one TPU generation, or for four (slow)."""

import json
import subprocess
import sys

import pytest

from k2jax.analysis.kernels import vmem_bytes

TOPOLOGIES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
BOTH = {"mla_attention", "routed_experts", "grouped_matmul", "grouped_matmul_transposed", "expert_dispatch + combine"}
FORWARD = {"mla_decode", "newton_schulz"}


@pytest.mark.parametrize("topologies", [TOPOLOGIES[1:2], pytest.param(TOPOLOGIES, marks=pytest.mark.slow)])
def test_every_kernel_compiles_and_fits(topologies):
    command = [sys.executable, "-m", "k2jax.aot", "kernels", f"--topologies={','.join(topologies)}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    wanted = {(k, d) for k in BOTH for d in ("forward", "backward")} | {(k, "forward") for k in FORWARD}
    for topology in topologies:
        here = [one for one in found if one["topology"] == topology]
        assert {(one["kernel"], one["direction"]) for one in here} == wanted
        for one in here:
            only_copies = one["kernel"].startswith("expert_dispatch")  # from HBM to another chip's HBM
            assert only_copies or 0 < one["vmem_bytes"] <= one["vmem_limit_bytes"], one
            assert one["roofline_seconds"] > 0, one


def test_on_chip_memory_is_read_from_the_program():
    call = '%a = f32[8] custom-call(), custom_call_target="tpu_custom_call", '
    assert vmem_bytes(call + regions("used_scoped_memory_configs", (2, 0, 99), (1, 0, 40))) == 40
    below = regions("scoped_memory_configs", (1, 1000, 64))  # an operand of 1,000 bytes lies under the kernel's region
    assert vmem_bytes(call + below + "," + regions("used_scoped_memory_configs", (1, 0, 1040))) == 40
    assert vmem_bytes("ROOT %add = f32[8] add(%a, %b)") == 0


def regions(key, *found):
    inside = (f'{{"memory_space":"{space}","offset":"{offset}","size":"{size}"}}' for space, offset, size in found)
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
    done = subprocess.run([sys.executable, "-m", "k2jax.aot", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
