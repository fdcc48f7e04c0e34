"""What importing a package costs a process that has no accelerator: no jax, little memory, a quick start."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

HEAVY = {
    "jax", "jaxlib", "flax", "starlette", "uvicorn", "prometheus_client", "torch", "transformers", "pandas",
    "matplotlib",
}  # fmt: skip
PROGRAM = """
import importlib, json, pkgutil, re, sys, time
began = time.process_time()
package = importlib.import_module(sys.argv[1])
for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
seconds = time.process_time() - began
# Unlike getrusage, this peak does not begin with the memory of the process that was forked.
megabytes = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
print(json.dumps({"modules": sorted(sys.modules), "seconds": seconds, "megabytes": megabytes}))
"""


@pytest.mark.parametrize("package", ["k2jax.agents.api", "k2jax.client", "k2jax.text", "k2jax.trajectory"])
def test_a_process_without_an_accelerator_imports_no_jax(package):
    done = subprocess.run([sys.executable, "-c", PROGRAM, package], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert not HEAVY & set(result["modules"])
    assert result["seconds"] < 0.5 and result["megabytes"] < 80, result
