"""Runs inside sandboxes, as text, with the standard library and git: work trees of a base commit, and patches.

It is written for Python 3.7 and later, which images of old repositories have.

The first line of stdin is a JSON header, the rest a git pack. The mode is the header's ``mode``: ``checkout`` makes the
agent's repository, ``diff`` prints its changes, and ``compose`` puts base, patch and tests together.
"""

import base64
import json
import os
import re
import resource
import secrets
import subprocess
import sys
import tarfile

TEST_FOLDERS = ("test", "tests", "testing", "e2e")
SOURCE_FOLDERS = ("src", "lib", "python")
SETTINGS = ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml")
MIXED_SETTINGS = ("pyproject.toml", "setup.cfg", "tox.ini")  # of pytest and of other tools
SETTINGS_OF_GIT = (".gitattributes", ".gitmodules")
RUNNER = ("pytest", "_pytest", "pluggy", "sitecustomize", "usercustomize")
COMPILED = (".pth", ".pyc", ".dist-info", ".egg-info")
ARCHIVE = "/work/tree.tar.gz"
MAX_SECONDS = 30  # of the processor for applying a patch: no clock, which a busy machine does not stop
MAX_DROPPED = 100  # names of what is left out, and characters of one


class Guard:
    """Which paths of a repository patches of agents do not reach: tests of a task, and what configures them.

    They are the files of the listed tests and all that lies in their folder of tests, settings of pytest in the folders
    above them, and what would take the place of the test runner. What the reference patch changes is code, whatever
    its name is, and so is a folder in which it changes some.
    """

    def __init__(self, files: list, reference: set, base: set):
        """Args: ``files`` of the listed tests, and the paths that the reference patch changes and that the base has."""
        self.files, self.reference, self.base = set(files), reference, base
        ways = [[os.fsdecode(folder) for folder in folders_of(os.fsencode(file))] for file in files]
        self.above = {folder for way in ways for folder in way} | {""}
        code = [path for path in reference if os.path.basename(path) not in (*SETTINGS, *MIXED_SETTINGS)]
        of_code = {os.fsdecode(folder) for path in code for folder in folders_of(os.fsencode(path))}
        of_tests = [[f for f in way if os.path.basename(f) in TEST_FOLDERS and f not in of_code] for way in ways]
        self.folders = {folders[0] for folders in of_tests if folders}

    def holds(self, path: str) -> bool:
        """Whether changes of a path are left out."""
        folder, name = os.path.split(path)
        if path in self.reference:
            return False
        if path in self.files or (name in SETTINGS and folder in self.above) or name in SETTINGS_OF_GIT:
            return True
        if any(part == "__pycache__" or part.endswith(COMPILED) for part in path.split("/")):
            return True
        return any(f"{path}/".startswith(f"{tests}/") for tests in self.folders) or self.is_runner(path)

    def is_runner(self, path: str) -> bool:
        """Whether a path would be imported in place of the test runner, which the base does not have there."""
        parts = path.split("/")
        depth = 1 if parts[0] in SOURCE_FOLDERS and len(parts) > 1 else 0
        top = "/".join(parts[: depth + 1])
        return parts[depth].partition(".")[0] in RUNNER and not any(
            p == top or p.startswith(f"{top}/") for p in self.base
        )

    def mixes(self, path: str) -> bool:
        """Whether a path may have sections of pytest's beside those of other tools."""
        folder, name = os.path.split(path)
        return name in MIXED_SETTINGS and folder in self.above and path not in self.reference


def with_sections_of(text: str, original: str) -> str:
    """A file of settings with the sections of pytest's of another one in the place of its own; the same if they are."""
    mine, own = ([part for part in sections_of(each) if is_section_of_pytest(part)] for each in (text, original))
    if "".join(mine).split() == "".join(own).split():
        return text
    foreign = [part for part in sections_of(text) if not is_section_of_pytest(part)]
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in (*foreign, *own))


def sections_of(text: str) -> list:
    """The parts of a file of settings, each with the header that it begins with."""
    return [part for part in re.split(r"(?m)^(?=[ \t]*\[\[?[^\[\]\n]+\]\]?[ \t]*(?:[#;].*)?$)", text) if part]


def is_section_of_pytest(section: str) -> bool:
    """Whether a part of a file of settings is one that pytest reads."""
    header = re.sub(r"[\s\"']", "", section.strip().partition("\n")[0])
    return re.match(r"\[+(tool[.:])?pytest[\].]", header) is not None


class Repository:
    """A git directory of our own, made from a pack, over a work tree that need not be trusted."""

    def __init__(self, folder: str, tree: str, pack: bytes, base: str):
        """Unpacks; ``folder`` becomes the git directory."""
        self.folder, self.tree, self.base = folder, tree, base
        self._arguments = ["git", f"--git-dir={folder}", f"--work-tree={tree}", "-c", "core.hooksPath=/dev/null"]
        self._environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/nowhere",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TEMPLATE_DIR": "",
        }
        os.makedirs(tree, exist_ok=True)
        subprocess.run(["git", "init", "-q", "--bare", folder], check=True, env=self._environment)
        self.git("config", "core.bare", "false")
        self.git("index-pack", "--stdin", stdin=pack)

    def git(self, *words: str, stdin: bytes = b"", index: str = "index", seconds: int = -1) -> bytes:
        """The output of a git command, which may use so much of the processor; raises CalledProcessError."""
        command = [*self._arguments, *words]
        environment = {**self._environment, "GIT_INDEX_FILE": f"{self.folder}/{index}"}
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            check=True,
            env=environment,
            cwd=self.tree,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)) if seconds > 0 else None,
        ).stdout

    def patched(self, name: str, patch: bytes, seconds: int = -1) -> dict:
        """The base with a patch, in an index of this name: mode and object by path; raises CalledProcessError."""
        self.git("read-tree", self.base, index=name)
        if patch.strip():
            self.git("apply", "--cached", "--whitespace=nowarn", "-", stdin=patch, index=name, seconds=seconds)
        lines = self.git("ls-files", "-s", "-z", index=name).split(b"\0")[:-1]
        return {path: entry[:-2] for entry, _, path in (line.partition(b"\t") for line in lines)}

    def text(self, entry: bytes) -> str:
        """The text of a file of a tree, whatever its bytes are."""
        return self.git("cat-file", "blob", entry.split()[1].decode()).decode("utf-8", "surrogateescape")


def checkout(header: dict, payload: bytes) -> None:
    """The agent's repository, whose only branch ends at the base commit."""
    repository = Repository(f"{header['tree']}/.git", header["tree"], payload, header["base"])
    mark_shallow(repository, header["shallow"])
    repository.git("update-ref", "refs/heads/main", header["base"])
    repository.git("symbolic-ref", "HEAD", "refs/heads/main")
    repository.git("reset", "-q", "--hard")


def mark_shallow(repository: Repository, commits: list) -> None:
    """Takes note of those commits of the pack whose parents are not in it, so that git does not miss them."""
    asked = "".join(f"{commit}\n" for commit in commits).encode()
    result = repository.git("cat-file", "--batch-check=%(objecttype) %(objectname)", stdin=asked).decode().splitlines()
    kept = [line.split()[1] for line in result if line.startswith("commit ")]
    if kept:
        with open(f"{repository.folder}/shallow", "w") as file:
            file.writelines(f"{commit}\n" for commit in kept)


def diff(header: dict, payload: bytes) -> None:
    """Prints what the work tree changes, whatever has become of the agent's own git directory.

    A patch of files that are not UTF-8 is printed in git's form for binary files, which is ASCII.
    """
    if os.path.islink(header["tree"]):
        sys.exit("the work tree is a link")
    repository = Repository(f"/tmp/{secrets.token_hex(8)}", header["tree"], payload, header["base"])
    repository.git("read-tree", header["base"])
    repository.git("add", "-A")
    words = ("diff", "--cached", "--binary", "--no-renames", "--no-ext-diff", "--no-textconv", header["base"])
    patch = repository.git(*words)
    try:
        patch.decode()
    except UnicodeDecodeError:
        os.makedirs(f"{repository.folder}/info", exist_ok=True)
        with open(f"{repository.folder}/info/attributes", "w") as file:
            file.write("* -diff\n")
        patch = repository.git(*words)
    sys.stdout.buffer.write(patch)


def compose(header: dict, payload: bytes) -> None:
    """Writes a tar archive of the base with the task's tests, and the patch less what is guarded.

    Where the patch cannot be put there, that is the patch's fault if base and tests alone can be.
    """
    repository = Repository("/work/git", "/work/tree", payload, header["base"])
    base = repository.patched("base", b"")
    tests = repository.patched("tests", base64.b64decode(header["test_patch"]))
    reference = repository.patched("reference", base64.b64decode(header["reference"]))
    changed = {os.fsdecode(path) for path in base.keys() | reference.keys() if base.get(path) != reference.get(path)}
    guard = Guard(header["files"], changed, {os.fsdecode(path) for path in base})
    try:
        patched = repository.patched("patched", base64.b64decode(header["patch"]), MAX_SECONDS)
        patched, settings = with_original_settings(repository, guard, tests, patched)
        entries, dropped = merged(base, tests, patched, guard.holds)
        dropped += settings
        hidden = [os.fsdecode(path) for path in tests if tests[path] != base.get(path)]
        result = {"applied": True, "dropped": [os.fsdecode(path)[:MAX_DROPPED] for path in dropped[:MAX_DROPPED]]}
        result["hidden"] = sorted({*hidden, *header["files"]})
        write_archive(repository, entries, header["largest"])
    except Exception as error:
        result = {"applied": False, "reason": explained(error)}
        write_archive(repository, tests, header["largest"])
    subprocess.run(["rm", "-rf", repository.folder, repository.tree], check=True)  # the tests need the room
    print(json.dumps(result))


def with_original_settings(repository: Repository, guard: Guard, tests: dict, patched: dict) -> tuple:
    """A patched tree, whose files of settings have pytest's sections as the tests' tree has them, and their names."""
    settled, names = dict(patched), []
    for path in sorted(tests.keys() | patched.keys()):
        before, after = tests.get(path, b""), patched.get(path, b"")
        if before == after or not guard.mixes(os.fsdecode(path)):
            continue
        original, text = (repository.text(entry) if entry.startswith(b"100") else "" for entry in (before, after))
        mended = with_sections_of(text, original)
        if mended != text:
            new = repository.git("hash-object", "-w", "--stdin", stdin=mended.encode("utf-8", "surrogateescape"))
            settled[path] = b"100644 " + new.strip()
            names.append(path + b" (sections of pytest)")
    return settled, names


def merged(base: dict, tests: dict, patched: dict, is_guarded) -> tuple:
    """The tests' tree with what a patch changes, and the paths of changes that are left out.

    They are those of guarded paths, of paths that the tests change, and what would stand in the way of either.
    """
    entries, mine, dropped = dict(tests), set(), []
    for path in sorted(base.keys() | patched.keys()):
        if patched.get(path) == base.get(path):
            continue
        if is_guarded(os.fsdecode(path)) or tests.get(path) != base.get(path):
            dropped.append(path)
        elif path in patched:
            entries[path] = patched[path]
            mine.add(path)
        else:
            entries.pop(path, None)
    folders = {folder for path in entries.keys() - mine for folder in folders_of(path)}
    for path in sorted(mine):
        if path in folders or any(folder in entries and folder not in mine for folder in folders_of(path)):
            del entries[path]
            dropped.append(path)
    return entries, dropped


def folders_of(path: bytes) -> list:
    """All folders above a path."""
    parts = path.split(b"/")
    return [b"/".join(parts[:count]) for count in range(1, len(parts))]


def write_archive(repository: Repository, entries: dict, largest: int) -> None:
    """Writes a compressed archive of a tree to ``ARCHIVE``; raises whatever goes wrong."""
    lines = b"".join(entry + b"\t" + path + b"\0" for path, entry in entries.items())
    subprocess.run(["rm", "-rf", repository.tree, ARCHIVE], check=True)
    os.makedirs(repository.tree)
    repository.git("read-tree", "--empty", index="tree")
    repository.git("update-index", "-z", "--index-info", stdin=lines, index="tree")
    repository.git("checkout-index", "-a", "-f", index="tree")
    with tarfile.open(ARCHIVE, "w:gz", compresslevel=1) as archive:
        archive.add(repository.tree, ".")
    if os.path.getsize(ARCHIVE) > largest:
        raise ValueError(f"the tree has more than {largest} compressed bytes")


def explained(error: Exception) -> str:
    """Why something failed."""
    text = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else ""
    return (text or f"{type(error).__name__}: {error}")[-300:]


def main() -> None:
    """Does what the header says."""
    header = json.loads(sys.stdin.buffer.readline())
    payload = sys.stdin.buffer.read()
    {"checkout": checkout, "diff": diff, "compose": compose}[header["mode"]](header, payload)


if __name__ == "__main__":
    main()
