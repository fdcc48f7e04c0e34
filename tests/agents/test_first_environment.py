"""The code of docs/first_environment.md runs as it stands there."""

import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile
import tomllib

import pytest

from tests.agents.tool_episodes import results

PAGE = (Path(__file__).parents[2] / "docs/first_environment.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
PROGRAM = """
from k2jax.agents.registry import toolsets
from k2jax.tasks import oracle_check
import sys
[tool] = toolsets.make("middle").tools
print(tool["function"]["name"], sorted(tool["function"]["parameters"]["properties"]))
sys.argv = ["check", "guessing", "--options=largest=50", "--split=test"]
oracle_check.command()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the page's package and what ``pip install -e .`` would declare of it."""
    folder = tmp_path_factory.mktemp("guessing")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    info = folder / f"{project['name']}.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, names in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def test_the_oracle_of_the_page_earns_one_and_silence_nothing(installed):
    path = os.pathsep.join([str(installed), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "half ['high', 'low']" in run.stdout
    assert "10 of 10 episodes of the oracle policy earn 1" in run.stdout
    assert "10 of 10 episodes of the null policy earn 0" in run.stdout


def test_the_server_of_the_page_answers_from_its_sandbox():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)  # a sandbox may run as another user
        Path(folder, "server.py").write_text(FILES["server.py"], encoding="utf-8")
        spec = re.search(r'f"(mcp command=.*?)",', PAGE)[1].replace("{folder}", folder)
        assert results((spec,), ("feet", {"metres": 100})) == ["328.08"]
