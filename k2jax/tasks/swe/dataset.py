"""Software engineering tasks: an issue in a local git repository, and tests that its solution must pass.

The records are those of SWE-bench (Jimenez et al. 2024), with the folder of a repository in the place of its name.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
from pathlib import Path
from typing import Any

from k2jax.agents.environments.git_history import checked_id
from k2jax.agents.environments.repository import FOLDER, TREE
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.split import FileSplit
from k2jax.agents.task import Budget, Task
from k2jax.errors import UserError, abbreviate
from k2jax.files.confined import confined
from k2jax.tasks.record_fields import in_split, read_records

_TEXTS = ("instance_id", "repo", "base_commit", "problem_statement", "test_patch")
_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


class SWETasks:
    """Issues of repositories; the domain is ``swe``. The agent's sandbox holds the history up to the base commit.

    The test patch, the lists of tests and the reference patch are in the metadata, and never enter the agent's sandbox.
    """

    def __init__(self, path: str, steps: int = 50, repositories: str = "", split: FileSplit = "train"):
        """Records of a file.

        Args:
            path: JSONL with ``instance_id``, ``repo`` (a folder with a git repository below ``repositories``),
                ``base_commit`` (its full id), ``problem_statement``, ``test_patch``, ``FAIL_TO_PASS`` and
                ``PASS_TO_PASS`` (pytest's node ids, as a list or as its JSON); optionally ``patch`` (the reference
                solution), ``image``, ``plugins`` (names of pytest's plugins that the tests need), ``pythonpath``
                (folders that packages are imported from, where build files do not say so), and ``build`` (a command
                that makes what the tests need of the sources, such as a compiled extension).
            steps: of an episode, see ``Budget``.
            repositories: folder that records choose from; everything below it may be shown to agents. Empty is the
                folder of the file.
            split: ``train``, ``test`` for a tenth of the issues, by content, or ``all``.
        """
        self._path, self._steps, self._repositories, self._split = path, steps, repositories, split

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the file.

        Raises:
            UserError: the file cannot be read, or a record is no task or names a repository elsewhere.
        """
        folder = Path(self._repositories or Path(self._path).parent).expanduser().resolve()
        for number, record in enumerate(read_records("swe", self._path), 1):
            lists = {key: _names(record.get(key)) for key in _LISTS}
            wrong = [key for key in _TEXTS if not isinstance(record.get(key), str)]
            wrong += [key for key, names in lists.items() if names is None]
            if wrong or not lists["FAIL_TO_PASS"]:
                raise UserError(f"swe: record {number} of {self._path} needs {wrong[0] if wrong else 'FAIL_TO_PASS'}")
            _check(record, lists, f"swe: record {number} of {self._path}")
            if in_split(record["problem_statement"], self._split):
                repository = confined(record["repo"], folder, f"swe: repo of record {number}")
                yield self._task(record, lists, {"repository": repository, FOLDER: str(folder)})

    def _task(self, record: dict[str, Any], lists: dict[str, Any], place: dict[str, str]) -> Task:
        python = "python3" if record.get("image") else host_python().executable
        return Task(
            id=record["instance_id"],
            domain="swe",
            instruction=({"role": "user", "content": _prompt(record, python)},),
            verifier="swe",
            environment="repository",
            image=record.get("image") or "",
            tools=("shell timeout=120", "edit"),
            budget=Budget(steps=self._steps),
            metadata={
                **place,
                "base": checked_id(record["base_commit"]),
                "test_patch": record["test_patch"],
                "fail_to_pass": lists["FAIL_TO_PASS"],
                "pass_to_pass": lists["PASS_TO_PASS"],
                "plugins": list(record.get("plugins") or ()),
                "patch": record.get("patch") or "",
                "pythonpath": list(record.get("pythonpath") or ()),
                "build": record.get("build") or "",
            },
        )


def _check(record: dict[str, Any], lists: dict[str, list[str]], where: str) -> None:
    """Refuses names of tests that pytest does not report, texts that no file can hold, and fields of other types."""
    for key, names in lists.items():
        for name in names:
            if not all(name.partition("::")[::2]):
                example = "tests/test_words.py::test_count"
                raise UserError(f"{where}: {key} has {abbreviate(name)}, which is no node id of pytest, like {example}")
    for key in ("patch", "test_patch"):
        try:
            str(record.get(key) or "").encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{where}: {key} has half surrogates in the place of bytes that are not UTF-8; make it with "
                "git diff --binary, and the attribute -diff of such files"
            ) from None
    folders = record.get("pythonpath") or []
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        raise UserError(f"{where}: pythonpath must be a list of folders of the repository")
    if not isinstance(record.get("build") or "", str):
        raise UserError(f"{where}: build must be a command")


def _prompt(record: dict[str, Any], python: str) -> str:
    build = f" Before, what they need is built by: {record['build']}" if record.get("build") else ""
    return (
        f"The folder {TREE} holds a git repository. Change its files so that this issue is solved:\n\n"
        f"{record['problem_statement'].strip()}\n\nTests run with: cd {TREE} && {python} -m pytest.{build} Changes of "
        "tests and of their configuration do not count. When you are done, answer without calling a tool."
    )


def _names(value: Any) -> list[str] | None:
    """A list of names, which may be written as JSON; None where it is none."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return value if isinstance(value, list) and all(isinstance(name, str) for name in value) else None
