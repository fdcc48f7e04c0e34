"""Several rows of the tower for a row of tokens: long clips are measured, packed and placed, by phases too."""

import dataclasses
import json

import numpy as np
import pytest

from k2jax.cli import parse
from k2jax.config import defaults, resolve, source
from k2jax.config.presets import vision_preset
from k2jax.data import prepare_data
from k2jax.data.__main__ import define, main
from k2jax.data.images.placement import PatchRows
from k2jax.data.phases.phase_data import DataPhase, prepare_phases
from k2jax.data.training_data import ImageShape
from tests.data.images.hostile import encoded, picture
from tests.refusal import refused

VISION = vision_preset("nano_vision")


@pytest.fixture
def clips(tmp_path):
    """A source of clips of 8 and of 16 frames, each of which has 16 patches; a chunk of four frames has 64."""
    lines = []
    for number in range(12):
        frames = []
        for frame in range(16 if number % 2 else 8):
            name = f"{number}.{frame}.png"
            (tmp_path / name).write_bytes(encoded(picture(shade=3 * frame + number, size=(56, 56))))
            frames.append(name)
        parts = [{"type": "video", "video": frames, "fps": 2}, {"type": "text", "text": "What?"}]
        asked = {"role": "user", "content": parts}
        lines.append({"messages": [asked, {"role": "assistant", "content": f"Clip {number}."}]})
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"clips": source(kind="image_chat", path=str(tmp_path / "clips.jsonl"))}


def data_config(folder, sources, **changes):
    config = defaults("sft", model="micro")
    config.model.vision.layers = 1
    config.data.sources = sources
    config.data.tokenizer.update({"kind": "bytes", "media": True})
    config.data.update({"chat_format": "plain", "sequence_length": 384, "cache_dir": str(folder / "cache")})
    config.data.held_out = 0.3
    config.data.images.patches = 128
    config.data.update_from_flattened_dict(changes)
    return resolve(config).data


def documents(data):
    return sum(split["documents"] for split in data.manifests["clips"]["splits"].values())


def test_a_clip_fills_as_many_rows_of_the_tower_as_a_row_of_tokens_may_have(tmp_path, clips):
    options = {"batch_size": 2, "seed": 3, "steps": 2}
    one = prepare_data(data_config(tmp_path, clips), images=ImageShape(VISION, PatchRows(2, 2, 128, 1)), **options)
    assert documents(one) == 6  # 16 frames are 256 patches
    config = data_config(tmp_path, clips, **{"images.rows": 2})
    two = prepare_data(config, images=ImageShape(VISION, PatchRows(2, 4, 128, 1, 2)), **options)
    assert documents(two) == 12
    for batch in [*two.loader.batches(), *two.held_out.batches(2)]:
        assert batch.patches.start.shape == (4, 128) and batch.tokens.shape == (2, 384)
        shown = np.unique(batch.media[batch.media >= 0])
        used = (batch.patches.start < batch.patches.exit).sum()
        assert 16 * len(shown) == used  # four features for the 64 patches of a chunk


def test_a_phase_with_more_rows_of_the_tower_has_the_clips_that_do_not_fit_those_before_it(tmp_path, clips):
    config = data_config(tmp_path, clips)
    long = dataclasses.replace(config, images=dataclasses.replace(config.images, rows=2.0))
    sizes = [("short", 0, 2, config, PatchRows(2, 2, 128, 1)), ("long", 2, 4, long, PatchRows(2, 4, 128, 1, 2))]
    phases = [
        DataPhase(name=name, first=a, last=b, config=own, batch_size=2, images=ImageShape(VISION, shape))
        for name, a, b, own, shape in sizes
    ]
    short, later = prepare_phases(config, phases, seed=3)
    assert (documents(short), documents(later)) == (6, 12)
    shapes = [short.loader.batch(step).patches.start.shape for step in range(4)]
    assert shapes == [(2, 128)] * 2 + [(4, 128)] * 2
    longest = [max((short.loader.batch(step).media >= 0).sum(1)) for step in range(4)]
    assert max(longest[:2]) <= 8 < max(longest[2:])  # features of a row
    assert short.fingerprint == later.fingerprint


@pytest.mark.parametrize(
    ("rows", "each", "why"),
    [
        (4, 2, "rows of the tower would always be empty"),
        (0.5, 9, r"4 rows of the tower, and one row of tokens may fill"),
    ],
)
def test_rows_that_cannot_be_are_one_line(rows, each, why):
    config = defaults("sft", model="micro")
    config.train.batch_size = 8
    config.data.images.rows, config.data.images.rows_each = rows, each
    with refused(why):
        resolve(config)


def test_reinforcement_learning_has_one_row_of_the_tower_for_each_row_of_tokens():
    config = defaults("rl", model="micro")
    config.data.images.rows = 2.0
    with refused("are for stages pretrain and sft"):
        resolve(config)


def test_a_build_measures_a_source_for_every_phase_that_needs_it(tmp_path, clips, capsys):
    path = clips["clips"].path
    (tmp_path / "config.py").write_text(
        f"""
from k2jax.config import defaults, phase, source

def get_config():
    config = defaults("pretrain", model="micro")
    config.model.vision.layers = 1
    config.data.sources = {{"clips": source(kind="image_chat", path={path!r})}}
    config.data.tokenizer.update({{"kind": "bytes", "media": True}})
    config.data.update({{"chat_format": "plain", "sequence_length": 384, "cache_dir": {str(tmp_path / "cache")!r}}})
    config.data.images.patches = 128
    config.train.steps = 6
    config.phases.first = phase(rate="constant")
    config.phases.same = phase(begin=2, rate="constant")
    config.phases.long = phase(begin=4, rate="constant", overrides=("data.images.rows=2",))
    return config
"""
    )
    words = ["data", "build", f"--config={tmp_path}/config.py"]
    values, positional = parse(words, define, "", ("COMMAND", "NAME"), 1)
    assert main(values, *positional) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.endswith("tokens")]
    assert len(told) == 2 and told[0].startswith("clips: ") and told[1].startswith("clips in phase long: ")
