"""Small repositories with a task each, whose patches are scored in sandboxes."""

import asyncio
import json
from pathlib import Path

from k2jax.agents.dataset import load_tasks
from k2jax.agents.split import split_of
from k2jax.tasks.swe.example import _commit, _git
from k2jax.tasks.swe.verifier import SWEVerifier
from tests.agents.sandbox.backends import backend
from tests.tasks.test_code import trajectory

OLD, NEW = "def f(x):\n    return x\n", "def f(x):\n    return x + 1\n"
OTHER = "def f(x):\n    y = 1\n    return y + x\n"
"""Another right solution."""
SETUP = '[project]\nname = "my-pkg"\nversion = "1.5"\n'


def scored(task, patches):
    """Rewards of patches, each scored in a sandbox of its own."""

    async def run():
        return [await score_patch(task, patch, backend("bubblewrap")) for patch in patches]

    return asyncio.run(run())


async def score_patch(task, patch, sandboxes):
    """The reward of a patch, in a sandbox of a backend."""
    verifier, episode = SWEVerifier(), trajectory("done")
    episode.metadata["outcome"] = {"patch": patch, "too_large": False}
    async with await sandboxes.open(verifier.spec) as sandbox:
        return await verifier.score(task, episode, sandbox)


def make_task(folder, base, gold, tests, failing, passing=(), other=None, **fields):
    """A task of a repository that is made in a folder; its metadata have another right patch as ``other``."""
    repository = Path(folder) / "repository"
    repository.mkdir(parents=True)
    _git(repository, "init", "-q", "-b", "main")
    (repository / ".git/info").mkdir(exist_ok=True)
    commits = [_write(repository, files) for files in (base, gold, tests)]
    diffs = [_git(repository, "diff", "--binary", *commits[i : i + 2]) for i in (0, 1)]
    if other is not None:
        _git(repository, "reset", "-q", "--hard", commits[0])
        diffs.append(_git(repository, "diff", "--binary", commits[0], _write(repository, other)))
    lists = {"FAIL_TO_PASS": list(failing), "PASS_TO_PASS": list(passing)}
    record = {"instance_id": "one", "repo": "repository", "base_commit": commits[0], "problem_statement": "f(1) is 1."}
    record |= {"patch": diffs[0], "test_patch": diffs[1], **lists, **fields}
    (Path(folder) / "tasks.jsonl").write_text(json.dumps(record) + "\n")
    [task] = load_tasks("swe", (f"path={folder}/tasks.jsonl",), split=split_of(record["problem_statement"]))
    return task, diffs[2] if other is not None else None


def _write(repository, files):
    """Commits files; those of bytes are no UTF-8, so that they have no patch that is text."""
    for name, data in files.items():
        if isinstance(data, bytes):
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_bytes(data)
            (repository / ".git/info/attributes").write_text("* -diff\n")
    return _commit(repository, {name: text for name, text in files.items() if isinstance(text, str)}, "x")


def package(path, text):
    """The files of a package with one module; folders of sources are none."""
    parts = path.split("/")[:-1]
    start = 1 if parts[:1] in (["src"], ["lib"], ["source"]) else 0
    return {path: text} | {f"{'/'.join(parts[: n + 1])}/__init__.py": "" for n in range(start, len(parts))}


def simple(path, module, new="", old="", imports="", extra=None, file="tests/test_f.py", failing=("test_new",), **more):
    """A task of one module: ``test_old`` passes before and after, ``test_new`` after."""
    old = old or "def test_old():\n    assert callable(f)\n    assert f.__name__ == 'f'\n"
    new = new or "def test_new():\n    assert f(1) == 2\n    assert f(5) == 6\n"
    head = f"{imports}from {module} import f\n\n\n"
    passing = more.pop("passing", ("test_old",))
    base = package(path, OLD) | {file: head + old} | (extra or {})
    files = [[f"{file}::{name}" for name in names] for names in (failing, passing)]
    gold = more.pop("gold", {path: NEW})
    return {"base": base, "gold": gold, "tests": {file: head + old + "\n\n" + new}, "other": {path: OTHER}} | dict(
        zip(("failing", "passing"), files, strict=True), **more
    )
