"""Rows 40 and 44: places that records name, records and files that grow, model folders, locks and environments."""

import asyncio
from collections.abc import Callable
import json
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

import pyarrow
import pyarrow.parquet
from safetensors.numpy import save_file

from k2jax.agents.registry import verifiers
from k2jax.agents.task import Task
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.convert.gguf_file import read_gguf
from k2jax.convert.hf_config import read_config
from k2jax.convert.importing import import_folder
from k2jax.data.images.places import MediaPlaces, read_media
from k2jax.data.images.reading import FILE_LIMITS, ImageError
from k2jax.errors import UserError
from k2jax.files.readers import jsonl, parquet
from k2jax.text.tokenizer import byte_tokenizer
from k2jax.train.workdir import locked
from tests.convert.test_hostile_folders import GGUFS, LLAMA, NEVER, WHOLE
from tests.data.images.counting import HITS, PNG, counting_server
from tests.data.images.test_hostile_places import paths_of, urls_of
from tests.hostile.attack import Attack, Outcome, Place, expect

GIGABYTE = 1 << 30
SKIPPED = "it is a corrupt record, or read, at a bounded cost"
REFUSED = "it is refused in one line"


def _media(folder: Path) -> Path:
    own = folder / "set"
    (own / "deeper").mkdir(parents=True)
    (folder / "set_of_another").mkdir()
    for file in ("private.png", "set_of_another/a.png", "set/own.png"):
        (folder / file).write_bytes(PNG)
    for link, target in (("out.png", "../private.png"), ("up", ".."), ("loop", "loop")):
        (own / link).symlink_to(target)
    os.mkfifo(own / "pipe.png")
    return own


async def _places(place: Place) -> Outcome:
    def run() -> str:
        with counting_server() as port:
            HITS.clear()
            for value in (*urls_of(port), *paths_of(place.prepared)):
                try:
                    read_media(value, MediaPlaces(str(place.prepared), key="media_from"), FILE_LIMITS, "image 1")
                    return f"{value!r} was read"
                except ImageError as error:
                    if not str(error).isprintable():
                        return f"refused in several lines: {error}"
            return f"reached: {dict(HITS)}" if HITS else ""

    return Outcome(await asyncio.to_thread(run))


def _cell(folder: Path) -> Path:
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x" * 400_000_000]}), path, compression="zstd")
    return path


def _dictionary(folder: Path) -> Path:
    path = folder / "a.parquet"
    column = pyarrow.array(["x" * 2_000_000] * 2000).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path, compression="zstd")
    return path


def _many_cells(folder: Path) -> Path:
    path = folder / "a.parquet"
    column = pyarrow.array(["x" * 60_000_000] * 8)
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path, compression="zstd", use_dictionary=False)
    return path


def _line(*parts: tuple[bytes, int]) -> Callable[[Path], Path]:
    """A file of JSON lines whose first line is made of repeated parts, before an honest one."""

    def prepare(folder: Path) -> Path:
        path = folder / "a.jsonl"
        with path.open("wb") as file:
            for part, times in parts:
                for _ in range(times):
                    file.write(part)
            file.write(b'\n{"text": "honest"}\n')
        return path

    return prepare


def _gzip(folder: Path) -> Path:
    path = folder / "a.jsonl.gz"
    with path.open("wb") as file:
        subprocess.run(["gzip", "-1c"], input=b'{"text": "' + bytes(GIGABYTE), stdout=file, check=True)
    return path


def _read(reader: Callable[..., Any]) -> Callable[[Place], Any]:
    """Reads all records, keeping none."""

    async def run(place: Place) -> Outcome:
        reasons: list[str] = []
        size = await asyncio.to_thread(
            lambda: sum(len(text) for _, text in reader(place.prepared, "text", lambda where, why: reasons.append(why)))
        )
        return expect((size or reasons) and all("\n" not in why for why in reasons), f"{size} read, {reasons}")

    return run


def _folder(folder: Path) -> Path:
    model = folder / "model"
    model.mkdir()
    byte_tokenizer().save(model)
    return model


async def _configs(place: Place) -> Outcome:
    """A config.json with every wrong value, JSON bombs, a pipe, and no weights."""
    folder, wrong = place.prepared, []
    texts = [json.dumps(LLAMA | {key: value}) for key in WHOLE for value in NEVER]
    texts += ['{"a":' * 100_000 + "1" + "}" * 100_000, "[" * 10**6, "[]," * 10**7, json.dumps("x" * 10**8), "\ud800"]

    def run() -> None:
        for text in texts:
            (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
            wrong.extend(_unless_refused(lambda: read_config(folder), text))
        (folder / "config.json").unlink()
        os.mkfifo(folder / "config.json")
        wrong.extend(_unless_refused(lambda: read_config(folder), "a pipe"))
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(LLAMA))
        save_file({}, folder / "model.safetensors")
        wrong.extend(_unless_refused(lambda: import_folder(folder, place.folder / "to"), "no weights"))

    await asyncio.to_thread(run)
    return Outcome("; ".join(wrong)[:300])


def _unless_refused(read: Callable[[], object], what: str) -> list[str]:
    try:
        read()
        return []  # some values are merely odd
    except UserError as error:
        return [] if "\n" not in str(error) else [f"{what[:60]!a}: several lines"]
    except Exception as error:
        return [f"{what[:60]!a}: {type(error).__name__}"]


async def _ggufs(place: Place) -> Outcome:
    wrong: list[str] = []

    def run() -> None:
        for number, content in enumerate(GGUFS):
            path = place.folder / f"{number}.gguf"
            path.write_bytes(content)
            wrong.extend(_unless_refused(lambda path=path: read_gguf(path), f"file {number}"))

    await asyncio.to_thread(run)
    return Outcome("; ".join(wrong)[:300])


async def _lock(place: Place) -> Outcome:
    """The lock of a workdir is deleted while a run holds it."""
    code = "import pathlib, sys; from k2jax.train.workdir import locked\nwith locked(pathlib.Path(sys.argv[1])): pass"
    with locked(place.folder):
        for file in place.folder.glob(".*"):
            file.unlink()
        command = [sys.executable, "-c", code, str(place.folder)]
        ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    return expect("in use by another process" in ended.stderr, f"a second run entered: {ended.stderr[-100:]}")


async def _secrets(place: Place) -> Outcome:
    """A verifier looks for the run's keys."""
    os.environ["OPENAI_API_KEY"] = "key-of-the-run"
    verifiers.add("tell_environment", "tests.agents.hostile:tell_environment")
    with VerifierPool(workers=1, timeout=5.0) as pool:
        task = Task("t", "d", ({"role": "user", "content": "?"},), "tell_environment")
        reward = await pool.score_answer(task, "x")
    return expect("key-of-the-run" not in json.dumps(reward.info), "the verifier sees the key")


RECORDS = {
    "a cell of 400 MB from 13 kB": (_cell, parquet),
    "2,000 cells of one value of 2 MB": (_dictionary, parquet),
    "8 cells of 60 MB": (_many_cells, parquet),
    "a line of 300 MB": (_line((b'{"text":"', 1), (b"x" * 10**6, 300), (b'"}', 1)), jsonl),
    "a line of 60 MB of lists": (_line((b'{"text":"a","more":[', 1), (b"[]," * 10**5, 200), (b"[]]}", 1)), jsonl),
    "a line of 60 MB of objects": (_line((b'{"text":"a","more":[', 1), (b'{"":{}},' * 10**4, 700), (b"1]}", 1)), jsonl),
    "a wide line of 60 MB": (_line((b'{"text":"\xf0\x9f\x98\x80', 1), (b"x" * 10**6, 60), (b'"}', 1)), jsonl),
    "a gigabyte of zeros in gzip": (_gzip, jsonl),
}
ATTACKS = [
    Attack(40, "records that name other places and URLs", REFUSED, _places, prepare=_media, seconds=300),
    *(
        Attack(44, f"data: {name}", SKIPPED, _read(reader), prepare=prepare, seconds=300)
        for name, (prepare, reader) in RECORDS.items()
    ),
    Attack(44, "model folders with odd values", REFUSED, _configs, prepare=_folder, seconds=300),
    Attack(44, "GGUF files of odd kinds, places and shapes", REFUSED, _ggufs),
    Attack(44, "a workdir's lock is deleted", "a second run is refused", _lock),
    Attack(44, "a verifier that tells its environment", "it has none of the run's keys", _secrets),
]
