"""Decoding of image files that may be broken or hostile: RGB within limits, or one line that says what is wrong.

The format is found from the content and must be one of a few; limits are checked on the header, before pixels are
decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
from typing import NamedTuple
import warnings

import numpy as np
from PIL import Image, ImageOps

from k2jax.errors import UserError, abbreviate

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_DATA_URL = "data:"


class ImageError(UserError):
    """An image cannot be used: its file is damaged, in another format, or beyond the limits."""


class ReadLimits(NamedTuple):
    """What is decoded at all.

    Attributes:
        megabytes: largest file [10^6 bytes].
        megapixels: largest image [10^6 pixels].
    """

    megabytes: float = 50.0
    megapixels: float = 90.0


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
    if len(data) > limits.megabytes * 1e6:
        raise ImageError(f"{name} has {len(data) / 1e6:,.1f} MB; at most {limits.megabytes:g} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, about oddities of files; its own limit is less strict
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            pixels = image.width * image.height / 1e6
            if pixels > limits.megapixels:
                raise ImageError(f"{name} has {pixels:,.1f} megapixels; at most {limits.megapixels:g} are decoded")
            image.load()
            return _to_rgb(ImageOps.exif_transpose(image))
    except ImageError:
        raise
    except Exception as error:  # Pillow's decoders raise a dozen types on damaged files
        reason = abbreviate(str(error) or type(error).__name__)
        raise ImageError(f"{name} cannot be decoded as {', '.join(FORMATS)}: {reason}") from error


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
        samples = np.asarray(image).astype(np.float64)
        scale = 256.0 if image.mode != "F" else 1.0  # files store 16 bits in these modes; floats are 0 to 255
        image = Image.fromarray(np.clip(samples / scale, 0, 255).astype(np.uint8))
    return image.convert("RGB")
