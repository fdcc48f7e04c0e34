"""Every file is decoded to RGB or refused in one line; no file crashes the reader or is decoded beyond the limits."""

from __future__ import annotations

import base64
import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from PIL import Image
import pytest

from k2jax.data.images.reading import ImageError, ReadLimits, decode_data_url, read_image
from tests.data.images.hostile import encoded, exif, noise
from tests.refusal import refused

RED = np.full((4, 6, 3), [200, 10, 30], np.uint8)


def red(mode="RGB"):
    return Image.fromarray(RED).convert(mode)


def frames():
    return encoded(red(), "GIF", save_all=True, append_images=[Image.new("RGB", (6, 4), "blue")])


def deep():
    """Grey of 16 bits whose upper byte is 77."""
    return encoded(Image.fromarray(np.full((4, 6), 77 * 256 + 200, np.uint16)), "PNG")


@functools.cache
def samples():
    return [encoded(noise(24), kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")]


@pytest.mark.parametrize(
    ("data", "size", "colour"),
    [
        (encoded(red(), "PNG"), (6, 4), (200, 10, 30)),
        (encoded(red("CMYK"), "JPEG", quality=95), (6, 4), (200, 10, 30)),
        (frames(), (6, 4), (200, 10, 30)),
        (deep(), (6, 4), (77, 77, 77)),
        (encoded(red(), "JPEG", exif=exif(6)), (4, 6), (200, 10, 30)),  # the camera was turned
        (encoded(Image.new("P", (1, 1)), "PNG"), (1, 1), (0, 0, 0)),
        (encoded(red("RGBA"), "WEBP", lossless=True), (6, 4), (200, 10, 30)),
    ],
    ids=["png", "cmyk", "animated", "16 bits", "turned", "1 pixel", "transparent"],
)
def test_unusual_files_become_rgb(data, size, colour):
    image = read_image(data)
    assert image.mode == "RGB" and image.size == size
    assert np.abs(np.asarray(image).mean((0, 1)) - colour).max() <= 4  # JPEG rounds


def test_a_large_file_is_refused_before_it_is_opened():
    with refused(r"0\.1 MB; at most 0\.05 are read", ImageError):
        read_image(b"x" * 100_000, ReadLimits(megabytes=0.05))


@settings(max_examples=60, deadline=None)
@given(which=st.integers(0, 5), changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=6))
def test_changed_bytes_give_an_image_or_an_error_of_one_line(which, changes):
    data = bytearray(samples()[which])
    for place, value in changes:
        data[int(place * len(data))] = value
    try:
        assert read_image(bytes(data)).mode == "RGB"
    except ImageError as error:
        assert "\n" not in str(error)


def test_data_urls_are_decoded_and_others_refused():
    data = encoded(red(), "PNG")
    assert decode_data_url("data:image/png;base64," + base64.b64encode(data).decode()) == data
    for url in ("https://example.org/a.png", "data:image/png,abc", "data:image/png;base64,@@@"):
        with refused("data URL", ImageError):
            decode_data_url(url)
