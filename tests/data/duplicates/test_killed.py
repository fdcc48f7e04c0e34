"""Work that is killed is taken up where it was, and its files are those of work that was not."""

from pathlib import Path
import random
import signal
import subprocess
import sys

import pytest

from tests.data.duplicates.made import removed_from
from tests.data.duplicates.test_rule import corpus, files_of

CHILD = """
import sys
from pathlib import Path
from tests.data.duplicates.made import parts_of, removed_from
from tests.data.duplicates.test_rule import corpus
from k2jax.data.duplicates import proposals, removal
from k2jax.data.duplicates.settings import DuplicateSettings
folder = Path(sys.argv[1])
proposals.RANGE = 100
removal.remove_duplicates(
    parts_of(corpus(9, 200), [50, 50, 50]), folder / "work", DuplicateSettings(), attributes=folder / "attributes",
    progress=lambda stage, done, *_: print(stage, done, flush=True),
)
"""


def killed_after(folder: Path, lines: int) -> int:
    """Runs the child until it has reported so many items, and kills it; returns its exit code."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    with child:
        for _, _line in zip(range(lines), child.stdout, strict=False):
            pass
        child.kill()
    return child.returncode


def check(folder: Path, moments: list[int], monkeypatch) -> None:
    for moment in moments:
        assert killed_after(folder / "killed", moment) == -signal.SIGKILL
    assert not (folder / "killed" / "attributes").exists()
    monkeypatch.setattr("k2jax.data.duplicates.proposals.RANGE", 100)
    texts, sizes = corpus(9, 200), [50, 50, 50]
    expected, _ = removed_from(texts, folder / "whole", sizes)
    assert removed_from(texts, folder / "killed", sizes)[0] == expected
    whole, killed = (files_of(folder / name) for name in ("whole", "killed"))
    assert {name for name in killed if ".tmp" not in name} == set(whole)
    assert all(killed[name] == content for name, content in whole.items())


def test_a_kill_between_two_items_changes_no_byte(tmp_path, monkeypatch):
    check(tmp_path, [20], monkeypatch)


@pytest.mark.slow
def test_twenty_kills_change_no_byte(tmp_path, monkeypatch):
    rng = random.Random(0)
    check(tmp_path, [rng.randrange(1, 45) for _ in range(20)], monkeypatch)


def test_what_is_there_is_not_computed_again(tmp_path, monkeypatch):
    texts = corpus(9, 60)
    expected, _ = removed_from(texts, tmp_path)

    def never(*_):
        raise AssertionError("a signature is computed again")

    monkeypatch.setattr("k2jax.data.duplicates.signatures.signatures", never)
    assert removed_from(texts, tmp_path)[0] == expected
    with pytest.raises(AssertionError, match="computed again"):
        removed_from([*texts, "another document"], tmp_path)
