"""What a checkpoint's images are reduced to: files of both dialects, runs, copies, and what reads images with them."""

import ast
import json
from pathlib import Path

import numpy as np
from PIL import Image
import pytest
import transformers

from k2jax.checkpoint import Checkpoints, checkpoint_config
from k2jax.config import defaults, phase, source
from k2jax.config.build import resolve, to_json
from k2jax.config.identity import fixed_keys
from k2jax.config.schema import VisionConfig
from k2jax.convert.image_limits import CLIPS_FILE, IMAGES_FILE, PROCESSOR_FILE, copy_limits, processor_limits
from k2jax.data.images.limits import PUBLISHED, ProcessorLimits, ResizeLimits
from k2jax.data.images.processor import ImageProcessor, run_processor
from k2jax.serve.media_readers import media_reader
from tests.refusal import refused
from tests.text.kimi import thinking_tokenizer

VISION = VisionConfig(layers=1, patch=14)
GROUP = {  # as Kimi K2.5 publishes it
    "in_patch_limit": 16384, "patch_size": 14, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    "merge_kernel_size": 2, "fixed_output_tokens": None, "patch_limit_on_one_side": 512,
    "in_patch_limit_each_frame": 4096, "in_patch_limit_video": None, "sample_fps": 2.0,
    "max_num_frames_each_video": None, "temporal_merge_kernel_size": 4, "timestamp_mode": "hh:mm:ss.fff",
}  # fmt: skip


TRANSFORMERS = {"max_patches": 900, "rescale_factor": 1 / 255}


def write(folder, **changes):
    (folder / IMAGES_FILE).write_text(json.dumps({"media_proc_cfg": GROUP | changes}))
    return folder


def write_run(workdir, patches=64, kind="synthetic_images"):
    """A workdir whose rows have so many patches, without weights."""
    config = defaults("pretrain", model="micro", vision="nano_vision")
    config.data.sources = {"some": source(kind=kind, side=28)}
    config.data.images.patches = patches
    (workdir / "checkpoints").mkdir(parents=True)
    (workdir / "config.json").write_text(to_json(resolve(config)))
    return resolve(config)


def test_the_published_group_is_read_and_a_folder_without_a_file_has_its_values(tmp_path):
    assert processor_limits(tmp_path, VISION) == PUBLISHED
    assert processor_limits(write(tmp_path), VISION) == PUBLISHED
    changed = write(tmp_path, in_patch_limit=900, patch_limit_on_one_side=60, in_patch_limit_each_frame=400)
    assert processor_limits(changed, VISION) == (ResizeLimits(900, 60), ResizeLimits(400, 60))
    frames_as_images = write(tmp_path, in_patch_limit=900, in_patch_limit_each_frame=None)
    assert processor_limits(frames_as_images, VISION).frames.patches == 900


def test_the_files_of_transformers_are_read(tmp_path):
    size = {"max_height": 60, "max_width": 60}
    (tmp_path / IMAGES_FILE).write_text(json.dumps({"max_patches": 900, "size": size, "fps": None}))
    assert processor_limits(tmp_path, VISION) == (ResizeLimits(900, 60),) * 2  # of clips too, where no file has theirs
    (tmp_path / CLIPS_FILE).write_text(json.dumps({"max_patches": 400, "size": size}))
    assert processor_limits(tmp_path, VISION) == (ResizeLimits(900, 60), ResizeLimits(400, 60))
    (tmp_path / CLIPS_FILE).write_text(json.dumps({"max_patches": 400, "fps": 8}))
    with refused(r"fps 8 of .* is not supported, only 2.0 is"):
        processor_limits(tmp_path, VISION)


def test_the_one_file_of_a_processor_of_transformers_counts_before_the_others(tmp_path):
    write(tmp_path)
    groups = {"image_processor": {"max_patches": 900}, "video_processor": {"max_patches": 400}}
    (tmp_path / PROCESSOR_FILE).write_text(json.dumps(groups))
    assert processor_limits(tmp_path, VISION) == (ResizeLimits(900), ResizeLimits(400))
    (tmp_path / PROCESSOR_FILE).write_text(json.dumps({"processor_class": "Kimi_K25Processor"}))
    assert processor_limits(tmp_path, VISION) == PUBLISHED


def test_keys_of_transformers_count_before_a_group_that_it_keeps(tmp_path):
    group = GROUP | {"in_patch_limit": 100}
    (tmp_path / IMAGES_FILE).write_text(json.dumps({"max_patches": 900, "media_proc_cfg": group}))
    assert processor_limits(tmp_path, VISION).images.patches == 900


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"sample_fps": 8.0}, "sample_fps 8.0 of .* is not supported, only 2.0 is"),
        ({"in_patch_limit_video": 655360}, "in_patch_limit_video 655360 of .* is not supported, only None is"),
        ({"patch_size": 16}, "patch_size 16 of .* is not supported, only 14 is"),
        ({"image_mean": [0.48, 0.46, 0.41]}, "image_mean .* is not supported"),
        ({"in_patch_limit": "many"}, "in_patch_limit of .* must be a number of patches, not 'many'"),
        ({"in_patch_limit": True}, "in_patch_limit of .* must be a number of patches, not True"),
        ({"in_patch_limit": 10**400}, "in_patch_limit of .* must be a number of patches, not 1000"),
        ({"patch_limit_on_one_side": 0}, "patch_limit_on_one_side of .* must be a number of patches, not 0"),
        (TRANSFORMERS | {"do_normalize": False}, "do_normalize False"),
        (TRANSFORMERS | {"resample": 0}, "resample 0"),
        (TRANSFORMERS | {"rescale_factor": 1.0}, "rescale_factor 1.0"),
        (TRANSFORMERS | {"size": {"max_height": 60, "max_width": 50}}, "max_width 50"),
        (TRANSFORMERS | {"size": {"shortest_edge": 224}}, "needs max_height and max_width"),
        (TRANSFORMERS | {"size": 5}, "size of .* must be an object, not 5"),
        (TRANSFORMERS | {"do_center_crop": True}, "do_center_crop True"),
        (TRANSFORMERS | {"image_mean": [0.1] * 10_000}, "^image_mean .{,600}$"),
    ],
)
def test_other_pixels_and_frames_are_refused_by_the_name_of_the_key_in_both_dialects(tmp_path, change, error):
    values = change if "max_patches" in change else {"media_proc_cfg": GROUP | change}
    (tmp_path / IMAGES_FILE).write_text(json.dumps(values))
    with refused(error):
        processor_limits(tmp_path, VISION)


@pytest.mark.parametrize("name", [CLIPS_FILE, PROCESSOR_FILE])
def test_clips_in_transformers_dialect_count_beside_images_as_published(tmp_path, name):
    write(tmp_path, in_patch_limit=900)
    for clips, frames in (({"max_patches": 100}, ResizeLimits(100)), ({"max_patches": 100, "fps": 8}, None)):
        (tmp_path / name).write_text(json.dumps(clips if name == CLIPS_FILE else {"video_processor": clips}))
        if frames:
            assert processor_limits(tmp_path, VISION) == (ResizeLimits(900), frames)
        else:
            with refused("fps 8 of"):
                processor_limits(tmp_path, VISION)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((text, IMAGES_FILE) for text in ("[]", "{", "\x00", "[" * 100_000)),
        (json.dumps(GROUP), "in_patch_limit of .* must stand in media_proc_cfg"),
        (json.dumps({"media_proc_cfg": [1]}), "media_proc_cfg of .* must be an object"),
    ],
    ids=["list", "open", "null", "deep", "no group", "a list in place of it"],
)
def test_a_file_that_is_damaged_or_has_no_group_is_one_line(tmp_path, text, error):
    (tmp_path / IMAGES_FILE).write_text(text)
    with refused(error):
        processor_limits(tmp_path, VISION)


def test_a_run_reduces_images_as_it_trained_and_says_so_to_others(tmp_path):
    config = write_run(tmp_path / "run", patches=64)
    vision = config.model.vision
    limits = processor_limits(tmp_path / "run", vision)
    photo = Image.new("RGB", (14 * 30, 14 * 20))
    trained = run_processor(vision, config.data.images).image(photo)
    assert ImageProcessor(vision, limits=limits).image(photo).grid == trained.grid
    assert trained.patches <= 64 < 30 * 20

    copy_limits(tmp_path / "run", tmp_path / "copy", vision)
    assert processor_limits(tmp_path / "copy", vision) == (ResizeLimits(64), ResizeLimits(16))
    (tmp_path / "copy" / IMAGES_FILE).write_text(
        json.dumps(json.loads((tmp_path / "copy" / IMAGES_FILE).read_text()) | {"media_proc_cfg": None})
    )
    assert processor_limits(tmp_path / "copy", vision) == (ResizeLimits(64), ResizeLimits(16))  # transformers' dialect


def test_a_checkpoint_of_a_run_with_phases_has_the_limits_of_its_phase(tmp_path):
    config = defaults("pretrain", model="micro", vision="nano_vision")
    config.data.sources = {"some": source(kind="synthetic_images", side=28)}
    config.data.images.patches, config.data.sequence_length, config.train.steps = 64, 64, 4
    config.phases.first = phase(rate="constant")
    longer = ("data.images.patches=256", "data.sequence_length=128", "model.yarn.factor=4")
    config.phases.second = phase(begin=2, rate="constant", overrides=longer)
    (tmp_path / "config.json").write_text(to_json(resolve(config)))
    checkpoints = Checkpoints(tmp_path)
    for step in (2, 4):
        checkpoints.save(step, {"w": np.zeros(2)}, {"m": np.zeros(2)}, {"config": fixed_keys(resolve(config), step)})
    checkpoints.close()
    for place, patches, length, factor in (
        ("checkpoints/2", 64, 64, 1),
        ("checkpoints/4", 256, 128, 4),
        ("", 256, 128, 4),
    ):
        own = checkpoint_config(tmp_path / place)
        assert processor_limits(tmp_path / place, own.model.vision) == (
            ResizeLimits(own.data.images.image_patches, padded=patches),
            ResizeLimits(4096, padded=patches // 4),
        )
        assert (own.data.sequence_length, own.model.yarn.factor) == (length, factor)


def test_a_run_that_read_no_images_has_the_limits_of_kimi(tmp_path):
    config = write_run(tmp_path / "run", patches=64, kind="stdlib")
    assert processor_limits(tmp_path / "run", config.model.vision) == PUBLISHED


def test_a_copy_has_both_dialects_of_what_is_published(tmp_path):
    given, copy = tmp_path / "given", tmp_path / "copy"
    given.mkdir()
    limits = processor_limits(write(given, in_patch_limit=900, in_patch_limit_each_frame=400), VISION)
    copy_limits(given, copy, VISION)
    images, clips = (json.loads((copy / name).read_text()) for name in (IMAGES_FILE, CLIPS_FILE))
    assert (images["max_patches"], clips["max_patches"]) == (900, 400)
    assert images["media_proc_cfg"] == GROUP | {"in_patch_limit": 900, "in_patch_limit_each_frame": 400}
    assert processor_limits(copy, VISION) == limits


def test_a_copy_into_a_folder_of_another_replaces_its_files(tmp_path):
    given, copy = tmp_path / "given", tmp_path / "copy"
    for folder in (given, copy):
        folder.mkdir()
    write(given, in_patch_limit=900)
    (copy / PROCESSOR_FILE).write_text(json.dumps({"image_processor": {"max_patches": 7}}))
    copy_limits(given, copy, VISION)
    assert processor_limits(copy, VISION) == processor_limits(given, VISION) and not (copy / PROCESSOR_FILE).exists()


def test_a_copy_keeps_files_that_are_not_supported(tmp_path):
    given, copy = tmp_path / "given", tmp_path / "copy"
    given.mkdir()
    write(given, sample_fps=8.0)
    (given / CLIPS_FILE).write_text("{}")
    copy_limits(given, copy, VISION)
    for name in (IMAGES_FILE, CLIPS_FILE):
        assert (copy / name).read_bytes() == (given / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "module"), [(IMAGES_FILE, "image_processing_kimi_k25"), (CLIPS_FILE, "video_processing_kimi_k25")]
)
def test_what_is_written_are_the_keys_and_defaults_of_transformers_classes(tmp_path, name, module):
    """Their source is read: the classes do not load without torchvision."""
    copy_limits(tmp_path, tmp_path / "copy", VISION)
    written = json.loads((tmp_path / "copy" / name).read_text())
    group, kind = written.pop("media_proc_cfg", GROUP), written.pop(next(key for key in written if "type" in key))
    assert group == GROUP
    source = Path(transformers.__file__).parent / f"models/kimi_k25/{module}.py"
    (found,) = (node for node in ast.parse(source.read_text()).body if getattr(node, "name", None) == kind)
    defaults = {node.targets[0].id: ast.unparse(node.value) for node in found.body if isinstance(node, ast.Assign)}
    for key, value in written.items():
        theirs = "[0.5, 0.5, 0.5]" if defaults[key].startswith("IMAGENET_STANDARD") else defaults[key]
        assert ast.literal_eval(theirs) == value, key


def test_the_reader_of_requests_reduces_images_as_the_checkpoint_says(tmp_path):
    write(tmp_path, in_patch_limit=100)
    reader = media_reader(tmp_path, VISION, thinking_tokenizer())
    photo = Image.new("RGB", (14 * 30, 14 * 20))
    assert (
        reader.processor.image(photo).grid
        == ImageProcessor(VISION, limits=ProcessorLimits(images=ResizeLimits(100))).image(photo).grid
    )
    assert reader.processor.image(photo).patches < 150
