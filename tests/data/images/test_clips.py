"""Clips of files: sampled by the times at which frames are shown, upright, and reduced where they are decoded."""

from fractions import Fraction
import io
import struct

import av
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.config.schema import ImagesConfig, VisionConfig
from k2jax.data.images.frames import read_clip, sampled_frames
from k2jax.data.images.measured import MeasuredMedia
from k2jax.data.images.processor import run_processor
from k2jax.data.images.reading import FILE_LIMITS, ImageError
from k2jax.data.images.video_process import sampled_times
from tests.data.images.hostile import movie
from tests.refusal import refused

PROCESSOR = run_processor(VisionConfig(patch=4), ImagesConfig(patches=256))


def timed_movie(stamps, form="mp4", codec="mpeg4", size=(32, 16), rate=None):
    """A video whose frame f has the grey value 6 f, at these times [1/1000 s]."""
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate or 1000)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, stamp in enumerate(stamps):
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), 6 * number % 256, np.uint8))
            frame.pts, frame.time_base = stamp, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def test_frames_of_a_variable_rate_have_the_times_at_which_they_are_shown():
    stamps = [*range(0, 2000, 100), *range(20_000, 22_000, 100)]  # 20 frames in 2 s, a gap of 18 s, 20 more
    clip = read_clip(timed_movie(stamps))
    grey = [round(np.asarray(frame).mean() / 6) for frame in clip.frames]
    assert [round(1000 * time) for time in clip.times] == [stamps[number] for number in grey]
    assert clip.times[0] == 0 and clip.times[-1] == 21.9
    gaps = np.diff(clip.times)
    assert (gaps > 0).all() and gaps.max() < 18.7 and 6 <= len(clip.times) <= 12


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 400), rate=st.sampled_from([1, 2, 5, 8, 24, 25, 30, 60]))
def test_frames_of_a_constant_rate_are_sampled_as_their_numbers_say(count, rate):
    by_time = sampled_times(np.arange(count) / rate)
    by_number = sampled_frames(count, rate)
    assert len(by_time) == len(by_number) and np.abs(by_time - by_number).max() <= 1
    assert (by_time[0], by_time[-1]) == (by_number[0], by_number[-1])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.001, 3.0), min_size=1, max_size=60))
def test_no_stretch_of_a_clip_is_left_out_whatever_its_rate(gaps):
    times = np.cumsum([0.0, *gaps])
    chosen = sampled_times(times)
    assert chosen[0] == 0 and (np.diff(chosen) > 0).all()
    if len(chosen) == 1:
        return  # shorter than a second
    assert chosen[-1] == len(times) - 1
    between = np.diff(times[chosen])  # no more than the clip's own gaps on either side of a step of half a second
    assert between.max() <= max(0.5, 1 / ((len(times) - 1) / times[-1])) + 2 * max(gaps) + 1e-9


def turned(movie, matrix):
    """The MP4 with another matrix in the header of its track, as a phone that was held upright writes it."""
    data = bytearray(movie)
    start = data.index(b"tkhd") + 4 + 40
    data[start : start + 36] = struct.pack(">9i", *matrix)
    return bytes(data)


def test_a_clip_of_a_turned_camera_is_upright():
    file = io.BytesIO()
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[:, :32] = 255  # the left half is white
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    plain = np.asarray(read_clip(file.getvalue()).frames[0])
    clockwise = (0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    upright = np.asarray(read_clip(turned(file.getvalue(), clockwise)).frames[0])
    np.testing.assert_array_equal(upright, np.rot90(plain, -1))
    assert upright[0].mean() > 200 > 50 > upright[-1].mean()


@pytest.mark.parametrize("size", [(32, 16), (160, 96), (90, 118), (400, 16)])
def test_frames_that_are_reduced_where_they_are_decoded_have_the_patches_of_those_that_are_not(size):
    data = movie(size=size)
    whole, small = read_clip(data), read_clip(data, reduction=PROCESSOR.reduction)
    assert whole.size == small.size == size and MeasuredMedia.of(whole) == MeasuredMedia.of(small)
    for one, other in zip(PROCESSOR.clip(whole), PROCESSOR.clip(small), strict=True):
        assert one.grid == other.grid
        np.testing.assert_array_equal(one.pixels, other.pixels)
    pixels = len(small.frames) * small.frames[0].width * small.frames[0].height
    held = FILE_LIMITS._replace(clip_megapixels=(pixels + 1) / 1e6)
    assert read_clip(data, held, reduction=PROCESSOR.reduction).times == whole.times
    if small.frames[0].size != size:
        with refused("megapixels in its sampled frames", ImageError):
            read_clip(data, held)


@pytest.mark.slow
def test_an_hour_of_thirty_frames_a_second_is_read():
    clip = read_clip(timed_movie((np.arange(30 * 3600) * 100 // 3).tolist()))
    assert len(clip.times) == 7200 and clip.times[-1] == pytest.approx(3600, abs=0.1)
