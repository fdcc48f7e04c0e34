"""Whatever a file is, it is read or refused in one line: no crash, nothing endless, no memory beyond the limits."""

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from k2jax.data.images import frames, video_process
from k2jax.data.images.decoders import DecoderProgram
from k2jax.data.images.frames import read_clip
from k2jax.data.images.jpeg_tiff import jpeg_scans, tiff_strips
from k2jax.data.images.reading import FILE_LIMITS, ImageError, MediaUnavailableError
from tests.data.images import hostile
from tests.data.images.test_corpus import documents, prepared, source
from tests.emulated import ROOT
from tests.refusal import refused

SECONDS = 60
"""Processor time in which everything is read, of which most is for decoders of videos to start [s]."""
OWN_BYTES, DECODER_BYTES = 800e6, 2.2e9
"""Memory of the process that reads, and of one that decodes a video."""

READING = """
import json, re, resource, sys
from k2jax.data.images.decoders import DECODERS
from k2jax.data.images.frames import read_clip
from k2jax.data.images.places import MediaPlaces, read_media
from k2jax.data.images.reading import FILE_LIMITS, ImageError, read_image

said = {}
for name, kind in json.loads(sys.argv[1]).items():
    try:
        data = read_media(name, MediaPlaces("."), FILE_LIMITS, name)
        {"image": read_image, "video": read_clip}[kind](data, name=name)
    except ImageError as error:
        said[name] = str(error)
DECODERS.close()
own = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
decoders = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([said, own * 1024, decoders * 1024]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    hostile.write(folder)
    return folder


def limited():
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def test_every_file_is_read_or_refused_in_one_line_within_limits_of_time_and_memory(folder):
    (folder / "programs").mkdir()
    for name in ("gs", "gswin64c", "inkscape", "rsvg-convert"):
        (folder / "programs" / name).write_text(f"#!/bin/sh\ntouch {folder}/started\n")
        (folder / "programs" / name).chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{folder}/programs:{os.environ['PATH']}"}
    files = {name: hostile.kind(name) for name in (*hostile.good(), *hostile.refused())}
    command = [sys.executable, "-c", READING, json.dumps(files)]
    pipes = {"capture_output": True, "text": True, "timeout": 900}
    done = subprocess.run(command, cwd=folder, env=environment, preexec_fn=limited, **pipes)
    assert done.returncode == 0, done.stderr[-2000:]
    said, own, decoders = json.loads(done.stdout)
    assert said.keys() == hostile.refused().keys()
    for name, words in hostile.refused().items():
        assert words in said[name] and said[name].startswith(name) and "\n" not in said[name], said[name]
    assert own <= OWN_BYTES and decoders <= DECODER_BYTES
    assert not (folder / "started").exists(), "another program was started"
    assert not done.stderr


def test_a_source_of_hostile_files_is_read_without_them_or_not_at_all(folder, tmp_path):
    sources, lines = {"chat": source(kind="image_chat", path=f"{folder}/chat.jsonl")}, []
    data = prepared(tmp_path, sources, log=lines.append, **{"sequence_length": 256})
    skipped = data.manifests["chat"]["skipped"]
    assert (documents(data), skipped["count"]) == (len(hostile.good()), len(hostile.refused()))
    assert all("\n" not in line for line in [*lines, *skipped["first"]])
    data.loader.batch(0)
    with refused(r"repair them, or set data\.on_corrupt=skip"):
        prepared(tmp_path, sources, on_corrupt="fail", **{"sequence_length": 256})
    with refused("corrupt record"):  # where nothing was measured before
        prepared(tmp_path / "new", sources, on_corrupt="fail", **{"sequence_length": 256})


def test_a_program_that_ends_is_one_line_and_no_fault_of_the_video(monkeypatch):
    for script, words in ((os.devnull, "has ended"), (str(ROOT / "nowhere.py"), "can't open file")):
        monkeypatch.setattr(video_process, "__file__", script)
        monkeypatch.setattr(frames, "DECODERS", DecoderProgram())
        with refused(words, MediaUnavailableError):
            read_clip(hostile.movie())


def test_one_program_decodes_all_videos_each_in_a_process_of_its_own_and_is_started_again(monkeypatch):
    monkeypatch.setattr(frames, "DECODERS", DecoderProgram())
    clip = read_clip(hostile.movie())
    program = frames.DECODERS._program
    with pytest.raises(ImageError, match="0 s of processor time"):
        read_clip(hostile.movie(60, (1280, 704)), FILE_LIMITS._replace(seconds=0))  # the kernel looks at each tick
    for change, words in (({"clip_megapixels": 1e-3}, "shorter"), ({"megapixels": 1e-4}, "0.0001")):
        with refused(words, ImageError):  # a video that is long, or large
            read_clip(hostile.movie(), FILE_LIMITS._replace(**change))
    again = read_clip(hostile.movie())
    assert frames.DECODERS._program is program and program.poll() is None
    assert again.times == clip.times and all(map(np.array_equal, again.frames, clip.frames))
    program.kill()
    with pytest.raises(MediaUnavailableError, match="has ended"):
        read_clip(hostile.movie())
    assert read_clip(hostile.movie()).times == clip.times and frames.DECODERS._program is not program
    program = frames.DECODERS._program
    frames.DECODERS.close()
    assert program.returncode == 0


def test_scans_of_a_jpeg_and_strips_of_a_tiff_are_counted():
    noise = hostile.noise()
    for options, scans in (({}, 1), ({"progressive": True}, None), ({"restart_marker_blocks": 1}, 1)):
        data = hostile.encoded(noise, "JPEG", comment=b"\xff\xda" * 50, **options)
        assert jpeg_scans(data) == (scans or data.count(b"\xff\xda") - 50)
    striped = hostile.tiff(8, 600, strips=600)
    assert tiff_strips(striped) == 600
    assert tiff_strips(b"MM\0*\0\0\0\x08\0\1\1\x44\0\4\0\0\0\7\0\0\0\0") == 7  # TileOffsets, the other order
    big = b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0" + b"\1\0\0\0\0\0\0\0" + b"\x11\1\x10\0\t\0\0\0\0\0\0\0" + bytes(8)
    assert tiff_strips(big) == 9
    twofold = b"MM\0+\0\0\0\x08\0\1\1\x11\0\1\0\0\0\7\0\0\0\0"
    assert tiff_strips(twofold) == 7  # for Pillow a plain one: its directory lies at the fourth byte's number
    assert jpeg_scans(b"") == tiff_strips(b"") == tiff_strips(b"II*\0\xff\xff\xff\xff") == 0
