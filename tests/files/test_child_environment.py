"""Helper processes of this program get what they need to run, and no keys."""

import ast
from pathlib import Path

import k2jax

STARTS = {"subprocess.Popen", "subprocess.run", "asyncio.create_subprocess_exec"}
ALL_VARIABLES = {
    "agents/collect/engine_start.py": "the engine of a collection, which may need a key of the hub",
    "agents/collect/launchers.py": "workers, which open environments of users",
    "agents/environments/repository_program.py": "runs inside a sandbox",
    "agents/environments/repository_tests.py": "runs inside a sandbox",
    "agents/sandbox/hostile.py": "a sleeping process that attacks try to see",
    "agents/sandbox/find_program.py": "asks an isolating program for its version",
    "agents/sandbox/unsafe.py": "deletes a folder",
    "bench/broadcast.py": "this package's own receiver",
    "bench/followers.py": "this package's own process",
    "bench/images.py": "what a shell is linked to",
    "bench/gateway.py": "this package's own server",
    "bench/separate.py": "this package's own engine",
    "bench/serving.py": "this package's own server",
    "bench/asynchronous_scale.py": "this package's own commands",
    "bench/start.py": "this package's own commands",
    "bench/loader.py": "this package's own process",
    "pods/launch.py": "kubectl and gcloud, which need their credentials",
    "rl/engines/own_engines.py": "engines, which compute with the devices and settings of the run",
    "tasks/code/judge_program.py": "runs inside a sandbox",
    "tasks/swe/example.py": "git, on a repository of this package",
}
"""Files that start a program with all variables, and why."""


def test_every_program_that_is_started_has_chosen_variables_or_a_reason():
    inherit = set()
    root = Path(k2jax.__file__).parent
    for path in root.rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) in STARTS:
                chosen = [ast.unparse(word.value) for word in call.keywords if word.arg == "env"]
                if not chosen or "os.environ" in chosen[0]:
                    inherit.add(path.relative_to(root).as_posix())
    assert inherit == ALL_VARIABLES.keys()
