"""Frames arrive as they were sent, however their bytes are divided, and none is longer than it may be."""

import socket
import time

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.files.frames import Bounds, FrameDecoder, FrameError, lengths, receive

FRAMES = st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=40)), max_size=6)


def sent(frames):
    return b"".join(lengths(len(record), len(payload)) + record + payload for record, payload in frames)


@given(FRAMES, st.integers(1, 17))
def test_frames_are_decoded_however_the_bytes_are_divided(frames, part):
    decoder, data, arrived = FrameDecoder(Bounds(9, 40)), sent(frames), []
    for begin in range(0, len(data), part):
        arrived += decoder.feed(data[begin : begin + part])
    assert arrived == frames and decoder.waiting == 0
    assert decoder.feed(data + b"\0") == frames and decoder.waiting == 1


@pytest.mark.parametrize("size", [(10, 0), (0, 41), (2**32 - 1, 2**32 - 1)])
def test_a_frame_that_is_too_long_is_refused_by_its_lengths(size):
    with pytest.raises(FrameError, match="is too long"):
        FrameDecoder(Bounds(9, 40)).feed(lengths(*size))
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(FrameError, match="is too long"):
        theirs.sendall(lengths(*size))
        receive(ours, Bounds(9, 40))


def test_a_blocking_reader_gets_one_frame_at_a_time_until_its_time_or_the_connection_ends():
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(sent([(b"a", b"b"), (b"", b"")]) + lengths(5, 5))
        assert [receive(ours, Bounds(9, 40)) for _ in range(2)] == [(b"a", b"b"), (b"", b"")]
        with pytest.raises(TimeoutError):
            receive(ours, Bounds(9, 40), time.monotonic() + 0.01)
        theirs.close()
        with pytest.raises(FrameError, match="end of the connection"):
            receive(ours, Bounds(9, 40))
