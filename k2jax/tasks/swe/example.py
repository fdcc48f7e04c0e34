"""Writes a small git repository and a file of tasks in it, in the format that the dataset ``swe`` reads.

Example:
    python -m k2jax.tasks.swe.example --to=runs/swe
    python -m k2jax.env.check swe --options=path=runs/swe/tasks.jsonl
"""

from __future__ import annotations

import os
from pathlib import Path
import subprocess

from absl import flags

from k2jax import cli
from k2jax.files.atomic import write_json_lines

_BASE = {
    "words/__init__.py": "from words.count import count, longest\n",
    "words/count.py": (
        'def count(text):\n    """Number of words in a text."""\n    return len(text.split(" "))\n\n\n'
        'def longest(text):\n    """The longest word of a text; the first of several; empty without any."""\n'
        "    return max(text.split(), key=len)\n"
    ),
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef line():\n    return 'three small words'\n",
    "tests/test_count.py": "from words import count\n\n\ndef test_count(line):\n    assert count(line) == 3\n",
}
_ISSUES = (
    (
        "spaces",
        "count() is wrong for texts with several spaces between words: count('a  b') returns 3, and it must be 2.",
        {"words/count.py": _BASE["words/count.py"].replace('split(" ")', "split()")},
        {
            "tests/test_count.py": _BASE["tests/test_count.py"]
            + "\n\ndef test_spaces():\n    assert count('a  b') == 2\n    assert count('  ') == 0\n"
        },
        ["tests/test_count.py::test_spaces"],
    ),
    (
        "empty",
        "longest('') raises ValueError. It must return an empty string where there is no word.",
        {"words/count.py": _BASE["words/count.py"].replace("key=len)", "key=len, default='')")},
        {
            "tests/test_longest.py": "from words import longest\n\n\ndef test_empty():\n    assert longest('') == ''\n"
            "\n\ndef test_first(line):\n    assert longest(line) == 'three'\n"
        },
        ["tests/test_longest.py::test_empty"],
    ),
)
_IDENTITY = ("-c", "user.name=Example", "-c", "user.email=example@localhost", "-c", "commit.gpgsign=false")


def write_example(folder: str | os.PathLike) -> Path:
    """Makes the repository below a new folder, and the file of its tasks.

    Returns:
        Path of the file of tasks.
    """
    folder = Path(folder)
    repository = folder / "repository"
    repository.mkdir(parents=True)
    _git(repository, "init", "-q", "-b", "main")
    base = _commit(repository, _BASE, "Counts words")
    records = []
    for name, issue, solution, tests, failing in _ISSUES:
        fixed = _commit(repository, solution, f"Fix: {name}")
        tested = _commit(repository, tests, f"Tests: {name}")
        records.append(
            {
                "instance_id": f"words-{name}",
                "repo": "repository",
                "base_commit": base,
                "problem_statement": issue,
                "patch": _git(repository, "diff", "--binary", base, fixed),
                "test_patch": _git(repository, "diff", "--binary", fixed, tested),
                "FAIL_TO_PASS": failing,
                "PASS_TO_PASS": ["tests/test_count.py::test_count"],
            }
        )
        _git(repository, "branch", name)
        _git(repository, "reset", "-q", "--hard", base)
    path = folder / "tasks.jsonl"
    write_json_lines(path, records)
    return path


def _commit(repository: Path, files: dict[str, str], message: str) -> str:
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    _git(repository, "add", "-A")
    _git(repository, *_IDENTITY, "commit", "-q", "-m", message)
    return _git(repository, "rev-parse", "HEAD").strip()


def _git(repository: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", repository, *words], check=True, capture_output=True, text=True).stdout


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    flags.DEFINE_string("to", None, "Folder to make.", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "to")
    print(f"{len(_ISSUES)} tasks in {write_example(values.to)}")


if __name__ == "__main__":
    cli.run(main, define, __doc__)
