"""The command on a corpus whose files are damaged, mislabelled or made to harm: trained without them, or one line."""

import os
import sys

import pytest

from k2jax.config import resolve, source
from k2jax.errors import UserError
from k2jax.report.metrics import read_metrics
from k2jax.train import train
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
    config.data.on_corrupt = on_corrupt
    config.data.images.share = config.data.images.share_from = ()
    return config


CONFIG = """
from tests.train.test_hostile_images import hostile_config

def get_config():
    return hostile_config({folder!r}, "skip")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    hostile.write(folder)
    return folder


def run(folder):
    """Exit code and errors of a run, and the peak memory of the largest of its processes [bytes]."""
    (folder / "config.py").write_text(CONFIG.format(folder=str(folder)))
    command = [sys.executable, "-m", "k2jax.train", f"--config={folder}/config.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command.append(f"--workdir={folder}/run_skip")
    done, memory = run_measured(command, folder / "peak", cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr, memory


@pytest.mark.slow
def test_a_run_trains_on_what_can_be_read_and_names_what_it_skipped(folder):
    code, errors, memory = run(folder)
    assert code == 0 and "Traceback" not in errors, errors[-3000:]
    assert memory <= MEMORY_BYTES
    workdir = folder / "run_skip"
    assert [record["step"] for record in read_metrics(workdir)] == [1, 2, 3, 4]
    skipped = len(hostile.refused())  # images too large for a row are reduced until they fit
    [row] = [line for line in (workdir / "report.md").read_text().splitlines() if line.startswith("| pictures ")]
    assert row.split("|")[-2].strip() == str(skipped)


def test_a_run_that_is_to_skip_nothing_ends_in_one_line_before_it_begins(folder):
    with pytest.raises(UserError, match=r"chat\.jsonl.*data\.on_corrupt=skip") as error:
        train(resolve(hostile_config(folder, "fail")), folder / "run_fail")
    assert "\n" not in str(error.value)
