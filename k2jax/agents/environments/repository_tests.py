"""Runs inside sandboxes, as text, with the standard library: pytest for an agent, builds, and one file of tests.

It is written for Python 3.7 and later, which images of old repositories have.

The first line of stdin is a JSON header, the rest a tar archive. The mode is the header's ``mode``: ``equip`` puts
pytest and the packages of a work tree where the agent's Python finds them, ``build`` runs a command in a tree and packs
what comes of it, and ``run`` runs one file of tests in a tree that no code of the agent has touched before.
"""

import base64
import configparser
import ctypes
import io
import json
import os
import re
import secrets
import select
import subprocess
import sys
import tarfile

ARCHIVE = "/work/built.tar.gz"
WRITABLE = ("/work", "/tmp", "/var/tmp", "/dev/shm")
SOURCE_FOLDERS = ("src", "lib", "python")
BUILD_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
MAX_TEXT = 1 << 25  # bytes of reports, and of what is kept of errors
CHILD = r"""
import json, os, sys
pipe, options = int(sys.argv.pop()), json.loads(sys.argv.pop())
sys.path[:0] = options["runner"]
sys.path += [path for path in options["packages"] if path not in sys.path]
import pytest, unittest, unittest.mock, doctest, pdb, _pytest.assertion.util
sys.pycache_prefix = options["cache"]  # compiled code that a patch has planted is not read
class Reporter:
    def pytest_runtest_logreport(self, report, write=os.write, dumps=json.dumps, pipe=pipe):
        kind = report.outcome
        if hasattr(report, "wasxfail"):
            kind = {"skipped": "xfailed", "passed": "xpassed"}.get(kind, kind)
        write(pipe, (dumps([report.nodeid, report.when, kind]) + "\n").encode())
        self.pytest_collectreport(report)
    def pytest_collectreport(self, report):
        if report.failed:
            print(report.longreprtext[-2000:], file=sys.stderr)
words = ["-q", "-o", "cache_dir=" + options["cache"], "--maxfail=0", "--rootdir=" + os.getcwd()]
for plugin in options["plugins"]:
    words += ["-p", plugin]
words.append(options["file"])
os.write(pipe, b'["", "ready", "passed"]\n')
sys.path[:0] = [path for path in options["sources"] if path not in options["runner"]]
sys.argv[:] = ["pytest", *words]
code = pytest.main(words, plugins=[Reporter()])
sys.stderr.flush()
os._exit(int(code))  # threads and processes that tests leave behind are not waited for
"""


def unpack(payload: bytes, folder: str, trusted: bool = False) -> None:
    """Unpacks a tar archive; nothing where it is empty."""
    if payload:
        with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
            name = "fully_trusted_filter" if trusted else "data_filter"
            archive.extraction_filter = getattr(tarfile, name, None)  # Python 3.11.2 has none
            archive.extractall(folder)


def wipe(header: dict) -> None:
    """Leaves nothing in the sandbox's own folders by which a later run would know what an earlier one has seen."""
    for folder in WRITABLE if header["private"] else ():
        if not os.access(folder, os.W_OK):
            continue
        left = [os.path.join(folder, name) for name in os.listdir(folder)]
        if left:
            subprocess.run(["chmod", "-R", "u+rwx", "--", *left], stderr=subprocess.DEVNULL)
            subprocess.run(["rm", "-rf", "--", *left], check=True)
        if os.stat(folder).st_uid == os.getuid():
            for name in os.listxattr(folder):
                os.removexattr(folder, name)
            os.chmod(folder, 0o1777)
            os.utime(folder, (0, 0))


def source_folders(tree: str, named: list) -> list:
    """The tree and the folders in it from which its packages are imported: named ones, or what its build files say."""
    folders = list(named)
    if not folders:
        texts = [read(os.path.join(tree, name)) for name in BUILD_FILES]
        pattern = r"\b(?:package.dir|where|from)\b[^=\n]*\n?[^=\n]*=[\s\[{\"':=]*([\w./-]+)"
        folders = [*SOURCE_FOLDERS, *(name for text in texts for name in re.findall(pattern, text))]
    paths = [os.path.normpath(os.path.join(tree, folder)) for folder in folders]
    inside = [path for path in dict.fromkeys(paths) if path.startswith(f"{tree}/") and (named or holds_package(path))]
    return [*inside, tree]


def holds_package(folder: str) -> bool:
    """Whether a folder has packages or modules, and is none itself."""
    if not os.path.isdir(folder) or os.path.exists(os.path.join(folder, "__init__.py")):
        return False
    names = os.listdir(folder)
    return any(n.endswith(".py") or os.path.exists(os.path.join(folder, n, "__init__.py")) for n in names)


def read(path: str) -> str:
    """The text of a file, which may not be there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def project(tree: str) -> dict:
    """Name, version and entry points of a tree's package, as its build files say; what they compute is left out."""
    table, setup = {}, configparser.ConfigParser(interpolation=None, strict=False)
    try:
        import tomllib  # of Python 3.11; images with an older one have their packages installed

        table = tomllib.loads(read(os.path.join(tree, "pyproject.toml"))).get("project", {})
        setup.read_string(read(os.path.join(tree, "setup.cfg")))
    except (ImportError, ValueError, configparser.Error):
        pass
    table = table if isinstance(table, dict) else {}
    arguments = dict(re.findall(r"\b(name|version)\s*=\s*[\"']([^\"'\n]+)", read(os.path.join(tree, "setup.py"))))
    name, version = (
        str(table.get(key) or setup.get("metadata", key, fallback="") or arguments.get(key, ""))
        for key in ("name", "version")
    )
    declared = table.get("entry-points", {})
    points = {"console_scripts": table.get("scripts", {}), **(declared if isinstance(declared, dict) else {})}
    if setup.has_section("options.entry_points"):
        for group, lines in setup.items("options.entry_points"):
            points[group] = dict(re.findall(r"(\S+)\s*=\s*(\S+)", lines))
    points = {group: lines for group, lines in points.items() if isinstance(lines, dict)}
    return {"name": name, "version": version if re.fullmatch(r"\d[\w.+!-]*", version) else "0", "points": points}


def describe(tree: str, folder: str) -> None:
    """Writes what ``importlib.metadata`` reads of an installed package for the one that a tree holds."""
    package = project(tree)
    if not re.fullmatch(r"[\w.-]+", package["name"]):
        return
    path = f"{folder}/{re.sub('[-_.]+', '_', package['name'])}-{package['version']}.dist-info"
    os.makedirs(path)
    with open(f"{path}/METADATA", "w") as file:
        file.write(f"Metadata-Version: 2.1\nName: {package['name']}\nVersion: {package['version']}\n")
    with open(f"{path}/entry_points.txt", "w") as file:
        for group, points in package["points"].items():
            file.write("\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]))


def equip(header: dict, payload: bytes) -> None:
    """Unpacks pytest, and a module that tells every start of Python where the packages of the agent's tree are."""
    unpack(payload, header["folder"])
    folders = source_folders(header["tree"], header["pythonpath"])
    describe(header["tree"], header["folder"])
    with open(f"{header['folder']}/sitecustomize.py", "w") as file:
        file.write(f"import sys\n\nsys.path += {folders!r}\n")  # last: an agent in Python has packages of its own


def environment(folders: list) -> dict:
    """The variables of what runs in a tree: an empty home, and ``python`` is this interpreter."""
    home = f"/tmp/{secrets.token_hex(8)}"
    os.makedirs(f"{home}/bin")
    for name in ("python", "python3"):
        os.symlink(sys.executable, f"{home}/bin/{name}")
    path = f"{home}/bin:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "PYTHONPATH": os.pathsep.join(folders)}


def build(header: dict, payload: bytes) -> None:
    """Runs a command in a tree without the hidden tests, and packs the tree that comes of it."""
    wipe(header)
    tree = f"/work/{secrets.token_hex(8)}"
    unpack(payload, tree, trusted=True)
    for path in header["hidden"]:
        if os.path.lexists(os.path.join(tree, path)):
            os.remove(os.path.join(tree, path))
    folders = source_folders(tree, header["pythonpath"])
    child, _, errors = finished(["sh", "-c", f"exec 1>&2; {header['build']}"], tree, folders)
    with tarfile.open(ARCHIVE, "w:gz", compresslevel=1) as archive:
        archive.add(tree, ".")
    size = os.path.getsize(ARCHIVE)
    if child.returncode or size > header["largest"]:
        sys.exit(f"exit code {child.returncode}, {size} compressed bytes: {errors[-200:]}")


def run(header: dict, payload: bytes) -> None:
    """Runs a file of tests with some edits, and prints the secret with the outcomes that were reported."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the tests' process cannot open this one in /proc
    wipe(header)
    tree, packages = f"/work/{secrets.token_hex(8)}", f"/tmp/{secrets.token_hex(8)}"
    for part in (payload[header["size"] :], payload[: header["size"]]):  # what was built, below what was composed
        unpack(part, tree, trusted=True)
    if header["edits"]:
        edit(os.path.join(tree, header["file"]), header["edits"])
    sources, places = source_folders(tree, header["pythonpath"]), _site_folders()
    if header["packages"]:
        unpack(base64.b64decode(header["packages"]), packages)
        describe(tree, packages)
        places = [packages]
    options = {
        "runner": [path for path in sources if os.path.exists(f"{path}/_pytest/__init__.py")],
        "packages": places,
        "sources": sources,
        "cache": f"/tmp/{secrets.token_hex(8)}",
        "plugins": header["plugins"],
        "file": header["file"],
    }
    command = [sys.executable, "-I", "-S", "-B", "-c", CHILD, json.dumps(options)]
    child, reports, errors = finished(command, tree, [*sources, *places])
    verdict = {"secret": header["secret"], "reports": reports.splitlines(), "code": child.returncode}
    print("\n" + json.dumps({**verdict, "reason": errors[-1000:]}))


def finished(command: list, tree: str, folders: list) -> tuple:
    """A process that has ended in a tree, and what it wrote to the pipe that its last argument names, and of errors."""
    source, sink = os.pipe()
    child = subprocess.Popen(
        [*command, str(sink)],
        cwd=tree,
        env=environment(folders),
        pass_fds=(sink,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(sink)
    reports, errors = watched(child, source, child.stderr.fileno())
    return child, reports.decode(errors="replace"), errors.decode(errors="replace")


def edit(path: str, edits: list) -> None:
    """Replaces parts of a file, given as first byte, end and text; its time stays."""
    status = os.stat(path)
    with open(path, "rb") as file:
        text = file.read()
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new.encode() + text[end:]
    with open(path, "wb") as file:
        file.write(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def watched(child: subprocess.Popen, reports: int, errors: int) -> tuple:
    """What a process has written to two pipes when it ends, though others that it leaves may hold them open."""
    texts = {reports: bytearray(), errors: bytearray()}
    pipes, after = [reports, errors], 0
    while after < 64:
        ended = child.poll() is not None
        ready = select.select(pipes, [], [], 0 if ended else 0.1)[0]
        for pipe in ready:
            data = os.read(pipe, 1 << 16)
            if not data:
                pipes.remove(pipe)
            elif len(texts[pipe]) < MAX_TEXT:
                texts[pipe] += data
        if ended and not ready:
            break
        after += ended
    return texts[reports], texts[errors]


def _site_folders() -> list:
    """Where an image has its packages; ``-S`` leaves them out, and with them what runs unasked at a start."""
    import site

    return site.getsitepackages()


def main() -> None:
    """Does what the header says."""
    header = json.loads(sys.stdin.buffer.readline())
    payload = sys.stdin.buffer.read()
    {"equip": equip, "build": build, "run": run}[header["mode"]](header, payload)


if __name__ == "__main__":
    main()
