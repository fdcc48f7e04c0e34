"""Row 32: git repositories of data sets that run commands, lead elsewhere, or grow without end."""

from collections.abc import Callable
from pathlib import Path
import random
import shutil
from typing import NamedTuple

from k2jax.agents.environment import Services
from k2jax.agents.environments import git_history
from k2jax.agents.environments.git_history import packed_history
from k2jax.agents.environments.repository import FOLDER, RepositoryEnvironment
from k2jax.agents.task import Task
from k2jax.errors import InfrastructureError, UserError
from tests.agents import hostile_git
from tests.agents.hostile_git import git, loose_object, make_repository
from tests.hostile.attack import Attack, Outcome, Place, expect

NOTHING_RUNS = "no command of it runs on this machine; it is packed, or refused in one line"
BEGINS = "the episode begins, or fails in one line"
REFUSED = "it is refused in one line, and nothing of it is read"


class Prepared(NamedTuple):
    """A repository, the commit that is asked for, and the file whose presence shows that a command of it ran."""

    repository: Path
    base: str
    marker: Path


def _commands(name: str) -> Callable[[Path], Prepared]:
    def prepare(folder: Path) -> Prepared:
        repository, marker, script = (folder / part for part in ("data/repository", "marker", "script"))
        base = make_repository(repository)[1]
        script.write_text(f"#!/bin/sh\ntouch {marker}\nexit 1\n")
        script.chmod(0o755)
        hostile_git.COMMANDS[name](repository, str(script))
        marker.unlink(missing_ok=True)  # by git as this attack itself uses it
        return Prepared(repository, base, marker)

    return prepare


def _leaks(name: str) -> Callable[[Path], Prepared]:
    def prepare(folder: Path) -> Prepared:
        repository, private = folder / "data/repository", folder / "private"
        make_repository(repository)
        make_repository(private)
        (private / "file.txt").write_text("secret")
        git(private, "commit", "-q", "-am", "secret")
        base = git(private, "rev-parse", "HEAD")
        hostile_git.LEAKS[name](repository, private)
        return Prepared(repository, base, folder / "marker")

    return prepare


def _blob(body: Callable[[], bytes]) -> Callable[[Path], Prepared]:
    """A commit of one large file."""

    def prepare(folder: Path) -> Prepared:
        repository = folder / "data/repository"
        make_repository(repository)
        blob = loose_object(repository, "blob", body())
        tree = git(repository, "mktree", stdin=f"100644 blob {blob}\tlarge\n".encode())
        return Prepared(repository, git(repository, "commit-tree", tree, "-m", "large"), folder / "marker")

    return prepare


def _two_repositories(folder: Path) -> str:
    make_repository(folder / "data/repository")
    return make_repository(folder / "private")[1]


async def _packed(repository: str, base: str, folder: Path) -> str:
    """Why a history is refused; empty where it is packed."""
    try:
        await packed_history(repository, base, str(folder))
    except UserError as error:
        return str(error)
    return ""


async def _runs_nothing(place: Place) -> Outcome:
    made = place.prepared
    words = await _packed(str(made.repository), made.base, made.repository.parent)
    return expect(not made.marker.exists() and "\n" not in words, f"ran: {made.marker.exists()}; {words}")


async def _is_refused(place: Place) -> Outcome:
    words = await _packed(str(place.prepared.repository), place.prepared.base, place.prepared.repository.parent)
    return expect(words and "\n" not in words, words or "it was packed")


async def _elsewhere(place: Place) -> Outcome:
    for path in ("../private", "repository/../../private", "/", ".", "..", "x\0y"):
        words = await _packed(path, place.prepared, place.folder / "data")
        if not words or "\n" in words:
            return Outcome(f"{path!r}: {words or 'it was packed'}")
    return Outcome()


async def _opened(place: Place) -> Outcome:
    """What the environment of a task of the repository does as it begins."""
    made, words = place.prepared, ""
    metadata = {"repository": str(made.repository), "base": made.base, FOLDER: str(made.repository.parent)}
    fields = {"environment": "repository", "tools": ("shell",), "metadata": metadata}
    task = Task("one", "swe", ({"role": "user", "content": "x"},), "swe", **fields)
    environment = RepositoryEnvironment(Services(lambda: place.backend, None))
    try:
        await environment.reset(task, 0)
    except (UserError, InfrastructureError) as error:
        words = str(error)
    finally:
        await environment.close()
    return expect(not made.marker.exists() and "\n" not in words, f"ran: {made.marker.exists()}; {words}")


_NOISE = git_history.LARGEST_PACK - (4 << 20)
ATTACKS = [
    *(
        Attack(32, f"a repository with {name}", NOTHING_RUNS, _runs_nothing, prepare=_commands(name))
        for name in hostile_git.COMMANDS
    ),
    *(
        Attack(32, f"another history by {name}", REFUSED, _is_refused, prepare=_leaks(name))
        for name in hostile_git.LEAKS
    ),
    Attack(32, "a record's repository elsewhere", REFUSED, _elsewhere, prepare=_two_repositories),
    *(
        Attack(32, f"a task of {name}", right, _opened, prepare=prepare, in_sandbox=True, seconds=240)
        for name, right, prepare in (
            ("a partial clone", NOTHING_RUNS, _commands("a partial clone")),
            ("a history of 250 MB", BEGINS, _blob(lambda: random.Random(0).randbytes(_NOISE))),
            ("a file that inflates to a gigabyte", BEGINS, _blob(lambda: bytes(1 << 30))),
        )
    ),
]
if shutil.which("git") is None:
    raise RuntimeError("the attacks of row 32 need git")
