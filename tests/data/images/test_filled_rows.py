"""Rows that mix pictures and text: images as without text, the same in every process, and the experiment of K2.5."""

import dataclasses
import hashlib
import math
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from k2jax.config import resolve, source
from k2jax.config.experiments import load_experiment
from k2jax.config.phases import phase_named
from k2jax.data import DataLoader, RowSource
from k2jax.data.filling import SHORTEST
from k2jax.data.images.image_rows import VisualRows
from k2jax.data.vision_share import vision_share
from tests.checkpoint.test_full_disk import files_end_at
from tests.command import ROOT
from tests.data.corpora import equal, text_folder
from tests.data.images.test_corpus import prepared
from tests.refusal import refused
from tests.train.together import marked


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Pictures and text, and where they are prepared."""
    folder = tmp_path_factory.mktemp("mixed")
    text_folder(folder / "text", [f"A text of its own, number {number}. " * (1 + number % 9) for number in range(80)])
    pictures = source(kind="synthetic_images", max_documents=24, side=64)
    return {"drawn": pictures, "text": source(kind="text", path=str(folder / "text"))}, folder


def test_rows_with_pictures_are_filled_with_text_and_keep_their_images_and_targets(mixed):
    sources, folder = mixed
    loader = prepared(folder, stage="pretrain", sources=sources).loader
    filled = loader._filled["drawn"]
    for draw in range(20):
        row = filled.row(draw)
        alone = dataclasses.replace(row, filling=list).build((3, draw), range(99))
        full = row.build((3, draw), range(99))
        own, whole = (int((each.exit > np.arange(192)).sum()) for each in (alone, full))
        assert len(alone.patches) == len(full.patches) and whole >= (191 if own <= 192 - SHORTEST else own)
        for name in ("tokens", "parent", "exit", "positions", "media"):
            np.testing.assert_array_equal(getattr(full, name)[:own], getattr(alone, name)[:own], name)
        np.testing.assert_array_equal(full.targets["weights"][:own], alone.targets["weights"][:own])
        assert (full.media[own:] == -1).all() and (full.parent[own:] >= own)[full.parent[own:] >= 0].all()
        for one, other in zip(alone.patches, full.patches, strict=True):
            np.testing.assert_array_equal(one.pixels, other.pixels)


def test_a_run_that_goes_on_makes_the_batches_that_it_would_have_made(mixed):
    sources, folder = mixed
    data, again = (prepared(folder, stage="pretrain", sources=sources, **{"images.augment": 0.5}) for _ in range(2))
    whole = list(data.loader.batches())
    assert len(whole) == 9
    for step, batch in enumerate(again.loader.batches(5), 5):
        equal(batch, whole[step])
    assert data.fingerprint != prepared(folder, stage="pretrain", sources={"drawn": sources["drawn"]}).fingerprint


@pytest.mark.slow
def test_processes_make_the_filled_batches_of_a_thread(mixed):
    sources, folder = mixed
    one, two = (
        list(prepared(folder, stage="pretrain", sources=sources, workers=workers).loader.batches())
        for workers in (0, 2)
    )
    for batch, other in zip(one, two, strict=True):
        equal(batch, other)


PREPARE = """
import sys
from pathlib import Path
from tests.data.images.test_filled_rows import digest, prepared_by_processes
for step, batch in enumerate(prepared_by_processes(Path(sys.argv[1])).loader.batches()):
    print(step, digest(batch), flush=True)
"""


def prepared_by_processes(folder, workers=2):
    """Pictures, enough of them for a build to be killed while they are measured, and text that fills their rows."""
    drawn = source(kind="synthetic_images", max_documents=600, side=64)
    sources = {"drawn": drawn, "text": source(kind="text", path=str(folder.parent / "text"))}
    return prepared(folder, stage="pretrain", sources=sources, workers=workers)


def digest(batch):
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(batch))).hexdigest()


def content(folder):
    """Of every file below a folder, its bytes."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_measuring(folder):
    return any(path.stat().st_size for path in folder.glob("cache/shards/.*/records.jsonl"))


@pytest.mark.slow
def test_killed_while_it_measures_and_while_it_fills_it_goes_on_to_the_same_bytes_and_batches(tmp_path):
    text_folder(tmp_path / "text", [f"A text of its own, number {number}. " * (1 + number % 9) for number in range(80)])
    whole = prepared_by_processes(tmp_path / "whole", workers=0)
    assert whole.loader._filled
    expected = [f"{step} {digest(batch)}" for step, batch in enumerate(whole.loader.batches())]
    mark = f"K2JAX_TEST_MARK={os.getpid()}"
    command = ["env", mark, f"PYTHONPATH={ROOT}", sys.executable, "-c", PREPARE, str(tmp_path / "killed")]
    for moment in ("measuring", "filling", ""):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if moment == "measuring":
            while not is_measuring(tmp_path / "killed"):
                assert process.poll() is None
                time.sleep(0.005)
        lines = [process.stdout.readline().strip()] if moment == "filling" else []
        if moment:
            assert len(marked(mark)) >= 3, "it has no workers"
            process.kill()
        lines += process.communicate()[0].splitlines()
        assert lines == expected[: len(lines)]
        assert len(lines) in {"measuring": [0], "filling": range(1, len(expected))}.get(moment, [len(expected)])
        deadline = time.monotonic() + 20
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not marked(mark), "processes of the build are left"
        finished = list((tmp_path / "killed/cache/shards").glob("synthetic*"))
        assert bool(finished) == (moment != "measuring")
    assert content(tmp_path / "killed/cache") == content(tmp_path / "whole/cache")


def test_a_full_disk_is_one_line_and_the_same_build_goes_on_when_there_is_room(mixed):
    sources, folder = mixed
    whole = prepared(folder, stage="pretrain", sources=sources)
    full = folder / "full"
    for limit in (100, 1200, 3000):  # records of the pictures, and their sizes; tokens of the texts
        with (
            files_end_at(limit),
            refused(f"^no room in {full}/cache/.*; make room, or set data.cache_dir"),
        ):
            prepared(full, stage="pretrain", sources=sources)
    again = prepared(full, stage="pretrain", sources=sources)
    assert again.fingerprint == whole.fingerprint
    assert content(full / "cache") == content(folder / "cache")


class LongStream:
    """A stream of a thousand million tokens, none of which is read."""

    documents, tokens, bytes, targets = 10**6, 10**9, 4 * 10**9, 10**9 - 10**6
    is_stored = False


@pytest.mark.parametrize("caption", [30, 100, 300])
@pytest.mark.parametrize(("phase", "devices"), [("joint", 1024), ("long", 1024), ("longest", 4096)])
def test_k2_5s_joint_training_has_rows_of_the_tower_for_a_tenth_of_its_tokens(phase, devices, caption):
    config = phase_named(resolve(load_experiment("experiments/pretrain/k2_5.py").get_config()), phase).config
    images, length, batch = config.data.images, config.data.sequence_length, config.train.batch_size
    size = images.image_patches // 4 + caption + 20
    split = SimpleNamespace(tokens=np.full(2000, size), patches=np.full(2000, images.image_patches), documents=2000)
    split.grids = lambda number: [(1, 64, images.image_patches // 64)]
    visual = VisualRows(split, length, patches=images.patches, each=images.each)
    rows = {"images": visual, "web": RowSource(LongStream(), length)}
    shape = SimpleNamespace(rows=math.ceil(batch * images.rows / devices) * devices, each=images.each)
    loader = DataLoader(
        rows,
        config.data.sources,
        batch_size=batch,
        seed=0,
        steps=50,
        images=SimpleNamespace(shape=shape),
        vision_share=vision_share(config.data),
    )
    drawn = np.diff([loader._plan.drawn(step * batch) for step in range(51)], axis=0)
    seen = drawn[:, loader._names.index("images")]
    assert seen.max() * images.each <= shape.rows
    mean = visual.tokens / len(visual)
    assert seen.sum() * mean / (50 * batch * length) == pytest.approx(0.1, rel=0.002)
