"""What the images of a checkpoint are reduced to, in the two dialects of files beside its weights.

Kimi K2.5 publishes ``preprocessor_config.json`` with a group ``media_proc_cfg``. transformers writes keys of its own,
and those of clips to a second file. An export has both.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path
from typing import Any

from k2jax import checkpoint
from k2jax.config.schema import VisionConfig
from k2jax.convert.loading import is_run
from k2jax.data.images.limits import MERGE, PUBLISHED, ProcessorLimits, ResizeLimits, run_limits
from k2jax.errors import UserError
from k2jax.report.files import write_atomic

IMAGES_FILE, CLIPS_FILE = "preprocessor_config.json", "video_preprocessor_config.json"
_GROUP = "media_proc_cfg"
_MEAN = [0.5, 0.5, 0.5]


def processor_limits(path: str | Path, vision: VisionConfig) -> ProcessorLimits:
    """What the images of a model are reduced to: as its folder says, as its run trained, or as Kimi K2.5 publishes it.

    Args:
        path: as of ``k2jax.from_pretrained``.
        vision: the model's tower.

    Raises:
        UserError: a file cannot be read, or asks for other pixels or frames than those that are made here.
    """
    folder = _folder(path)
    if (folder / IMAGES_FILE).is_file():
        return _read(folder, vision)
    return run_limits(checkpoint.run_config(folder).data.images, vision.frames) if is_run(path) else PUBLISHED


def copy_limits(path: str | Path, to: Path, vision: VisionConfig) -> None:
    """Gives a copy of a model the files of the limits of its images: the same ones, or new ones where it has none.

    Neither dialect can say that an image must fit a row with its padding: the limit of a run's images, before padding,
    is then the row.

    Args:
        path: as of ``k2jax.from_pretrained``.
        to: folder of the copy.
        vision: the model's tower.
    """
    folder = _folder(path)
    if not (folder / IMAGES_FILE).is_file():
        _write(to, vision, processor_limits(path, vision))
        return
    for file in (folder / IMAGES_FILE, folder / CLIPS_FILE):
        if file.is_file():
            write_atomic(to / file.name, file.read_bytes())


def _folder(path: str | Path) -> Path:
    return checkpoint.run_folder(path) if is_run(path) else Path(path)


def _write(folder: Path, vision: VisionConfig, limits: ProcessorLimits) -> None:
    """Writes both dialects."""
    images, frames = (min(limit.patches, limit.padded or limit.patches) for limit in limits)
    side, fixed = limits.images.side, _fixed_by_transformers(vision)
    clips_alone = {key: fixed.pop(key) for key in ("temporal_patch_size", "fps")}
    common = {"size": {"max_height": side, "max_width": side}, **fixed}
    published = {
        **_fixed(vision),
        "in_patch_limit": images,
        "in_patch_limit_each_frame": frames,
        "patch_limit_on_one_side": side,
    }
    of_images = {"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": images, **common, _GROUP: published}
    of_clips = {"video_processor_type": "Kimi_K25VideoProcessor", "max_patches": frames, **common, **clips_alone}
    for name, values in ((IMAGES_FILE, of_images), (CLIPS_FILE, of_clips)):
        write_atomic(folder / name, json.dumps(values, indent=2) + "\n")


def _read(folder: Path, vision: VisionConfig) -> ProcessorLimits:
    images = _json(folder / IMAGES_FILE)
    if isinstance(published := images.get(_GROUP), Mapping):
        _check(folder / IMAGES_FILE, published, _fixed(vision))
        side = _number(folder / IMAGES_FILE, published, "patch_limit_on_one_side", PUBLISHED.images.side)
        most = _number(folder / IMAGES_FILE, published, "in_patch_limit", PUBLISHED.images.patches)
        each = _number(folder / IMAGES_FILE, published, "in_patch_limit_each_frame", most)
        return ProcessorLimits(ResizeLimits(most, side), ResizeLimits(each, side))
    clips = _json(folder / CLIPS_FILE) if (folder / CLIPS_FILE).is_file() else {}
    found = []
    for name, values, limits in zip((IMAGES_FILE, CLIPS_FILE), (images, clips), PUBLISHED, strict=True):
        _check(folder / name, values, _fixed_by_transformers(vision))
        size = values.get("size") if isinstance(values.get("size"), Mapping) else {}
        side = _number(folder / name, size, "max_height", limits.side)
        found.append(ResizeLimits(_number(folder / name, values, "max_patches", limits.patches), side))
    return ProcessorLimits(*found)


def _fixed(vision: VisionConfig) -> dict[str, Any]:
    """The value of each published key in a file that has it; another value means other pixels or other frames."""
    return {
        "patch_size": vision.patch,
        "image_mean": _MEAN,
        "image_std": _MEAN,
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
        "image_mean": _MEAN,
        "image_std": _MEAN,
        "merge_size": MERGE,
        "temporal_patch_size": vision.frames,
        "fps": 2.0,
    }


def _check(file: Path, values: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    for key, wanted in fixed.items():
        if values.get(key) not in (None, wanted):
            raise UserError(f"{key} {values[key]!r} in {file} is not supported, only {wanted!r} is")


def _number(file: Path, values: Mapping[str, Any], key: str, default: int) -> int:
    """A positive number of patches; the default where the key is missing or null."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{key} in {file} must be a positive number of patches, not {value!r}")
    return value


def _json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text())
    except (ValueError, OSError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no JSON object")
    return values
