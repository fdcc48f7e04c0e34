"""Processes that hold environments or verifiers stay small: no jax, no web framework, little memory, a quick start."""

import json
import subprocess
import sys

import pytest

from tests.emulated import ROOT

SCRIPT = """
import json, re, sys
{before}
import {modules}
megabytes = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
heavy = [name for name in ("jax", "starlette", "httpx") if name in sys.modules]
print(json.dumps([len(sys.modules), megabytes, heavy]))
"""
MODULES = {  # with the most modules, those of the interpreter and of NumPy included, that they may load
    "worker": ("k2jax.agents.verifier_pool.supervisor", "", 380),
    "environments and tasks": (
        "k2jax.agents.registry, k2jax.agents.episode, k2jax.agents.scorer, k2jax.agents.environments.single_turn, "
        "k2jax.tasks.characters.dataset",
        "",
        520,
    ),
    "pictures": ("k2jax.tasks.pictures.dataset, k2jax.tasks.pictures.verifier", "import PIL.Image, PIL.ImageDraw", 410),
    "gateway": (
        "k2jax.agents.gateway.app",
        "import starlette.applications, starlette.responses, starlette.routing",
        620,
    ),
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


@pytest.mark.parametrize(("modules", "before", "most"), MODULES.values(), ids=MODULES.keys())
def test_environments_and_verifiers_start_with_few_modules_and_without_jax(modules, before, most):
    """Modules are counted, of which each takes about a millisecond: the speed of machines varies."""
    command = [sys.executable, "-c", SCRIPT.format(modules=modules, before=before)]
    started = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    loaded, megabytes, heavy = started
    assert loaded < most
    if not before:
        assert megabytes < 80 and not heavy


def test_no_import_of_agents_and_tasks_loads_jax_not_even_one_inside_of_a_function():
    done = subprocess.run([sys.executable, "-c", EVERY_IMPORT], cwd=ROOT, capture_output=True, text=True, check=True)
    count, loaded = done.stdout.split(maxsplit=1)
    assert int(count) > 200 and loaded.strip() == "[]", loaded
