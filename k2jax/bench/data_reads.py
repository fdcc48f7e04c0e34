"""Batches from shards in a store beside those from a local disk: with a cold tier, with a warm one, and the requests.

The store is a real S3 server of this machine (moto, in a process of its own), or the folder that ``$K2JAX_BENCH_STORE``
names, ``s3://BUCKET/FOLDER``. A corpus of 64 MiB is read in random order, as training reads it. The wait of a step is
what a loop waits for its next batch that works for ``STEP`` seconds on each.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import select
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from k2jax.bench.timing import Row, device_name, interleaved
from k2jax.config.schema import DataConfig, SourceConfig, TokenizerConfig
from k2jax.data import prepare_data, shards
from k2jax.data.manifest import FORMAT, HELD_OUT, TRAIN, shard_dtype, write_manifest
from k2jax.data.split_writer import SplitWriter
from k2jax.data.stored_folder import upload
from k2jax.errors import UserError
from k2jax.files.child_environment import child_environment
from k2jax.files.objects.host_settings import FOLDER
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.objects.store_client import COUNTS
from k2jax.text.tokenizer import byte_tokenizer

STEP = 0.1
"""Seconds that a step works on its batch; nano's takes longer on two cores."""
_STORE = "K2JAX_BENCH_STORE"
_TOKENS, _DOCUMENT, _ROW, _ROWS = 32 * 2**20, 2048, 4096, 8
_BATCHES, _STEPS = 200, 20
_SERVER = """
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure(rounds: int = 10) -> list[Row]:
    """Rows of rates, waits and requests.

    Raises:
        UserError: neither a store is named nor moto installed.
    """
    with tempfile.TemporaryDirectory() as folder, _store(), _settings(Path(folder)):
        local = _corpus(Path(folder))
        stored = ObjectPath.parse(f"{os.environ[_STORE]}/shards/{local.name}")
        upload(local, stored)
        return list(_rows(str(local), str(stored), Path(folder) / "tier", rounds))


def _rows(local: str, stored: str, tier: Path, rounds: int) -> Iterator[Row]:
    device = device_name()

    def cold() -> None:
        shutil.rmtree(tier, ignore_errors=True)
        _read(stored)

    seconds = interleaved({"local": lambda: _read(local), "warm": lambda: _read(stored)}, rounds)
    seconds["cold"] = interleaved({"cold": cold}, rounds, warmup=0)["cold"]
    rates = {name: _BATCHES / value for name, value in seconds.items()}
    for name in ("warm", "cold"):
        words = {"unit": "batches/s", "device": device, "baseline_name": "local disk"}
        yield Row(f"store, {name}", rates[name], rates["local"], ratio=rates[name] / rates["local"], **words)
    waits = {"local": _waiting(local), "warm": _waiting(stored)}
    shutil.rmtree(tier)
    waits["cold"] = _waiting(stored)
    for name in ("warm", "cold"):
        words = {"unit": "% of a step", "device": device, "baseline_name": "local disk"}
        yield Row(f"waiting, {name}", waits[name], waits["local"], ratio=waits["local"] / waits[name], **words)
    shutil.rmtree(tier)
    before, size = (COUNTS.requests, COUNTS.bytes), 2 * _TOKENS / 1e9
    _read(stored)
    asked, gigabytes = COUNTS.requests - before[0], (COUNTS.bytes - before[1]) / 1e9
    blocks = 1e9 / 16 / 2**10
    words = {"unit": "requests/GB", "device": device, "baseline_name": "one for each block"}
    yield Row(f"requests, {size:.3f} GB", asked / gigabytes, blocks, ratio=blocks * gigabytes / asked, **words)


def _batches(path: str, steps: int) -> Iterator:
    sources = {"s": SourceConfig(kind="shards", path=path)}
    config = DataConfig(sources=sources, tokenizer=TokenizerConfig(kind="bytes"), sequence_length=_ROW)
    return prepare_data(config, batch_size=_ROWS, seed=0, steps=steps).loader.batches()


def _read(path: str) -> None:
    for _ in _batches(path, _BATCHES):
        pass


def _waiting(path: str) -> float:
    """Percent of the time of a step that is spent waiting, behind the first batch."""
    batches = _batches(path, _STEPS + 1)
    next(batches)
    waited = 0.0
    for _ in range(_STEPS):
        time.sleep(STEP)
        began = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - began
    return 100 * waited / (_STEPS * STEP + waited)


def _corpus(folder: Path) -> Path:
    """A folder of shards of random bytes."""
    tokenizer, rng, files, splits = byte_tokenizer(), np.random.default_rng(0), {}, {}
    local = folder / "shards" / "random-0"
    local.mkdir(parents=True)
    dtype = shard_dtype(tokenizer.vocab_size)
    for split, tokens in ((TRAIN, _TOKENS), (HELD_OUT, _TOKENS // 256)):
        writer = SplitWriter(local, split, dtype, _TOKENS // 4)
        for _ in range(tokens // _DOCUMENT):
            writer.add(rng.integers(2, tokenizer.vocab_size, _DOCUMENT), _DOCUMENT)
        files |= writer.finish()
        splits[split] = writer.counts()
    described = {key: getattr(tokenizer, key) for key in ("fingerprint", "vocab_size", "bos", "eos")}
    skipped = {"skipped": {"count": 0, "first": []}}
    contents = {"format": FORMAT, "tokenizer": described, "dtype": dtype, "splits": splits, "files": files, **skipped}
    write_manifest(local, contents)
    return local


@contextlib.contextmanager
def _settings(folder: Path) -> Iterator[None]:
    """A tier of its own, and nothing that is read at opening: a corpus of training is too large for that."""
    kept, below = os.environ.get(FOLDER), shards.VERIFY_BELOW
    os.environ[FOLDER], shards.VERIFY_BELOW = str(folder / "tier"), 0
    try:
        yield
    finally:
        shards.VERIFY_BELOW = below
        os.environ.pop(FOLDER)
        os.environ |= {FOLDER: kept} if kept else {}


@contextlib.contextmanager
def _store() -> Iterator[None]:
    """The store that is named, or a server."""
    if os.environ.get(_STORE):
        yield
        return
    silent = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([sys.executable, "-c", _SERVER], env=child_environment(), **silent)
    try:
        port = server.stdout.readline() if select.select([server.stdout], [], [], 60)[0] else b""
        if not port:
            raise UserError(f"data_reads needs a store: pip install 'moto[server]' s3fs, or set ${_STORE}")
        os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(port)}", _STORE: "s3://bench/corpora"}
        os.environ |= {f"AWS_{name}": "x" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")}
        os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).call_s3("create_bucket", Bucket="bench")
        yield
    except ImportError:
        raise UserError(f"data_reads needs a store: pip install 'moto[server]' s3fs, or set ${_STORE}") from None
    finally:
        server.kill()
        server.wait()
        os.environ.pop(_STORE, None)
