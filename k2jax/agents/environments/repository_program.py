"""Runs inside sandboxes, as text, with the standard library and git: work trees of a base commit, patches, and tests.

The first line of stdin is a JSON header, the rest a git pack or a tar archive. The mode is the header's ``mode``:
``checkout`` makes the agent's repository, ``diff`` prints its changes, ``compose`` puts base, patch and tests together,
and ``run`` runs one file of tests in a tree that no code of the agent has touched before.
"""

import base64
import ctypes
import io
import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tarfile

TEST_FOLDERS = ("test", "tests", "testing", "e2e")
CONFIGURATION = (
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "pytest.py",
    "_pytest",
    "pytest",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "noxfile.py",
    ".coveragerc",
    ".gitattributes",
    ".gitmodules",
    "__pycache__",
)
ARCHIVE = "/work/tree.tar.gz"
MOST_SECONDS = 30  # of the processor for applying a patch: no clock, which a busy machine does not stop
MOST_DROPPED = 100  # names of what is left out, and characters of one
CHILD = r"""
import json, os, sys
pipe = int(sys.argv[1])
sys.path += [sys.argv[2]] if sys.argv[2] else [p for p in json.loads(sys.argv[3]) if p not in sys.path]
import pytest, unittest, unittest.mock, doctest, pdb, _pytest.assertion.util
sys.pycache_prefix = sys.argv[4]  # compiled code that a patch has planted is not read
class Reporter:
    def pytest_runtest_logreport(self, report, write=os.write, dumps=json.dumps, pipe=pipe):
        passed = report.outcome == "passed" and not hasattr(report, "wasxfail")
        write(pipe, (dumps([report.nodeid, report.when, passed]) + "\n").encode())
    def pytest_collectreport(self, report):
        if report.failed:
            print(report.longreprtext[-2000:], file=sys.stderr)
options = ["-q", "-p", "no:cacheprovider", "--rootdir=" + os.getcwd()]
for plugin in sys.argv[6:]:
    options += ["-p", plugin]
os.write(pipe, b'["", "ready", true]\n')
sys.path.insert(0, os.getcwd())
sys.exit(pytest.main([*options, sys.argv[5]], plugins=[Reporter()]))
"""


def is_protected(path: str) -> bool:
    """Whether a path of a repository is a test or configures tests: patches of agents do not reach it."""
    *folders, name = path.split("/")
    stem = name.rpartition(".")[0] or name
    is_test = stem in TEST_FOLDERS or stem.startswith("test_") or stem.endswith(("_test", "_tests"))
    special = is_test or name.endswith((".pth", ".pyc", ".dist-info", ".egg-info"))
    return special or any(part in CONFIGURATION or part in TEST_FOLDERS for part in (*folders, name))


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
        environment = self._environment | {"GIT_INDEX_FILE": f"{self.folder}/{index}"}
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


def checkout(header: dict, payload: bytes) -> None:
    """The agent's repository, whose only branch ends at the base commit."""
    repository = Repository(f"{header['tree']}/.git", header["tree"], payload, header["base"])
    mark_shallow(repository, header["shallow"])
    repository.git("update-ref", "refs/heads/main", header["base"])
    repository.git("symbolic-ref", "HEAD", "refs/heads/main")
    repository.git("reset", "-q", "--hard")
    unpack_packages(header["packages"], header["folder"])


def mark_shallow(repository: Repository, commits: list) -> None:
    """Takes note of those commits of the pack whose parents are not in it, so that git does not miss them."""
    asked = "".join(f"{commit}\n" for commit in commits).encode()
    told = repository.git("cat-file", "--batch-check=%(objecttype) %(objectname)", stdin=asked).decode().splitlines()
    kept = [line.split()[1] for line in told if line.startswith("commit ")]
    if kept:
        with open(f"{repository.folder}/shallow", "w") as file:
            file.writelines(f"{commit}\n" for commit in kept)


def unpack_packages(packages: str, folder: str) -> None:
    """Unpacks Python packages, a tar archive in Base64; nothing where it is empty."""
    if packages:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packages))) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
            archive.extractall(folder)


def diff(header: dict, payload: bytes) -> None:
    """Prints what the work tree changes, whatever has become of the agent's own git directory."""
    if os.path.islink(header["tree"]):
        sys.exit("the work tree is a link")
    folder = f"/tmp/{secrets.token_hex(8)}"
    repository = Repository(folder, header["tree"], payload, header["base"])
    repository.git("read-tree", header["base"])
    repository.git("add", "-A")
    sys.stdout.buffer.write(repository.git("diff", "--cached", "--binary", "--no-renames", header["base"]))


def compose(header: dict, payload: bytes) -> None:
    """Writes a tar archive of the base with the task's tests, and the patch less what is protected.

    Where the patch cannot be put there, that is the patch's fault if base and tests alone can be.
    """
    repository = Repository("/work/git", "/work/tree", payload, header["base"])
    tests = repository.patched("tests", base64.b64decode(header["test_patch"]))
    try:
        patched = repository.patched("patched", base64.b64decode(header["patch"]), MOST_SECONDS)
        entries, dropped = merged(repository.patched("base", b""), tests, patched)
        told = {"applied": True, "dropped": [os.fsdecode(path)[:MOST_DROPPED] for path in dropped[:MOST_DROPPED]]}
        write_archive(repository, entries, header["largest"])
    except Exception as error:
        told = {"applied": False, "reason": explained(error)}
        write_archive(repository, tests, header["largest"])
    subprocess.run(["rm", "-rf", repository.folder, repository.tree], check=True)  # the tests need the room
    print(json.dumps(told))


def merged(base: dict, tests: dict, patched: dict) -> tuple:
    """The tests' tree with what a patch changes, and the paths of changes that are left out.

    They are those of protected paths, of paths that the tests change, and what would stand in the way of either.
    """
    entries, mine, dropped = dict(tests), set(), []
    for path in sorted(base.keys() | patched.keys()):
        if patched.get(path) == base.get(path):
            continue
        if is_protected(os.fsdecode(path)) or tests.get(path) != base.get(path):
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


def run(header: dict, payload: bytes) -> None:
    """Runs a file of tests, and prints the secret with the outcomes that were reported."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the tests' process cannot open this one in /proc
    folder = f"/work/{secrets.token_hex(8)}"
    with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
        archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        archive.extractall(folder)
    with open(f"{folder}/{header['file']}", "a") as file:
        file.write(header["canaries"])
    source, sink = os.pipe()
    packages = f"/tmp/{secrets.token_hex(8)}" if header["packages"] else ""
    unpack_packages(header["packages"], packages)
    words = [str(sink), packages, json.dumps(_site_folders()), f"/tmp/{secrets.token_hex(8)}", header["file"]]
    home = f"/tmp/{secrets.token_hex(8)}"
    os.mkdir(home)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", CHILD, *words, *header["plugins"]],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        pass_fds=(sink,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.close(sink)
    with open(source, errors="replace") as lines:
        reports = [line for line in lines]
    reason = child.stderr.read()[-1000:].decode(errors="replace")
    shutil.rmtree(folder, ignore_errors=True)
    verdict = {"secret": header["secret"], "reports": reports, "code": child.wait(), "reason": reason}
    print("\n" + json.dumps(verdict))


def _site_folders() -> list:
    """Where an image has its packages; ``-S`` leaves them out, and with them what runs unasked at a start."""
    import site

    return site.getsitepackages()


def main() -> None:
    """Does what the header says."""
    header = json.loads(sys.stdin.buffer.readline())
    payload = sys.stdin.buffer.read()
    {"checkout": checkout, "diff": diff, "compose": compose, "run": run}[header["mode"]](header, payload)


if __name__ == "__main__":
    main()
