"""Decoding of image files that may be broken or hostile: RGB within limits, or one line that says what is wrong.

The format is found from the content and must be one of a few; limits are checked on the header, before pixels are
decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
import stat
from typing import NamedTuple
from urllib.parse import unquote_to_bytes
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from k2jax.data.images.jpeg_tiff import excess
from k2jax.errors import UserError, abbreviate

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_DATA_URL = "data:"
_BEGINS = re.compile(rf"\s*{_DATA_URL}", re.IGNORECASE)
_ALPHABET, _WHITE = bytes.maketrans(b"-_", b"+/"), b" \t\r\n\f\v"
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

    What is transparent is on white: the release drops transparency, which leaves black on black of most drawings.
    Samples of 16 bits lose their lower 8. Integers of 32 bits are read as 8 bits up to 255 and as 16 up to 65535,
    floats as shares up to 1 and as 8 bits up to 255; others are refused.

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
        return to_rgb(ImageOps.exif_transpose(image), name)
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

    White space is no part of it; the alphabet of URLs, escapes by percent and a missing end of the last group are read.

    Raises:
        ImageError: it is no such URL.
    """
    head, comma, body = url.partition(",")
    head = "".join(head.split()).lower()
    if not (head.startswith(_DATA_URL) and head.endswith(";base64") and comma):
        raise ImageError(f"an image must be a data URL with base64 content, not {abbreviate(url, 40)}")
    try:
        data = unquote_to_bytes(body) if "%" in body else body.encode("ascii")
        data = data.translate(_ALPHABET, _WHITE).rstrip(b"=")
        return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"the data URL of an image is not base64: {error}") from error


def is_data_url(url: str) -> bool:
    """Whether a URL holds its content itself."""
    return _BEGINS.match(url) is not None


def to_rgb(image: Image.Image, name: str = "image") -> Image.Image:
    """An image in RGB, on white where it is transparent.

    Raises:
        ImageError: its samples are numbers of which no brightness follows.
    """
    if image.mode.startswith("I") or image.mode == "F":
        return _of_numbers(image, name).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layered = image.convert("RGBA")
    if layered.getchannel("A").getextrema()[0] < 255:
        layered = Image.alpha_composite(Image.new("RGBA", image.size, "white"), layered)
    return layered.convert("RGB")


def _of_numbers(image: Image.Image, name: str) -> Image.Image:
    """Grey of 8 bits from integers of 16 or 32 bits or from floats, whose range their largest says."""
    samples, real = np.asarray(image), image.mode == "F"
    samples = np.nan_to_num(samples, posinf=np.inf, neginf=-np.inf) if real else samples  # what is no number is black
    low, high = samples.min(), samples.max()
    if low < 0 or high > (255 if real else 65535):
        ranges = "floats up to 1 or 255" if real else "integers of 32 bits up to 255 or 65535"
        raise ImageError(f"{name} has samples from {low:g} to {high:g}; {ranges} are read: convert it to 8 bits")
    if real:
        grey = np.rint(samples * 255 if high <= 1 else samples)
    else:
        grey = samples >> 8 if image.mode != "I" or high > 255 else samples
    grey = grey.astype(np.uint8)
    if isinstance(clear := image.info.get("transparency"), int):
        grey = np.where(samples == clear, np.uint8(255), grey)
    return Image.fromarray(grey)
