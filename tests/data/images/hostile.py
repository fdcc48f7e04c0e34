"""Files of images and videos that are unusual, damaged, mislabelled or made to harm, and what is to become of each."""

from __future__ import annotations

import functools
import io
import os
from pathlib import Path
import re
import struct
import zlib

import av
import numpy as np
from PIL import Image

from tests.data.corpora import asked, write_records

SIDE = 56
CLAIMED = 10_000_000
"""Frames that a short video claims to have."""


def encoded(image, form="PNG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def picture(mode="RGB", shade=90, size=(SIDE, SIDE)):
    return Image.new("RGB", size, (shade, 40, 200)).convert(mode)


def noise(side=64):
    return Image.fromarray(np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8))


def animated(form):
    return encoded(picture(), form, save_all=True, append_images=[picture(shade=shade) for shade in range(9)])


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width=8, height=8, *chunks, colour=2, bits=8, pixels=None):
    """A PNG of given chunks between its header and its pixels, which are black."""
    row = 1 + (width * bits * {0: 1, 2: 3, 3: 1}[colour] + 7) // 8
    pixels = zlib.compress(bytes(row * height)) if pixels is None else pixels
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [chunk(b"IHDR", header), *chunks, chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    )


def wrong_crc():
    data = bytearray(encoded(noise()))
    data[data.index(b"IDAT") + 40] ^= 255
    return bytes(data)


def text_bomb(megabytes=100):
    """A text of a hundred megabytes in a hundred kilobytes."""
    return png(8, 8, chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(megabytes * 1_000_000), 9)))


def texts_bomb(count=200):
    """Many texts, each as long as is allowed."""
    text = zlib.compress(bytes(1_000_000), 9)
    return png(8, 8, *(chunk(b"zTXt", b"%d\0\0" % number + text) for number in range(count)))


def profile_bomb():
    return png(8, 8, chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(100_000_000), 9)))


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def tiff(width, height, *more, following=0, strips=1, count=None, data=None):
    """A grey TIFF without compression whose pixels are all the byte 90.

    Args:
        width: of the image.
        height: of the image.
        more: further entries of its directory.
        following: where the next directory begins.
        strips: number of its strips; where there are several, they are all at one place.
        count: what it claims as the number of entries, where that is not theirs.
        data: what stands in place of the pixels.
    """
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1)]
    entries += [(278, 4, 1, height // strips), (279, 4, 1, width * height // strips), *more]
    after = 8 + 2 + 12 * (len(entries) + 1) + 4
    entries = sorted([*entries, (273, 4, strips, after)])
    directory = struct.pack("<H", count or len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    data = b"Z" * width * height if data is None else data
    places = struct.pack("<I", 8) * strips if strips > 1 else b""
    return b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", following) + places + data


def tiff_frames(count=5000):
    """A TIFF of thousands of directories, all about the same pixels."""
    first = tiff(SIDE, SIDE)
    directory = first[8 : len(first) - SIDE * SIDE - 4]
    parts, place = [first[: 8 + len(directory)]], len(first)
    tail = first[8 + len(directory) + 4 :]
    for number in range(count):
        following = place + number * (len(directory) + 4)
        parts += [struct.pack("<I", following), *([tail] if not number else []), directory]
    return b"".join([*parts, struct.pack("<I", 0)])


def scan_bomb(side=6000, scans=5000):
    """A progressive JPEG of one colour, whose second scan, of a hundred bytes, is repeated."""
    data = encoded(picture(size=(side, side)), "JPEG", progressive=True)
    places = [match.start() for match in re.finditer(b"\xff[\xc4\xda]", data)]  # tables and scans
    begin, end = (places[number] for number in [n for n, place in enumerate(places) if data[place + 1] == 0xDA][:2])
    end = next(place for place in places if place > end)
    begin = next(place for place in places if place > begin)
    return data[:end] + data[begin:end] * scans + b"\xff\xd9"


def movie(count=12, size=(32, 16), rate=8, form="mp4", codec="mpeg4"):
    """A video whose frame f has the grey value 20 f."""
    file, frames = io.BytesIO(), [Image.new("RGB", size, (20 * number % 256,) * 3) for number in range(count)]
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        (stream.width, stream.height), stream.pix_fmt = size, "yuv420p"
        for frame in (*map(av.VideoFrame.from_image, frames), None):  # None: no frame follows
            container.mux(stream.encode(frame))
    return file.getvalue()


def sound():
    """A file of sound alone."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 48000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    return file.getvalue()


def claiming(samples):
    """A short MP4 whose tables say that it has so many samples of one byte, all in one chunk."""
    data = movie()
    for kind, numbers in ((b"stsz", (0, 1, samples)), (b"stsc", (0, 1, 1, samples, 1))):
        place = data.index(kind) + len(kind)
        new = struct.pack(f">{len(numbers)}I", *numbers)
        data = data[:place] + new + data[place + len(new) :]
    return data


@functools.cache
def good():
    """What is read, odd as it is."""
    return {
        "plain.png": encoded(picture()),
        "mislabelled.jpg": encoded(picture(shade=10)),
        "one_pixel.png": encoded(picture(shade=20, size=(1, 1))),
        "line.png": encoded(picture(shade=30, size=(1, 20_000))),
        "animated.gif": animated("GIF"),
        "animated.png": animated("PNG"),
        "animated.webp": animated("WEBP"),
        "cmyk.jpg": encoded(picture("CMYK"), "JPEG"),
        "sixteen.png": encoded(Image.fromarray(np.full((SIDE, SIDE), 40_000, np.uint16))),
        "sixteen.tiff": encoded(Image.fromarray(np.full((SIDE, SIDE), 41_000, np.uint16)), "TIFF"),
        "sixteen_large.png": encoded(Image.fromarray(np.full((6000, 6000), 42_000, np.uint16))),
        "no_number.tiff": encoded(Image.new("F", (SIDE, SIDE), float("nan")), "TIFF"),
        "palette.png": encoded(picture("P", 40), transparency=0),
        "turned.jpg": encoded(picture(size=(SIDE, 28)), "JPEG", exif=exif(6)),
        "turned_nowhere.jpg": encoded(picture(shade=50), "JPEG", exif=exif(77)),
        "profile.png": encoded(picture(shade=60), icc_profile=b"garbage" * 99),
        "profile.jpg": encoded(picture(shade=70), "JPEG", icc_profile=b"garbage" * 99),
        "frames.tiff": tiff_frames(),
        "endless.tiff": tiff(SIDE, SIDE, following=8),
        "endless_tags.tiff": tiff(SIDE, SIDE, (274, 3, 1, 6), (34665, 4, 1, 8)),
        "entries.tiff": tiff(SIDE, SIDE, count=65_535),
        "plain.mp4": movie(),
        "cut.mkv": movie(form="matroska")[:732],
    }


_BROKEN = "cannot be decoded"


@functools.cache
def bad():
    """What is refused, and words of the line that says so."""
    return {
        "empty.png": (b"", _BROKEN),
        "truncated.png": (encoded(noise())[:1500], _BROKEN),
        "wrong_crc.png": (wrong_crc(), _BROKEN),
        "page.png": (b"<html>not a picture</html>", _BROKEN),
        "drawing.png": (b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", _BROKEN),
        "script.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", _BROKEN),
        "document.jpg": (b"%PDF-1.7\n1 0 obj\n<</Type/Catalog>>\nendobj\ntrailer<</Root 1 0 R>>\n%%EOF", _BROKEN),
        "lied.tiff": (b"II*\0" + b"\xff" * 60, _BROKEN),
        "missing_pixels.tiff": (tiff(9000, 9000, data=b"Z"), _BROKEN),
        "strips.tiff": (tiff(1, 1_000_000, strips=1_000_000, data=b""), "1,000,000 strips"),
        "megapixels.png": (encoded(Image.new("1", (10_000, 10_000))), "100.0 megapixels"),
        "claimed.png": (png(10_000, 10_000, pixels=b""), "100.0 megapixels"),
        "claimed_more.png": (png(100_000, 100_000, pixels=b""), "exceeds limit"),
        "text.png": (text_bomb(), "too large"),
        "texts.png": (texts_bomb(), "Too much memory"),
        "profile_bomb.png": (profile_bomb(), "too large"),
        "scans.jpg": (scan_bomb(), "scans; at most"),
        "empty.mp4": (b"", "as a video"),
        "zeros.mp4": (bytes(500), "as a video"),
        "cut.mp4": (movie()[:700], "as a video"),
        "cut.avi": (movie(form="avi")[:4500], "as a video"),
        "sound.mp4": (sound(), "no picture"),
        "no_frame.mp4": (claiming(0), "no frame"),
        "claimed.mp4": (claiming(CLAIMED), "as a video"),
        "claimed_more.mp4": (claiming(8 * CLAIMED), "as a video"),
        "two_sizes.ts": (movie(form="mpegts") + movie(form="mpegts", size=(64, 48)), "differ in size"),
        "names_another.mp4": (b"ffconcat version 1.0\nfile plain.mp4\n", "as a video"),
        "names_an_address.mp4": (
            b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=a\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
            "as a video",
        ),
        "playlist.mp4": (b"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nplain.mp4\n#EXT-X-ENDLIST\n", "as a video"),
    }


NO_FILES = {
    "folder.png": "no regular file",
    "pipe.png": "no regular file",
    "/dev/zero": "leads out of",
    "loop.png": "does not exist",
    "missing.png": "does not exist",
    "pipe.mp4": "no regular file",
}
"""Paths at which there is no file, and words of the line that says so."""
VIDEOS = (".mp4", ".mkv", ".avi", ".ts")


def refused():
    """Names of all that is refused, with the words."""
    return {name: words for name, (_, words) in bad().items()} | NO_FILES


def kind(name):
    """The type of the part of a message that holds a file."""
    return "video" if name.endswith(VIDEOS) else "image"


def write(folder: Path) -> None:
    """Writes everything, and to ``chat.jsonl`` a conversation about each, whose answer is its name."""
    for name, data in (good() | {name: data for name, (data, _) in bad().items()}).items():
        (folder / name).write_bytes(data)
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    os.mkfifo(folder / "pipe.mp4")
    (folder / "loop.png").symlink_to("loop.png")
    question = [{"type": "text", "text": "What is it?"}]
    records = [asked([{"type": kind(name), kind(name): name}, *question], name) for name in (*good(), *refused())]
    write_records(folder / "chat.jsonl", records)
