"""What a tree's build files say of its packages, what is wiped between runs, and controls that are made once."""

import ast
import asyncio
import contextlib
import os
from pathlib import Path
import subprocess
import sys
import threading
import time

import pytest

from k2jax.agents.environments import repository_program
from k2jax.agents.environments import repository_tests as program
from k2jax.agents.errors import VerifierError
from k2jax.agents.task import Task
from k2jax.tasks.swe import controls, literals, mutants
from k2jax.tasks.swe.variants import Controls

LAYOUTS = {
    "src": ({"src/pkg/__init__.py": ""}, ["src"]),
    "a module in src": ({"src/six.py": ""}, ["src"]),
    "a package of that name": ({"src/__init__.py": "", "src/pkg/__init__.py": ""}, []),
    "no package in it": ({"lib/jquery.js": "", "python/README": ""}, []),
    "lib and python": ({"lib/a.py": "", "python/b/__init__.py": ""}, ["lib", "python"]),
    "flat": ({"pkg/__init__.py": ""}, []),
    "setup.cfg": ({"setup.cfg": "[options]\npackage_dir =\n    = code\n", "code/p/__init__.py": ""}, ["code"]),
    "setup.cfg finds": ({"setup.cfg": "[options.packages.find]\nwhere = code\n", "code/p/__init__.py": ""}, ["code"]),
    "setup.py": ({"setup.py": "setup(package_dir={'': 'code'})", "code/p/__init__.py": ""}, ["code"]),
    "setup.py finds": ({"setup.py": "find_packages(where='code/main')", "code/main/p/__init__.py": ""}, ["code/main"]),
    "pyproject": ({"pyproject.toml": '[tool.setuptools]\npackage-dir = {"" = "code"}', "code/p.py": ""}, ["code"]),
    "pyproject's table": ({"pyproject.toml": '[tool.setuptools.package-dir]\n"" = "code"', "code/p.py": ""}, ["code"]),
    "pyproject finds": ({"pyproject.toml": '[x.find]\nwhere = ["code"]\n', "code/p.py": ""}, ["code"]),
    "poetry": ({"pyproject.toml": 'packages = [{ include = "p", from = "code" }]', "code/p.py": ""}, ["code"]),
    "a folder above": ({"setup.cfg": "[options]\npackage_dir =\n    = ../..\n"}, []),
}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("name", LAYOUTS)
def test_packages_are_imported_from_the_folders_that_build_files_name(name, tmp_path):
    files, folders = LAYOUTS[name]
    write(tmp_path, files)
    tree = str(tmp_path)
    assert program.source_folders(tree, []) == [*(os.path.join(tree, folder) for folder in folders), tree]
    assert program.source_folders(tree, ["x/y", "../z"]) == [os.path.join(tree, "x/y"), tree]


PROJECTS = {
    "pyproject": {
        "pyproject.toml": '[project]\nname = "My.Pkg"\nversion = "1.5"\n[project.scripts]\nmy = "pkg:main"\n'
        '[project.entry-points.own]\nx = "pkg:x"\n'
    },
    "setup.cfg": {
        "setup.cfg": "[metadata]\nname = my-pkg\nversion = 1.5\n[options.entry_points]\nconsole_scripts =\n"
        "    my = pkg:main\nown = \n    x = pkg:x\n"
    },
    "setup.py": {"setup.py": "from setuptools import setup\nsetup(name='my_pkg', version='1.5')\n"},
    "a computed version": {"pyproject.toml": '[project]\nname = "my-pkg"\ndynamic = ["version"]\n'},
    "none": {"pyproject.toml": "broken ["},
}


@pytest.mark.parametrize("name", PROJECTS)
def test_metadata_of_a_tree_are_what_an_installation_would_have(name, tmp_path):
    write(tmp_path, PROJECTS[name])
    (tmp_path / "out").mkdir()
    program.describe(str(tmp_path), str(tmp_path / "out"))
    code = (
        "import importlib.metadata as m\ntry: print(m.version('my-pkg'), "
        "sorted(p.group + '.' + p.name for p in m.distribution('my-pkg').entry_points))\n"
        "except m.PackageNotFoundError: print('none')"
    )
    command = [sys.executable, "-S", "-c", code]
    output = subprocess.check_output(command, text=True, env={"PYTHONPATH": str(tmp_path / "out")}).strip()
    points = ["console_scripts.my", "own.x"] if name in ("pyproject", "setup.cfg") else []
    versions = {"a computed version": "0", "none": "none"}
    assert output == ("none" if name == "none" else f"{versions.get(name, '1.5')} {points}")


def test_a_later_run_finds_nothing_of_an_earlier_one(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    write(folder, {"a/b": "x", ".hidden": "x", "-rf": "x"})
    (folder / "link").symlink_to(tmp_path)
    os.utime(folder, (12345, 12345))
    with contextlib.suppress(OSError):  # not every file system has attributes to leave something in
        os.setxattr(folder, "user.seen", b"x")
    os.chmod(folder / "a", 0)
    monkeypatch.setattr(program, "WRITABLE", (str(folder), str(tmp_path / "none")))
    program.wipe({"private": False})
    assert len(os.listdir(folder)) == 4
    program.wipe({"private": True})
    assert os.listdir(folder) == [] and os.listxattr(folder) == [] and tmp_path.exists()
    status = os.stat(folder)
    assert (status.st_mtime_ns, status.st_mode & 0o7777) == (0, 0o1777)


def test_controls_are_made_once_for_all_verdicts_and_again_after_a_failure(monkeypatch):
    made = []

    async def make(task, sandbox):
        made.append(task.id)
        await asyncio.sleep(0.05)
        if len(made) == 1:
            raise VerifierError("the machine")
        return Controls({}, (), ())

    monkeypatch.setattr(controls, "make_controls", make)
    task = Task("once", "swe", ({"role": "user", "content": "x"},), "swe", metadata={"base": str(time.time())})

    async def several():
        return await asyncio.gather(*(controls.controls_of(task, None) for _ in range(3)), return_exceptions=True)

    results = []
    threads = [threading.Thread(target=lambda: results.extend(asyncio.run(several()))) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(made) == 2 and sum(isinstance(result, VerifierError) for result in results) == 1
    assert len({id(result) for result in results if isinstance(result, Controls)}) == 1


@pytest.mark.parametrize("module", [repository_program, program, literals, mutants])
def test_programs_of_sandboxes_have_the_syntax_of_old_images(module):
    text = Path(module.__file__).read_text("utf-8")
    ast.parse(text, feature_version=(3, 7))
    assert not any(
        isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr) for node in ast.walk(ast.parse(text))
    )
    assert "removeprefix" not in text and "strict=True" not in text
