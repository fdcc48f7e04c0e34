"""Every file is decoded to RGB or refused in one line; no file crashes the reader or is decoded beyond the limits."""

from __future__ import annotations

import base64
import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from PIL import Image
import pytest

from k2jax.data.images.reading import ImageError, ReadLimits, decode_data_url, is_data_url, read_image, to_rgb
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


def layered(mode, kind="PNG", **options):
    """A black square on what is transparent, whose hidden colour is black too."""
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[2:6, 2:6, 3] = 255
    image = Image.fromarray(pixels)
    if mode == "LA":
        image = image.convert("LA")
    elif mode in ("P", "L", "RGB"):  # one colour is transparent
        image = Image.fromarray(np.where(pixels[..., 3] > 0, 0, 9).astype(np.uint8)).convert(mode)
        options["transparency"] = (9, 9, 9) if mode == "RGB" else 9
    return encoded(image, kind, **options)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("L", "PNG"), ("RGB", "PNG"), ("RGBA", "WEBP"), ("RGBA", "TIFF"),
     ("P", "GIF")],
)  # fmt: skip
def test_black_on_transparent_is_black_on_white(mode, kind):
    lossless = {"lossless": True} if kind == "WEBP" else {}
    pixels = np.asarray(read_image(layered(mode, kind, **lossless)))
    expected = np.full((8, 8, 3), 255, np.uint8)
    expected[2:6, 2:6] = 0
    np.testing.assert_array_equal(pixels, expected)


def test_half_transparent_is_half_of_white_and_opaque_colours_stay_as_they_are():
    half = np.full((4, 4, 4), [200, 0, 100, 128], np.uint8)
    shown = np.asarray(read_image(encoded(Image.fromarray(half), "PNG"))).astype(int)
    assert np.abs(shown - (np.array([200, 0, 100]) * 128 + 255 * 127) / 255).max() <= 1
    opaque = noise(16).convert("RGBA")
    np.testing.assert_array_equal(np.asarray(to_rgb(opaque)), np.asarray(opaque)[..., :3])


RAMP = np.arange(64).reshape(8, 8)
NUMBERS = [
    (RAMP.astype(np.int32) * 4, RAMP * 4),
    (RAMP.astype(np.int32) * 1000, RAMP * 1000 // 256),
    (RAMP.astype(np.uint16) * 1000, RAMP * 1000 // 256),
    ((RAMP / 63).astype(np.float32), np.rint(RAMP / 63 * 255)),
    (np.where(RAMP == 9, np.nan, RAMP / 63).astype(np.float32), np.where(RAMP == 9, 0, np.rint(RAMP / 63 * 255))),
    (RAMP.astype(np.float32) * 4, RAMP * 4),
]


@pytest.mark.parametrize(
    ("samples", "grey"), NUMBERS, ids=["8 of 32", "16 of 32", "16", "shares", "no number", "floats"]
)
def test_numbers_become_the_brightness_that_their_range_says(samples, grey):
    pixels = np.asarray(read_image(encoded(Image.fromarray(samples), "TIFF")))
    np.testing.assert_array_equal(pixels, np.repeat(grey[..., None], 3, -1))


@pytest.mark.parametrize("samples", [RAMP.astype(np.int32) - 1, RAMP.astype(np.int32) * 10_000, RAMP / 63 - 0.5])
@pytest.mark.parametrize("bad", [None, -np.inf, np.inf])
def test_numbers_of_which_no_brightness_follows_are_refused(samples, bad):
    if bad is not None:
        samples = np.where(RAMP == 5, bad, RAMP)
    samples = samples.astype(np.float32) if samples.dtype == np.float64 else samples
    with refused("image has samples from .* convert it to 8 bits", ImageError):
        read_image(encoded(Image.fromarray(samples), "TIFF"))


DATA = bytes(range(256))
BODY = base64.b64encode(DATA).decode()
URLS = [
    f"data:image/png;base64,{BODY}",
    f"data:image/png;base64,{BODY[:76]}\r\n{BODY[76:]}\n",
    f"  DATA:image/PNG;BASE64, {BODY[:9]}\t {BODY[9:]}",
    f"data:image/png; base64,{BODY}",
    f"data:image/png;base64,{BODY.rstrip('=')}",
    f"data:;base64,{base64.urlsafe_b64encode(DATA).decode()}",
    f"data:image/png;base64,{BODY.replace('+', '%2B').replace('/', '%2f').replace('=', '%3D')}",
]


@pytest.mark.parametrize("url", URLS)
def test_data_urls_are_decoded_as_browsers_and_clients_write_them(url):
    assert is_data_url(url) and decode_data_url(url) == DATA


def test_data_urls_are_decoded_and_others_refused():
    data = encoded(red(), "PNG")
    assert decode_data_url("data:image/png;base64," + base64.b64encode(data).decode()) == data
    for url in (
        "https://example.org/a.png",
        "data:image/png,abc",
        "data:image/png;base64,@@@",
        "data:;base64,é",
        "data:;base64,abcde",
    ):
        with refused("data URL", ImageError):
            decode_data_url(url)
