"""Terminal tasks: an instruction, files to begin with, a reference solution for the shell, and a test script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import random
from typing import Any, NamedTuple

from k2jax.agents.environments.files import FILES, OUTPUTS
from k2jax.agents.split import FileSplit
from k2jax.agents.task import Budget, Task
from k2jax.errors import UserError, abbreviate, nearest
from k2jax.tasks.record_fields import in_split, read_records

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "heron", "inlet", "jade", "kelp", "lotus")
_DONE = " All paths are below /work. When you are done, answer without calling a tool."


class TerminalProblem(NamedTuple):
    """One problem.

    Attributes:
        instruction: what is asked.
        files: text and octal mode by path below ``/work``.
        solution: what ``/bin/sh`` runs in ``/work``.
        test: Python source that raises where the files that are left are wrong; see ``terminal_program``.
        outputs: paths below ``/work`` that the test needs, which are kept before others where not all files fit.
    """

    instruction: str
    files: dict[str, dict[str, str]]
    solution: str
    test: str
    outputs: tuple[str, ...] = ()


class TerminalTasks:
    """Generated problems, or those of a file; the domain is ``terminal/`` and the kind."""

    def __init__(
        self,
        kinds: tuple[str, ...] = ("files", "text", "permissions", "archives", "scripts"),
        path: str = "",
        steps: int = 20,
        count: int = 100,
        seed: int = 0,
        split: FileSplit = "train",
    ):
        """A set of problems.

        Args:
            kinds: of generated problems, in turn.
            path: JSONL instead, with ``instruction``, ``solution``, ``test``, ``files`` (texts by path) and, where
                a test needs few files, ``outputs`` (paths).
            steps: of an episode, see ``Budget``.
            count: number of generated tasks.
            seed: of them.
            split: ``train`` or ``test``, by the content of the instruction and the files; of a file also ``all``.

        Raises:
            UserError: a kind is unknown, ``count`` is not positive, or ``all`` has no file.
        """
        for kind in kinds:
            if kind not in KINDS:
                raise UserError(f"terminal: there is no kind {abbreviate(kind)}{nearest(kind, list(KINDS))}")
        if not kinds or count < 1:
            raise UserError("terminal: count must be positive and kinds named")
        if split == "all" and not path:
            raise UserError("terminal: problems are generated for the split train or test; all is of a file, path=")
        self._kinds, self._path, self._steps = kinds, path, steps
        self._count, self._seed, self._split = count, seed, split

    def load(self) -> Iterator[Task]:
        """The tasks.

        Raises:
            UserError: the file cannot be read, or a record is no problem.
        """
        if self._path:
            for number, record in enumerate(read_records("terminal", self._path), 1):
                problem = _problem(record)
                if problem is None:
                    raise UserError(
                        f"terminal: record {number} of {self._path} needs instruction, solution, test and files"
                    )
                if in_split(_content(problem), self._split):
                    yield self._task(str(number), "file", problem)
            return
        rng = random.Random(f"terminal {self._seed} {self._split}")
        for number in range(self._count):
            kind = self._kinds[number % len(self._kinds)]
            problem = KINDS[kind](rng)
            while not in_split(_content(problem), self._split):
                problem = KINDS[kind](rng)
            yield self._task(f"{kind}/{self._split}/seed{self._seed}/{number}", kind, problem)

    def _task(self, name: str, kind: str, problem: TerminalProblem) -> Task:
        return Task(
            id=name,
            domain=f"terminal/{kind}",
            instruction=({"role": "user", "content": problem.instruction + _DONE},),
            verifier="terminal",
            environment="files",
            tools=("shell",),
            budget=Budget(steps=self._steps),
            metadata={FILES: problem.files, "solution": problem.solution, "test": problem.test}
            | ({OUTPUTS: problem.outputs} if problem.outputs else {}),
        )


def _problem(record: dict[str, Any]) -> TerminalProblem | None:
    """The problem of a record, or None where it is none."""
    texts = [record.get(key) for key in ("instruction", "solution", "test")]
    files = record.get(FILES, {})
    if not all(isinstance(text, str) for text in texts) or not isinstance(files, dict):
        return None
    outputs = record.get(OUTPUTS, [])
    if not isinstance(outputs, list) or not all(isinstance(text, str) for text in (*files.values(), *outputs)):
        return None
    instruction, solution, test = texts
    contents = {path: {"text": text} for path, text in files.items()}
    return TerminalProblem(instruction, contents, solution, test, tuple(outputs))


def _content(problem: TerminalProblem) -> str:
    """What decides its split."""
    return problem.instruction + repr(sorted(problem.files.items()))


def _names(rng: random.Random, count: int) -> list[str]:
    """Distinct names of files, without an ending."""
    return rng.sample([f"{word}{number}" for word in _WORDS for number in range(10)], count)


def _text(rng: random.Random, lines: int = 3) -> str:
    return "".join(f"{rng.choice(_WORDS)} {rng.randrange(1000)}\n" for _ in range(lines))


def _move_files(rng: random.Random) -> TerminalProblem:
    ending, target = rng.sample(("log", "tmp", "dat", "txt"), 1)[0], rng.choice(("sorted", "kept", "moved"))
    folders = ("inbox", "inbox/old", "inbox/old/more")
    endings = [ending, ending, *(rng.choice(("md", "cfg", ending)) for _ in range(4)), "md"]
    files = {
        f"{rng.choice(folders)}/{name}.{end}": {"text": _text(rng)}
        for name, end in zip(_names(rng, len(endings)), endings, strict=True)
    }
    wanted = {path.rpartition("/")[2]: file["text"] for path, file in files.items() if path.endswith(f".{ending}")}
    others = {path: file["text"] for path, file in files.items() if not path.endswith(f".{ending}")}
    return TerminalProblem(
        f"Move all files below inbox, at any depth, whose names end with .{ending} into a new folder {target}, under "
        "their own names. Leave all other files where they are.",
        files,
        f"mkdir {target} && find inbox -type f -name '*.{ending}' -exec mv {{}} {target}/ ';'",
        f"wanted, others = {wanted!r}, {others!r}\n"
        f"assert {{name: read({target!r} + '/' + name) for name in os.listdir({target!r})}} == wanted\n"
        "left = {os.path.join(folder, name) for folder, _, names in os.walk('inbox') for name in names}\n"
        "assert {path: read(path) for path in left} == others\n",
    )


def _sum_columns(rng: random.Random) -> TerminalProblem:
    regions = rng.sample(_WORDS, 4)
    rows = [(rng.choice(regions), rng.randrange(1, 500)) for _ in range(20)]
    totals: dict[str, int] = {}
    for region, amount in rows:
        totals[region] = totals.get(region, 0) + amount
    text = "region,amount\n" + "".join(f"{region},{amount}\n" for region, amount in rows)
    expected = "".join(f"{region} {total}\n" for region, total in sorted(totals.items()))
    return TerminalProblem(
        "sales.csv has a line of headings and then a region and an amount on every line. Write totals.txt: for every "
        "region a line with its name, a space and the sum of its amounts, sorted by name.",
        {"sales.csv": {"text": text}},
        "tail -n +2 sales.csv | awk -F, '{ s[$1] += $2 } END { for (r in s) print r, s[r] }' | sort > totals.txt",
        f"assert read('totals.txt') == {expected!r}\nassert read('sales.csv') == {text!r}\n",
    )


def _set_modes(rng: random.Random) -> TerminalProblem:
    runs, rest = rng.choice(("755", "750", "700")), rng.choice(("640", "600", "444"))
    names = _names(rng, 6)
    endings = ["sh", "txt", *(rng.choice(("sh", "txt", "cfg")) for _ in names[2:])]
    files = {f"tools/{n}.{end}": {"text": _text(rng), "mode": "644"} for n, end in zip(names, endings, strict=True)}
    modes = {path: runs if path.endswith(".sh") else rest for path in files}
    return TerminalProblem(
        f"Give all files in the folder tools whose names end with .sh the mode {runs}, and all its other files "
        f"the mode {rest}.",
        files,
        f"chmod {rest} tools/* && chmod {runs} tools/*.sh",
        f"for path, mode in {modes!r}.items():\n    assert oct(os.lstat(path).st_mode & 0o777)[2:] == mode, path\n"
        f"assert sorted(os.listdir('tools')) == {sorted(path.rpartition('/')[2] for path in files)!r}\n",
    )


def _pack_files(rng: random.Random) -> TerminalProblem:
    ending, name = rng.choice(("txt", "md", "csv")), rng.choice(("backup", "release", "bundle"))
    names = _names(rng, 6)
    endings = [ending, ending, "bin", *(rng.choice((ending, "bin")) for _ in names[3:])]
    places = [f"{rng.choice(('', 'a/', 'a/b/'))}{n}.{end}" for n, end in zip(names, endings, strict=True)]
    files = {f"data/{place}": {"text": _text(rng)} for place in places}
    wanted = {place: files[f"data/{place}"]["text"] for place in places if place.endswith(f".{ending}")}
    return TerminalProblem(
        f"Make a gzip-compressed tar archive {name}.tar.gz that holds all files below data, at any depth, whose names "
        f"end with .{ending}, and nothing else. Paths in the archive are relative to data.",
        files,
        f"cd data && find . -type f -name '*.{ending}' | tar -czf ../{name}.tar.gz -T -",
        "import tarfile\n"
        f"with tarfile.open('{name}.tar.gz', 'r:gz') as archive:\n"
        "    held = {os.path.normpath(m.name): archive.extractfile(m).read().decode() for m in archive if m.isreg()}\n"
        f"assert held == {wanted!r}, sorted(held)\n",
    )


def _write_script(rng: random.Random) -> TerminalProblem:
    word, name = rng.choice(_WORDS), rng.choice(("count", "lines", "matches"))
    inputs = ["", *("".join(_text(rng, 1) for _ in range(rng.randrange(1, 30))) for _ in range(3))]
    cases = [(text, sum(word in line for line in text.splitlines())) for text in inputs]
    cases.append((f"{word} {word}\nno\nx{word}y\n", 2))
    return TerminalProblem(
        f"Write a shell script {name}.sh that reads lines from its standard input and prints the number of those that "
        f"contain {word}. It is run with /bin/sh.",
        {},
        f"printf '%s\\n' 'grep -c {word} || true' > {name}.sh",
        f"for text, count in {cases!r}:\n    assert run('/bin/sh', '{name}.sh', stdin=text).split() == [str(count)]\n",
    )


KINDS: dict[str, Callable[[random.Random], TerminalProblem]] = {
    "files": _move_files,
    "text": _sum_columns,
    "permissions": _set_modes,
    "archives": _pack_files,
    "scripts": _write_script,
}
"""Makers of problems by kind."""
