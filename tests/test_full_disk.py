"""A disk that fills up while a command writes: one line, exit code 2, and with room again the same result."""

import hashlib
from pathlib import Path
import random
import shutil

import pytest

from k2jax.convert.importing import import_folder
from k2jax.data import prepare_data
from k2jax.errors import UserError
from k2jax.text.tokenizer import byte_tokenizer
from tests.checkpoint.test_full_disk import files_end_at
from tests.command import run_command
from tests.convert.folders import network
from tests.train.tiny import tiny, write_corpus

MOMENTS = [1, pytest.param(10, marks=pytest.mark.slow)]
"""Numbers of moments at which the disk is full."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("full")
    network("deepseek_v3").save_pretrained(path / "hf", max_shard_size="100KB")
    byte_tokenizer().save(path / "hf")
    import_folder(path / "hf", path / "run")
    write_corpus(path)
    return path


def contents(folder: Path) -> dict[str, str]:
    """What a person would compare: every file but those whose bytes name a time or a random save."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def importing(folder: Path, out: Path) -> list[str]:
    return ["import", str(folder / "hf"), f"--workdir={out}"]


def exporting(folder: Path, out: Path) -> list[str]:
    return ["export", f"--checkpoint={folder / 'run'}", f"--to={out}"]


def weights(folder: Path, out: Path) -> dict[str, str]:
    """The files of an export of the import: what was imported, without the layout of a checkpoint."""
    back = out.with_name(f"{out.name}-back")
    assert run_command("k2jax.convert", "export", f"--checkpoint={out}", f"--to={back}").returncode == 0
    return contents(back)


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of threads that tensorstore gave up
@pytest.mark.parametrize(
    ("command", "result"),
    [(importing, weights), (exporting, lambda folder, out: contents(out))],
    ids=["import", "export"],
)
def test_a_conversion_goes_on_when_there_is_room(folder, tmp_path, command, result, moments):
    assert run_command("k2jax.convert", *command(folder, tmp_path / "whole")).returncode == 0
    wanted = result(folder, tmp_path / "whole")
    largest = max(path.stat().st_size for path in (tmp_path / "whole").rglob("*"))
    draw = random.Random(0)
    for moment in range(moments):
        out = tmp_path / str(moment)
        with files_end_at(draw.randrange(100, largest)):
            done = run_command("k2jax.convert", *command(folder, out))
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and "make room" in done.stderr
        assert run_command("k2jax.convert", *command(folder, out)).returncode == 0
        assert result(folder, out) == wanted
        shutil.rmtree(out)


@pytest.mark.parametrize("moments", MOMENTS)
def test_a_corpus_is_built_when_there_is_room(folder, tmp_path, moments):
    draw = random.Random(0)

    def build(cache: Path):
        config = tiny(folder, **{"data.cache_dir": str(cache)})
        return prepare_data(config.data, batch_size=4, seed=0, steps=12)

    wanted = build(tmp_path / "whole").fingerprint
    largest = max(path.stat().st_size for path in (tmp_path / "whole").rglob("*"))
    for moment in range(moments):
        cache = tmp_path / str(moment)
        with files_end_at(draw.randrange(100, largest)), pytest.raises(UserError, match="make room"):
            build(cache)
        assert build(cache).fingerprint == wanted
