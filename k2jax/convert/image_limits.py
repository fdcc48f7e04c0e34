"""What the images of a checkpoint are reduced to, in the two dialects of files beside its weights.

Kimi K2.5 publishes ``preprocessor_config.json`` with a group ``media_proc_cfg``. transformers writes keys of its own,
and those of clips to a second file, or both as groups of ``processor_config.json``, which it reads before the others.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path
from typing import Any

from k2jax import checkpoint
from k2jax.config.schema import IMAGE_SOURCES, VisionConfig
from k2jax.convert import hub
from k2jax.convert.loading import is_run
from k2jax.data.images.limits import MERGE, PUBLISHED, ProcessorLimits, ResizeLimits, run_limits
from k2jax.errors import UserError, abbreviate
from k2jax.files.atomic import write_atomic

IMAGES_FILE, CLIPS_FILE = "preprocessor_config.json", "video_preprocessor_config.json"
PROCESSOR_FILE = "processor_config.json"
_GROUP = "media_proc_cfg"
_HALVES = [0.5, 0.5, 0.5]
_LARGEST = 2**31 - 1


def processor_limits(path: str | Path, vision: VisionConfig) -> ProcessorLimits:
    """What the images of a model are reduced to: as its folder says, as its run trained, or as Kimi K2.5 publishes it.

    Args:
        path: as of ``k2jax.from_pretrained``.
        vision: the model's tower.

    Raises:
        UserError: a file cannot be read, or asks for other pixels or frames than those that are made here.
    """
    folder = _folder(path)
    if _files(folder):
        return _read(folder, vision)
    if not is_run(path):
        return PUBLISHED
    config = checkpoint.checkpoint_config(path)
    seen = config.stage == "rl" or any(source.kind in IMAGE_SOURCES for source in config.data.sources.values())
    return run_limits(config.data.images, vision.frames) if seen else PUBLISHED


def copy_limits(path: str | Path, to: Path, vision: VisionConfig) -> None:
    """Gives a copy of a model the limits of its images in both dialects; files that are not supported stay as they are.

    Neither dialect can say that an image must fit a row with its padding: the limit of a run's images, before padding,
    is then the row.

    Args:
        path: as of ``k2jax.from_pretrained``.
        to: folder of the copy.
        vision: the model's tower.
    """
    try:
        limits = processor_limits(path, vision)
    except UserError:
        kept = {file.name: file.read_bytes() for file in _files(_folder(path))}
    else:
        kept = {name: text.encode() for name, text in _texts(vision, limits).items()}
    for file in _files(to):  # of an earlier copy, which would count before these
        if file.name not in kept:
            file.unlink()
    for name, content in kept.items():
        write_atomic(to / name, content)


def _folder(path: str | Path) -> Path:
    return checkpoint.run_folder(path) if is_run(path) else Path(hub.local(path))


def _files(folder: Path) -> list[Path]:
    return [folder / name for name in (PROCESSOR_FILE, IMAGES_FILE, CLIPS_FILE) if (folder / name).is_file()]


def _texts(vision: VisionConfig, limits: ProcessorLimits) -> dict[str, str]:
    """The files of both dialects, by their names."""
    images, frames = (min(limit.patches, limit.padded or limit.patches) for limit in limits)
    common = {"image_mean": _HALVES, "image_std": _HALVES, "patch_size": vision.patch, "merge_size": MERGE}
    published = {
        **_fixed(vision),
        "in_patch_limit": images,
        "in_patch_limit_each_frame": frames,
        "patch_limit_on_one_side": limits.images.side,
    }
    of_images = {"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": images, _GROUP: published}
    of_clips = {"video_processor_type": "Kimi_K25VideoProcessor", "max_patches": frames, "fps": 2.0}
    of_clips["temporal_patch_size"] = vision.frames
    texts = {}
    for name, limit, values in ((IMAGES_FILE, limits.images, of_images), (CLIPS_FILE, limits.frames, of_clips)):
        size = {"max_height": limit.side, "max_width": limit.side}
        texts[name] = json.dumps({**values, "size": size, **common}, indent=2) + "\n"
    return texts


def _read(folder: Path, vision: VisionConfig) -> ProcessorLimits:
    """Reads the files that are there, images and clips each in its dialect.

    Transformers' keys count where both dialects are, since it keeps the others. Clips without keys of their own are
    reduced as the published group says, or else as images are.
    """
    both, images, clips = (_json(folder / name) for name in (PROCESSOR_FILE, IMAGES_FILE, CLIPS_FILE))
    images = _group(folder, both, "image_processor") or images
    clips = _group(folder, both, "video_processor") or clips
    published = {} if "max_patches" in images else _group(folder, images, _GROUP)
    if not published:
        return ProcessorLimits(
            _read_transformers(folder, images, vision, PUBLISHED.images),
            _read_transformers(folder, clips or images, vision, PUBLISHED.frames),
        )
    _check(folder, published, _fixed(vision))
    side = _number(folder, published, "patch_limit_on_one_side", PUBLISHED.images.side)
    most = _number(folder, published, "in_patch_limit", PUBLISHED.images.patches)
    each = _number(folder, published, "in_patch_limit_each_frame", most)
    frames = _read_transformers(folder, clips, vision, PUBLISHED.frames) if clips else ResizeLimits(each, side)
    return ProcessorLimits(ResizeLimits(most, side), frames)


def _read_transformers(
    folder: Path, values: Mapping[str, Any], vision: VisionConfig, default: ResizeLimits
) -> ResizeLimits:
    """What images, or frames, are reduced to, by transformers' keys; ``default`` where they are missing."""
    if stray := [key for key in ("in_patch_limit", "in_patch_limit_each_frame", "sample_fps") if key in values]:
        raise UserError(f"{stray[0]} of the images in {folder} must stand in {_GROUP}")
    _check(folder, values, _fixed_by_transformers(vision))
    size = _group(folder, values, "size")
    if size and not {"max_height", "max_width"} <= size.keys():
        raise UserError(
            f"size of the images in {folder} needs max_height and max_width; {abbreviate(dict(size))} is not supported"
        )
    side = _number(folder, size, "max_height", default.side)
    _check(folder, size, {"max_width": side})
    return ResizeLimits(_number(folder, values, "max_patches", default.patches), side)


def _fixed(vision: VisionConfig) -> dict[str, Any]:
    """The value of each published key in a file that has it; another value means other pixels or other frames."""
    return {
        "patch_size": vision.patch,
        "image_mean": _HALVES,
        "image_std": _HALVES,
        "merge_kernel_size": MERGE,
        "fixed_output_tokens": None,
        "in_patch_limit_video": None,
        "sample_fps": 2.0,
        "max_num_frames_each_video": None,
        "temporal_merge_kernel_size": vision.frames,
        "timestamp_mode": "hh:mm:ss.fff",
    }


def _fixed_by_transformers(vision: VisionConfig) -> dict[str, Any]:
    """As ``_fixed``, of transformers' keys."""
    return {
        "patch_size": vision.patch,
        "image_mean": _HALVES,
        "image_std": _HALVES,
        "merge_size": MERGE,
        "temporal_patch_size": vision.frames,
        "fps": 2.0,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "do_sample_frames": True,
        "do_center_crop": False,
        "num_frames": None,
        "resample": 3,  # bicubic
        "rescale_factor": 1 / 255,
    }


def _check(folder: Path, values: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    for key, wanted in fixed.items():
        if values.get(key) not in (None, wanted):
            shown = abbreviate(values[key])
            raise UserError(f"{key} {shown} of the images in {folder} is not supported, only {wanted!r} is")


def _number(folder: Path, values: Mapping[str, Any], key: str, default: int) -> int:
    """A positive number of patches; the default where the key is missing or null."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
        raise UserError(f"{key} of the images in {folder} must be a number of patches, not {abbreviate(value)}")
    return value


def _group(folder: Path, values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A group of keys; empty where it is missing or null."""
    group = values.get(key)
    if group is not None and not isinstance(group, Mapping):
        raise UserError(f"{key} of the images in {folder} must be an object, not {abbreviate(group)}")
    return group or {}


def _json(file: Path) -> dict[str, Any]:
    """The object in a file, empty if there is no file."""
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no JSON object")
    return values
