"""Images and clips of messages: read, cut into patches, and replaced by parts that a chat format renders as pads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from k2jax.config.schema import ImagesConfig, VisionConfig
from k2jax.data.images.frames import Clip, read_clip, read_frames
from k2jax.data.images.limits import PUBLISHED, ProcessorLimits, run_limits
from k2jax.data.images.measured import MeasuredMedia
from k2jax.data.images.patch_packing import PatchChunk
from k2jax.data.images.places import NOWHERE, MediaPlaces, read_media
from k2jax.data.images.reading import FILE_LIMITS, read_image, to_rgb
from k2jax.data.images.resize import padded_size, to_patches
from k2jax.errors import UserError, abbreviate
from k2jax.text.media import MediaSpan
from k2jax.text.messages import Message, with_parts

MEDIA_TYPES = ("image_url", "image", "video")


class PreparedMessages(NamedTuple):
    """A conversation without files.

    Attributes:
        messages: the messages, with a MediaSpan in place of each image and clip.
        chunks: the patches of all images and chunks of clips, in order.
    """

    messages: list[Message]
    chunks: list[PatchChunk]


class ImageProcessor:
    """Turns images and clips into chunks of patches, as Kimi K2.5 does.

    Args:
        vision: sizes of patches and chunks.
        limits: what images and frames are reduced to; ``convert.image_limits`` finds those of a checkpoint.
        places: where files may lie that messages name; by default an image must come in a data URL or in memory, as
            a server wants it.
        most: patches of a clip, which is not cut into them beyond that; None if there is no limit.
    """

    def __init__(
        self,
        vision: VisionConfig,
        *,
        limits: ProcessorLimits = PUBLISHED,
        places: MediaPlaces = NOWHERE,
        most: int | None = None,
    ):
        self._most = most
        self._vision, self._limits = vision, limits
        self._places = places

    @property
    def reduction(self) -> dict[str, Any]:
        """What frames are reduced to as they are read, keywords of ``reduced_sides``."""
        return {"patch": self._vision.patch, **self._limits.frames._asdict()}

    def image(self, image: Image.Image) -> PatchChunk:
        """Patches of one image; it is converted to RGB, see ``to_rgb``."""
        patches, height, width = to_patches(to_rgb(image), self._vision.patch, self._limits.images)
        return PatchChunk(patches, (1, height, width))

    def clip(self, clip: Clip) -> list[PatchChunk]:
        """Patches of the chunks of a clip, each of as many frames as the tower takes; the last may have fewer.

        Raises:
            UserError: there are more than ``most``.
        """
        together, patch, chunks = self._vision.frames, self._vision.patch, []
        width, height = clip.size
        size = padded_size(height, width, patch, self._limits.frames)
        patches = len(clip.frames) * size.padded_height * size.padded_width // patch**2
        if self._most is not None and patches > self._most:
            raise UserError(
                f"a clip of {len(clip.frames):,} frames has {patches:,} patches, more than the {self._most:,} of "
                "config.data.images.patches and rows"
            )
        for start in range(0, len(clip.frames), together):
            frames = clip.frames[start : start + together]
            cut = [to_patches(frame, patch, self._limits.frames, clip.size) for frame in frames]
            patches = np.concatenate([patches for patches, _, _ in cut])
            chunks.append(PatchChunk(patches, (len(cut), *cut[0][1:])))
        return chunks

    def timed_clip(self, clip: Clip) -> tuple[list[PatchChunk], tuple[float, ...]]:
        """Chunks of a clip as ``clip`` cuts them, and the time of the first frame of each [seconds]."""
        return self.clip(clip), tuple(clip.times[:: self._vision.frames])

    def measured(self, media: MeasuredMedia) -> list[PatchChunk]:
        """The chunks of an image or a clip that is not decoded: without pixels."""
        limits = self._limits.frames if media.times else self._limits.images
        patch, together, frames = self._vision.patch, self._vision.frames, len(media.times) or 1
        size = padded_size(media.size[1], media.size[0], patch, limits)
        grid = size.padded_height // patch, size.padded_width // patch
        none = np.zeros((0, 3 * patch * patch), np.float32)
        return [PatchChunk(none, (min(together, frames - start), *grid)) for start in range(0, frames, together)]

    def prepare(self, messages: Sequence[Message]) -> PreparedMessages:
        """Reads the images and clips of a conversation.

        Parts of content are ``{"type": "image_url", "image_url": {"url": …}}`` as in OpenAI's format,
        ``{"type": "image", "image": …}`` and ``{"type": "video", "video": …}``. An image is a path, a URL, bytes or a
        Pillow image; a video a path, a URL, bytes, a ``Clip``, or a list of images with their rate in ``fps``. A
        ``MeasuredMedia`` in the place of either has chunks without pixels.

        Raises:
            ImageError: a file is damaged or beyond the limits.
            UserError: a part is malformed, or names a file where none may be opened.
        """
        chunks: list[PatchChunk] = []
        return PreparedMessages(with_parts(messages, lambda part: self._part(part, chunks)), chunks)

    def _part(self, part: Any, chunks: list[PatchChunk]) -> Any:
        """A part of content, with a MediaSpan for an image or a clip, whose chunks are appended."""
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in MEDIA_TYPES:
            return part
        value = part.get(kind)
        if kind == "image_url" and isinstance(value, Mapping):
            value = value.get("url")
        name = f"image {len(chunks) + 1}" if kind != "video" else "video"
        if isinstance(value, MeasuredMedia):
            new, times = self.measured(value), value.times[:: self._vision.frames]
        elif kind == "video":
            new, times = self.timed_clip(self._read_clip(value, part.get("fps"), name))
        else:
            new, times = [self.image(self._read_image(value, name))], ()
        chunks += new
        return MediaSpan("video" if kind == "video" else "image", tuple(chunk.features for chunk in new), times)

    def _read_image(self, value: Any, name: str) -> Image.Image:
        if isinstance(value, Image.Image):
            return value
        return read_image(self._bytes(value, name), FILE_LIMITS, name)

    def _read_clip(self, value: Any, rate: Any, name: str) -> Clip:
        if isinstance(value, Clip):
            return value
        if isinstance(value, list | tuple):
            read = lambda frame, name: to_rgb(self._read_image(frame, name))  # noqa: E731
            return read_frames(value, rate, read, reduction=self.reduction)
        return read_clip(self._bytes(value, name), FILE_LIMITS, name, self.reduction)

    def _bytes(self, value: Any, name: str) -> bytes:
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            raise UserError(f"{name} must be a path, a URL, bytes or an image, not {abbreviate(value)}")
        return read_media(value, self._places, FILE_LIMITS, name)


def run_processor(vision: VisionConfig, images: ImagesConfig) -> ImageProcessor:
    """The processor of a run: what it learns from and samples after fits a row of its patches, with its padding.

    Args:
        vision: sizes of patches and chunks.
        images: limits; one image, or one chunk of a clip, fits ``images.patches``, a clip ``images.each`` times that.
    """
    limits = run_limits(images, vision.frames)
    return ImageProcessor(vision, limits=limits, most=images.patches * images.each)


def feature_index(tokens: Sequence[int] | np.ndarray, pad: int, features: Sequence[np.ndarray]) -> np.ndarray:
    """Which feature stands for each token, from the runs of pads.

    Args:
        tokens: ids of one conversation.
        pad: id of the pad.
        features: for each chunk in order, the numbers of its features, see ``PackedChunks``.

    Returns:
        int32 ``[len(tokens)]``, -1 for text.

    Raises:
        UserError: pads and features of an image or chunk differ in number; it says which.
    """
    is_pad = np.asarray(tokens) == pad
    edges = np.flatnonzero(np.diff(is_pad.astype(np.int8), prepend=0, append=0))
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    if len(runs) != len(features):
        raise UserError(
            f"the tokens have places for {len(runs)} images and chunks of video, and there are {len(features)}"
        )
    index = np.full(len(is_pad), -1, np.int32)
    for number, ((start, stop), groups) in enumerate(zip(runs, features, strict=True), 1):
        if stop - start != len(groups):
            raise UserError(f"image or chunk of video {number} has {len(groups)} features for {stop - start} pads")
        index[start:stop] = groups
    return index
