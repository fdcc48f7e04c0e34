"""What processes say to each other arrives whole, once and in order; strangers and other versions are refused."""

import contextlib
import os
import socket
import threading
import time

import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.files.frames import lengths
from k2jax.processes import command_links, command_tree
from k2jax.processes.command_links import GREETING, PIECE, accept, connect
from k2jax.processes.rendezvous import ProcessLostError
from k2jax.processes.values import decode, encode
from tests.rl.followers.threads import drop, end, trees

KEY = bytes(range(32))
VALUE = {
    "text": "ä\n",
    "numbers": [1, -2.5, float("inf"), 1e-300, True, None],
    "bytes": b"\x00\xff",
    "arrays": [np.arange(6, dtype=np.int32).reshape(2, 3), np.array([0.5, np.nan], np.float32), np.zeros((0, 4), bool)],
}


def test_values_come_back_as_they_were():
    back = decode(encode(VALUE))
    arrays, expected = back.pop("arrays"), VALUE["arrays"]
    assert back == {name: value for name, value in VALUE.items() if name != "arrays"}
    for array, other in zip(arrays, expected, strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_array_equal(array, other)
    assert type(back["numbers"][4]) is bool


@pytest.mark.parametrize("wrong", [{1: 2}, {"$array": 0}, {1, 2}, np.array(["a"]), np.array([None]), object()])
def test_other_values_are_refused(wrong):
    with pytest.raises(TypeError):
        encode({"value": wrong})


def test_damaged_bytes_are_no_message():
    whole = encode(VALUE)
    for data in (
        b"",
        whole[:20],
        whole[:-1],
        whole + b"x",
        whole.replace(b"<i4", b"|O8"),
        whole.replace(b"<i4", b"|V4"),
    ):
        with pytest.raises(ValueError):
            decode(data)


def test_messages_of_any_length_reach_every_process_of_two_levels_in_order():
    several, meeting = trees(12)
    messages = [b"", b"one", os.urandom(3 * PIECE + 5), b"four"]
    for message in messages:
        several[0].send(message)
    for tree in several[1:]:
        assert [tree.receive() for _ in messages] == messages
    end(several)
    assert not meeting.lost
    with pytest.raises(RuntimeError):
        several[11].receive()


@pytest.mark.parametrize("wrong", ["number", "byte"])
def test_a_message_that_is_damaged_or_out_of_turn_is_refused(wrong):
    several, _ = trees(2)
    if wrong == "number":
        several[0]._sent = 1
        several[0].send(b"text")
    else:
        link, whole = several[0]._children[0], command_tree._HEAD.pack(0, bytes(16)) + b"text"
        link.send(command_links.LAST, whole)
    with pytest.raises(ValueError, match="message 0 of process 0"):
        several[1].receive()
    end(several)


def test_a_process_waits_for_the_end_as_long_as_the_first_one_lives(monkeypatch):
    monkeypatch.setattr(command_tree, "END_SECONDS", 0.05)
    several, meeting = trees(2)
    waiting = threading.Thread(target=several[1].__exit__, args=(None, None, None))
    waiting.start()
    time.sleep(0.2)
    assert waiting.is_alive() and not meeting.lost
    several[0].__exit__(None, None, None)
    waiting.join(5)
    assert not waiting.is_alive() and not meeting.lost


def test_a_process_that_is_gone_is_missed_at_once():
    several, meeting = trees(3)
    several[2]._parent._connection.shutdown(socket.SHUT_RDWR)
    with meeting.changed:
        assert meeting.changed.wait_for(lambda: {0, 2} <= set(meeting.lost), 5)
    assert set(meeting.lost) == {0, 2}  # the one end misses the other
    drop(several)


def test_a_process_that_is_silent_is_missed_and_those_below_hear_of_it(monkeypatch):
    monkeypatch.setattr(command_tree, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(command_tree, "SILENCE_SECONDS", 0.4)
    several, meeting = trees(10)
    time.sleep(0.6)
    assert not meeting.lost
    several[1]._parent.try_to_send = lambda *frame: None  # process 1 is stopped
    with meeting.changed:
        assert meeting.changed.wait_for(lambda: 1 in meeting.lost, 5)
        assert set(meeting.lost) == {1}
    several[1]._end_without(0)
    with meeting.changed:
        assert meeting.changed.wait_for(lambda: meeting.lost.count(0) >= 2, 5)  # process 9, which hears process 1, too
    drop(several)


def test_another_version_is_refused_by_both_ends_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        told = []

        def listen():
            with contextlib.suppress(UserError):
                accept(server, KEY, {1}, 5)
                return
            told.append("refused")

        thread = threading.Thread(target=listen)
        thread.start()
        packed = command_links._GREETING.pack
        with socket.create_connection(("127.0.0.1", server.getsockname()[1])) as other:
            other.sendall(lengths(1, command_links._GREETING.size) + GREETING + packed(3, 1, KEY))
            assert other.recv(100)[-2:] == b"\x02\x00"
        thread.join(5)
        assert told == ["refused"]
        thread = threading.Thread(target=lambda: _answer(server, b"\x03\x00"))
        thread.start()
        with pytest.raises(UserError, match=r"process 0 speaks version 3 .* and this one 2; install the same k2jax"):
            connect(address, KEY, 1, 0, 5)
        thread.join(5)


def _answer(server, version):
    connection = server.accept()[0]
    connection.recv(100)
    connection.sendall(lengths(1, 2) + command_links.WELCOME + version)


def test_strangers_are_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, links = f"127.0.0.1:{server.getsockname()[1]}", []
        thread = threading.Thread(target=lambda: links.extend(accept(server, KEY, {3}, 10)))
        thread.start()
        for index, key in ((3, bytes(32)), (4, KEY)):
            with pytest.raises(ProcessLostError):
                connect(address, key, index, 0, 5)
        for data in (b"GET / HTTP/1.1\r\n\r\n", lengths(1, 1 << 30), lengths(1, 0) + GREETING, b""):
            with socket.create_connection(("127.0.0.1", server.getsockname()[1])) as stranger:
                stranger.sendall(data)
        link = connect(address, KEY, 3, 0, 5)
        thread.join(5)
        assert [each.peer for each in links] == [3] and link.peer == 0
