"""Decoding of image files that may be broken or hostile: RGB within limits, or one line that says what is wrong.

The format is found from the content and must be one of a few; limits are checked on the header, before pixels are
decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import stat
from typing import NamedTuple
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from k2jax.data.images.jpeg_tiff import excess
from k2jax.errors import UserError, abbreviate

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_DATA_URL = "data:"
# About oddities of files, and about sizes beyond a limit that is less strict than the one below. Once for the process:
# images are decoded in several threads, which would restore each other's filters.
warnings.filterwarnings("ignore", module=r"PIL\.")


class ImageError(UserError):
    """An image cannot be used: its file is damaged, in another format, or beyond the limits."""


class MediaUnavailableError(UserError):
    """What says nothing of an image: a store does not answer, or a package is missing. A later run may read it."""


class ReadLimits(NamedTuple):
    """What is decoded at all.

    Attributes:
        megabytes: largest file [10^6 bytes].
        megapixels: largest image or frame of a video [10^6 pixels].
        clip_megapixels: most of all sampled frames of a video together [10^6 pixels].
        seconds: processor time in which a video is decoded [s].
    """

    megabytes: float = 50.0
    megapixels: float = 90.0
    clip_megapixels: float = 1000.0
    seconds: int = 600


FILE_LIMITS = ReadLimits()


def read_image(data: bytes, limits: ReadLimits = FILE_LIMITS, name: str = "image") -> Image.Image:
    """Decodes a file: the first frame, turned as its EXIF orientation says, in RGB.

    Transparency is dropped, as in the release. Samples of 16 bits lose their lower 8.

    Args:
        data: the file's bytes.
        limits: largest file and image.
        name: what messages call it.

    Raises:
        ImageError: it is damaged, too large or in no format of ``FORMATS``.
    """
    check_size(len(data), limits, name)
    if too_many := excess(data):
        raise ImageError(f"{name} has {too_many}")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        pixels = image.width * image.height / 1e6
        if pixels > limits.megapixels:
            raise ImageError(f"{name} has {pixels:,.1f} megapixels; at most {limits.megapixels:g} are decoded")
        image.load()
        return _to_rgb(ImageOps.exif_transpose(image))
    except ImageError:
        raise
    except UnidentifiedImageError as error:  # Pillow names the address of the buffer
        raise ImageError(f"{name} cannot be decoded as {', '.join(FORMATS)}: it begins like none of them") from error
    except Exception as error:  # Pillow's decoders raise a dozen types on damaged files
        reason = abbreviate(str(error) or type(error).__name__)
        raise ImageError(f"{name} cannot be decoded as {', '.join(FORMATS)}: {reason}") from error


def read_regular_file(path: str, limits: ReadLimits, name: str) -> bytes:
    """The bytes of a file that is neither a folder, a device nor a FIFO, for whose writer this would wait.

    Args:
        path: without links, see ``k2jax.files.confined``.
        limits: largest file.
        name: what messages call it.

    Raises:
        ImageError: there is none, or it is too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ImageError(f"{name} cannot be read from {abbreviate(path, 300)}: it is no regular file")
            check_size(status.st_size, limits, name)
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(int(limits.megabytes * 1e6) + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"{name} cannot be read from {abbreviate(path, 300)}: {why}") from error


def check_size(size: int, limits: ReadLimits, name: str) -> None:
    """Raises ImageError where a file has too many bytes."""
    if size > limits.megabytes * 1e6:
        raise ImageError(f"{name} has {size / 1e6:,.1f} MB; at most {limits.megabytes:g} are read")


def decode_data_url(url: str) -> bytes:
    """The bytes of a ``data:image/…;base64,…`` URL.

    Raises:
        ImageError: it is no such URL.
    """
    head, comma, body = url.partition(",")
    if not (head.startswith(_DATA_URL) and head.endswith(";base64") and comma):
        raise ImageError(f"an image must be a data URL with base64 content, not {abbreviate(url, 40)}")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"the data URL of an image is not base64: {error}") from error


def is_data_url(url: str) -> bool:
    """Whether a URL holds its content itself."""
    return url.startswith(_DATA_URL)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        samples = np.asarray(image)
        # Files store 16 bits in the others; floats are 0 to 255, and what is no number is black.
        upper = np.nan_to_num(samples) if image.mode == "F" else samples >> 8
        image = Image.fromarray(np.clip(upper, 0, 255).astype(np.uint8))
    return image.convert("RGB")
