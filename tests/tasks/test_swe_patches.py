"""No patch is masked: one that cannot be applied, does not fit, or stands in the tests' way is worth 0."""

import asyncio
import base64
import dataclasses
import hashlib
import random
import resource
import shutil
import subprocess
import zlib

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environments.repository_program import merged
from k2jax.agents.errors import VerifierError
from k2jax.tasks.swe import calibration, runs
from k2jax.tasks.swe.example import _BASE as BASE
from k2jax.tasks.swe.example import write_example
from k2jax.tasks.swe.verifier import SWEVerifier
from tests.agents.sandbox.backends import backend
from tests.tasks.swe_repositories import scored
from tests.tasks.test_swe import HOOK, added

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    path = write_example(tmp_path_factory.mktemp("swe") / "example")
    [task] = [task for task in load_tasks("swe", (f"path={path}",)) if task.id == "words-empty"]
    task.metadata["pass_to_pass"][:] = ["tests/test_longest.py::test_first"]
    helper = added("words/checks.py", "expected = ''\n").rstrip("\n") + "\n"
    test_patch = task.metadata["test_patch"].replace("longest('') == ''", "longest('') == checks.expected")
    test_patch = test_patch.replace("+from words import longest", "+from words import checks, longest")
    return dataclasses.replace(task, metadata=task.metadata | {"test_patch": test_patch + helper})


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch):
    monkeypatch.setattr(calibration, "BITS", 2)


def new(path, mode="100644", body=None):
    """A patch that adds a file of some mode with one line."""
    return added(path, body or "x").replace("100644", mode)


def deleted(path, text):
    lines = "".join(f"-{line}\n" for line in text.splitlines())
    head = f"diff --git a/{path} b/{path}\ndeleted file mode 100644\n--- a/{path}\n+++ /dev/null\n"
    return f"{head}@@ -1,{len(text.splitlines())} +0,0 @@\n{lines}"


def binary(path, size):
    """A patch of a file of zeros, in git's form: the length of each line, and Base85."""
    compressor, digest, packed = zlib.compressobj(9), hashlib.sha1(b"blob %d\0" % size), b""
    for begin in range(0, size, 1 << 20):
        zeros = bytes(min(1 << 20, size - begin))
        digest.update(zeros)
        packed += compressor.compress(zeros)
    packed += compressor.flush()
    lines = []
    for begin in range(0, len(packed), 52):
        part = packed[begin : begin + 52]
        length = len(part)
        mark = chr(ord("A") + length - 1) if length <= 26 else chr(ord("a") + length - 27)
        lines.append(mark + base64.b85encode(part + bytes(-length % 4)).decode())
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\nindex {'0' * 40}..{digest.hexdigest()}\n"
    return f"{head}GIT binary patch\nliteral {size}\n" + "\n".join(lines) + "\n\nliteral 0\nHcmV?d00001\n\n"


LINK = (
    "diff --git a/{0} b/{0}\nnew file mode 120000\n--- /dev/null\n+++ b/{0}\n"
    "@@ -0,0 +1 @@\n+{1}\n\\ No newline at end of file\n"
)
MODULE = (
    "diff --git a/sub b/sub\nnew file mode 160000\nindex 0000000..1111111\n--- /dev/null\n+++ b/sub\n"
    f"@@ -0,0 +1 @@\n+Subproject commit {'1' * 40}\n"
)
RENAME = (
    "diff --git a/tests/test_count.py b/words/moved.py\nsimilarity index 100%\n"
    "rename from tests/test_count.py\nrename to words/moved.py\n"
)
NO_TESTS = "".join(deleted(path, text) for path, text in BASE.items() if path.startswith("tests/"))
BESIDE = {
    "no tests": NO_TESTS,
    "a file of the tests' path": new("words/checks.py"),
    "a file in place of the tests' folder": NO_TESTS + new("tests"),
    "a folder in place of a test": new("tests/test_longest.py/x"),
    "a folder in place of a helper": new("words/checks.py/x"),
    "a link in place of the tests": NO_TESTS + LINK.format("tests", "/etc"),
    "a link in place of a test": LINK.format("tests/test_longest.py", "/dev/zero"),
    "a link elsewhere": LINK.format("words/etc", "/etc"),
    "a submodule": MODULE,
    "a renamed test": RENAME,
    "a mode": "diff --git a/words/count.py b/words/count.py\nold mode 100644\nnew mode 100755\n",
    "an odd name": new('"words/\\377\\n.txt"'),
    "line ends": new("words/crlf.txt", body="a\r"),
    "NUL": new("words/nul.txt", body="a\0b"),
}
"""What a patch may do beside the right change, and still be right."""
NOT_APPLIED = {
    "a path above": new("../x"),
    "a path in .git": new(".git/hooks/post-checkout"),
    "an absolute path": new("/etc/x"),
    "a long name": new("words/" + "n" * 300),
    "a deep path": new("/".join(["d"] * 1500)),
    "half a patch": new("words/x.py")[:-4],
    "no patch": "no patch",
    "half surrogates": "\ud800",
    "a broken binary": binary("words/x.bin", 10**6).replace("literal 1000000", "literal 99"),
}
"""What makes a patch none."""


def composed(task, patches):
    """What the program says of patches, each in a sandbox of its own."""

    async def run():
        outcomes = []
        for patch in patches:
            async with await backend("bubblewrap").open(SWEVerifier().spec) as sandbox:
                outcomes.append(await runs.composed(task, sandbox, patch))
        return outcomes

    return asyncio.run(run())


def test_the_reference_patch_is_right_whatever_else_a_patch_does_and_wrong_ones_are_not(task):
    everything = "".join(
        BESIDE[name] for name in ("a file of the tests' path", "a link in place of a test", "a submodule")
    )
    results = scored(
        task, [task.metadata["patch"] + everything, everything, task.metadata["patch"] + NOT_APPLIED["a path above"]]
    )
    assert [result.value for result in results] == [1.0, 0.0, 0.0]
    assert results[0].info["dropped"] == ["tests/test_longest.py", "words/checks.py"]
    assert results[2].info["applied"] is False


def test_a_patch_that_is_none_is_said_to_be_none(task):
    outcomes = composed(task, NOT_APPLIED.values())
    assert {name: each["applied"] for name, each in zip(NOT_APPLIED, outcomes, strict=True)} == dict.fromkeys(
        NOT_APPLIED, False
    )
    assert all(each["reason"] for each in outcomes)


@pytest.mark.slow
def test_no_patch_keeps_the_right_change_from_being_right(task):
    results = scored(task, [task.metadata["patch"] + patch for patch in BESIDE.values()])
    assert {n: r.value for n, r in zip(BESIDE, results, strict=True)} == dict.fromkeys(BESIDE, 1.0)


@pytest.mark.slow
def test_patches_that_do_not_fit_are_worth_nothing_and_take_little_of_this_process(task):
    many = "".join(f"diff --git a/f{n} b/f{n}\nnew file mode 100644\nindex 0000000..e69de29\n" for n in range(15_000))
    names = "".join(
        f"diff --git a/tests/{n:0200} b/tests/{n:0200}\nnew file mode 100644\nindex 0000000..e69de29\n"
        for n in range(2000)
    )
    huge = binary("words/big.bin", 1 << 30)
    assert len(huge) < 2 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results = scored(task, [huge, HOOK + many + names, "".join(binary(f"words/{n}.bin", 100 << 20) for n in range(12))])
    assert [result.value for result in results] == [0.0] * 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
    assert len(results[1].info.get("dropped", ())) <= 100


def test_a_tree_that_is_too_large_by_a_patch_is_worth_nothing_and_one_by_the_base_is_an_error(task, monkeypatch):
    monkeypatch.setattr(runs, "LARGEST_TREE", 8 << 10)
    noise = added("words/noise.txt", random.Random(0).randbytes(9000).hex())
    [fits, too_large] = composed(task, [task.metadata["patch"], task.metadata["patch"] + noise])
    assert fits["applied"] and not too_large["applied"] and "more than 8192 compressed bytes" in too_large["reason"]
    monkeypatch.setattr(runs, "LARGEST_TREE", 100)
    with pytest.raises(VerifierError, match="more than 100 compressed bytes"):
        composed(task, [task.metadata["patch"]])


def test_tests_that_do_not_apply_to_the_base_are_the_data_sets_fault(task):
    broken = dataclasses.replace(task, metadata=task.metadata | {"test_patch": "no patch"})
    with pytest.raises(VerifierError, match="cannot be put together"):
        composed(broken, [task.metadata["patch"]])


def test_a_change_survives_unless_it_is_guarded_or_in_the_way_of_the_tests():
    base = {b"a/x.py": b"1", b"a/test_y.py": b"1", b"b.py": b"1", b"c.py": b"1"}
    tests = base | {b"d/e": b"2", b"f": b"2", b"b.py": b"2"}
    patched = {b"a": b"3", b"b.py": b"3", b"d": b"3", b"f/g": b"3", b"new.py": b"3"}  # a/ and c.py are gone
    entries, dropped = merged(base, tests, patched, lambda path: path.startswith("a/test_"))
    assert entries == {b"a/test_y.py": b"1", b"b.py": b"2", b"d/e": b"2", b"f": b"2", b"new.py": b"3"}
    assert sorted(dropped) == [b"a", b"a/test_y.py", b"b.py", b"d", b"f/g"]


def test_the_form_of_the_binary_patches_here_is_gits(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "apply", "-"], input=binary("x.bin", 10**6).encode(), check=True)
    assert (tmp_path / "x.bin").read_bytes() == bytes(10**6)
