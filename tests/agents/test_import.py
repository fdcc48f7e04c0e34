"""Processes that hold environments or verifiers stay small: no jax, no web framework, little memory, a quick start."""

import json
import statistics
import subprocess
import sys

import pytest

from tests.emulated import ROOT

SCRIPT = """
import json, re, sys, time
{before}
began = time.process_time()
import {modules}
seconds = time.process_time() - began
megabytes = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
print(json.dumps([seconds, megabytes, [name for name in ("jax", "starlette", "httpx") if name in sys.modules]]))
"""
MODULES = {
    "worker": ("k2jax.agents.verifier_pool.supervisor", ""),
    "environments and tasks": (
        "k2jax.agents.registry, k2jax.agents.episode, k2jax.agents.scorer, k2jax.agents.environments.single_turn, "
        "k2jax.tasks.characters.dataset",
        "",
    ),
    "pictures": ("k2jax.tasks.pictures.dataset, k2jax.tasks.pictures.verifier", "import PIL.Image, PIL.ImageDraw"),
    "gateway": ("k2jax.agents.gateway.app", "import starlette.applications, starlette.responses, starlette.routing"),
}
# Every import of these packages, those inside of functions too; what an extra is missing for is none of this test's.
EVERY_IMPORT = """
import ast, importlib, pathlib, sys
folders = ("agents", "tasks", "client", "trajectory", "text", "files", "drawings", "config", "report")
modules = [path for folder in folders for path in pathlib.Path("k2jax", folder).rglob("*.py")]
names = {"k2jax." + name for name in ("errors", "cli", "mixture_plan")}
for path in modules:
    names.add(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("k2jax"):
            names.add(node.module)
for name in sorted(names):
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            assert not error.name.startswith("k2jax"), (name, error)
print(len(names), [name for name in ("jax", "jaxlib", "flax", "optax", "orbax") if name in sys.modules])
"""


@pytest.mark.parametrize(("modules", "before"), MODULES.values(), ids=MODULES.keys())
def test_environments_and_verifiers_start_quickly_and_without_jax(modules, before):
    """Processor time, since other processes may hold the cores; the median of three starts."""
    command = [sys.executable, "-c", SCRIPT.format(modules=modules, before=before)]
    done = [subprocess.run(command, cwd=ROOT, capture_output=True, check=True) for _ in range(3)]
    starts = [json.loads(process.stdout) for process in done]
    assert statistics.median(start[0] for start in starts) < 0.5
    if not before:
        assert max(start[1] for start in starts) < 80
        assert not any(start[2] for start in starts)


def test_no_import_of_agents_and_tasks_loads_jax_not_even_one_inside_of_a_function():
    done = subprocess.run([sys.executable, "-c", EVERY_IMPORT], cwd=ROOT, capture_output=True, text=True, check=True)
    count, loaded = done.stdout.split(maxsplit=1)
    assert int(count) > 200 and loaded.strip() == "[]", loaded
