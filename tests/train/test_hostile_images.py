"""The command on a corpus whose files are damaged, mislabelled or made to harm: trained without them, or one line."""

import os
import sys

import pytest

from k2jax.config import source
from k2jax.report.metrics import read_metrics
from tests.data.images import hostile
from tests.emulated import ROOT
from tests.memory import run_measured
from tests.train.test_visual import visual_config

MEMORY_BYTES = 2.5e9
"""Of the run and of each decoder of a video; without hostile files a run has 0.6 GB."""


def hostile_config(folder, on_corrupt):
    config = visual_config(folder)
    del config.data.sources.chat
    config.data.sources.pictures = source(kind="image_chat", path=f"{folder}/chat.jsonl")
    config.data.sequence_length = 256
    config.data.on_corrupt = on_corrupt
    config.data.images.share = config.data.images.share_from = ()
    config.train.steps = config.eval.every = 3
    return config


CONFIG = """
from tests.train.test_hostile_images import hostile_config

def get_config():
    return hostile_config({folder!r}, {on_corrupt!r})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    hostile.write(folder)
    return folder


def run(folder, on_corrupt):
    """Exit code and errors of a run, and the peak memory of the largest of its processes [bytes]."""
    (folder / f"{on_corrupt}.py").write_text(CONFIG.format(folder=str(folder), on_corrupt=on_corrupt))
    command = [sys.executable, "-m", "k2jax.train", f"--config={folder}/{on_corrupt}.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command.append(f"--workdir={folder}/run_{on_corrupt}")
    done, memory = run_measured(command, folder / "peak", cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr, memory


def test_a_run_trains_on_what_can_be_read_and_names_what_it_skipped(folder):
    code, errors, memory = run(folder, "skip")
    assert code == 0 and "Traceback" not in errors, errors[-3000:]
    assert memory <= MEMORY_BYTES
    workdir = folder / "run_skip"
    assert [record["step"] for record in read_metrics(workdir)] == [1, 2, 3]
    skipped = len(hostile.refused())  # images too large for a row are reduced until they fit
    [row] = [line for line in (workdir / "report.md").read_text().splitlines() if line.startswith("| pictures ")]
    assert row.split("|")[-2].strip() == str(skipped)


def test_a_run_that_is_to_skip_nothing_ends_in_one_line_before_it_begins(folder):
    code, errors, memory = run(folder, "fail")
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(lines) == 1 and "Traceback" not in errors, errors[-3000:]
    assert "chat.jsonl" in lines[0] and "data.on_corrupt=skip" in lines[0]
    assert memory <= MEMORY_BYTES
