"""A corpus on a real S3 server, before which a proxy is slow, busy, broken or wrong.

Needs ``pip install s3fs 'moto[server]'``, which no extra installs together with kubernetes: botocore pins an older
python-dateutil. ``pip install --no-deps`` of the newer one afterwards works for both.
"""

import hashlib
import io
import json
import os
from pathlib import Path
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

from PIL import Image
import pytest

from k2jax.files.objects.cached_reads import CHUNK
from tests.files.objects.s3_server import BUCKET, environment, fault_proxy, moto_server
from tests.train.tiny import CONFIG_FILE, write_corpus

pytestmark = [pytest.mark.external, pytest.mark.slow]
CACHE = f"s3://{BUCKET}/cache"
READ = """
import hashlib, sys
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.objects.store_client import COUNTS
with ObjectPath.parse(sys.argv[1]).open() as file:
    print(hashlib.file_digest(file, "sha256").hexdigest(), COUNTS.requests)
"""

EXCLUDING = """
import sys
from k2jax.config.schema import SourceConfig
from k2jax.data.sources import CorruptRecords, documents
source = SourceConfig(kind="jsonl", path=sys.argv[1], exclude=("dups/near",))
print(*(text for _, text in documents("s", source, CorruptRecords("fail"))))
"""


@pytest.fixture(scope="module")
def server():
    """The port of the server."""
    with moto_server() as port:
        yield port


@pytest.fixture
def store(server, tmp_path):
    """The faults of a proxy, and what makes a process use it."""
    with fault_proxy(server) as (url, faults):
        yield faults, os.environ | environment(url, tmp_path / "tier")


def run(variables, *words, **options):
    return subprocess.run(
        [sys.executable, *words], env=variables, capture_output=True, text=True, check=False, **options
    )


def put(variables, key, content, tmp_path):
    (tmp_path / "put").write_bytes(content)
    code = "import sys, pathlib; from k2jax.files.objects.store_client import store_client"
    code += "; store_client('s3').write(sys.argv[1], pathlib.Path(sys.argv[2]))"
    done = run(variables, "-c", code, key, str(tmp_path / "put"))
    assert done.returncode == 0, done.stderr


def training(folder, variables, cache):
    """Losses of a short run in a folder of its own, and the other lines that it wrote."""
    workdir = folder / f"run-{time.monotonic_ns()}"
    config = folder / "config.py"
    config.write_text(CONFIG_FILE.format(folder=str(folder)))
    words = ["-m", "k2jax.train", f"--config={config}", f"--workdir={workdir}", f"--config.data.cache_dir={cache}"]
    done = run(variables, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(record["step"], {key: value for key, value in record.items() if "loss" in key}) for record in records]


def test_a_run_from_a_store_that_fails_has_the_losses_of_one_from_the_disk(store, tmp_path):
    faults, variables = store
    write_corpus(tmp_path)
    local = training(tmp_path, variables, tmp_path / "cache")
    assert len(local) > 3 and all("loss" in " ".join(losses) for _, losses in local[:3])
    faults.latency, faults.busy, faults.reset, faults.cut, faults.broken = 0.005, 0.06, 0.06, 0.06, 0.06
    faults.retry_after = "1"
    variables["K2JAX_STORE_REQUESTS"] = "4"
    assert training(tmp_path, variables, CACHE) == local
    assert faults.injected and faults.together <= 4
    asked, injected = len(faults.requests), faults.injected
    assert training(tmp_path, variables, CACHE) == local
    assert len(faults.requests) == asked, "a warm tier asks nobody"
    shutil.rmtree(tmp_path / "tier")
    assert training(tmp_path, variables, CACHE) == local
    assert faults.injected > injected and len(faults.requests) < 4 * asked
    assert not [each for each in faults.requests[asked:] if each.startswith("PUT")]


VISION = """
import json
from k2jax.config import source
from tests.train.test_visual import visual_config

def get_config():
    config = visual_config({folder!r})
    config.data.images.share = ()
    config.data.sources = {{"pictures": source(kind="image_chat", path={place!r})}}
    return config
"""


def test_a_run_on_images_in_a_store_asks_for_each_once_and_a_warm_tier_asks_nobody(store, tmp_path):
    faults, variables = store
    (tmp_path / "set").mkdir()
    records = []
    for number in range(8):
        file = io.BytesIO()
        Image.new("RGB", (64, 64), (30 * number, 0, 99)).save(file, "PNG")
        (tmp_path / "set" / f"{number}.png").write_bytes(file.getvalue())
        put(variables, f"{BUCKET}/set/{number}.png", file.getvalue(), tmp_path)
        question = {"role": "user", "content": [{"type": "image", "image": f"{number}.png"}]}
        records.append({"messages": [question, {"role": "assistant", "content": f"Number {number}."}]})
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    (tmp_path / "set" / "chat.jsonl").write_bytes(content)
    put(variables, f"{BUCKET}/set/chat.jsonl", content, tmp_path)

    def trained(place, name):
        (tmp_path / f"{name}.py").write_text(VISION.format(folder=str(tmp_path), place=place))
        words = [f"--config={tmp_path / name}.py", f"--workdir={tmp_path / name}"]
        done = run(variables, "-m", "k2jax.train", *words, f"--config.data.cache_dir={tmp_path / 'cache'}")
        assert done.returncode == 0, done.stderr[-2000:]
        records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in record.items() if "loss" in key} for record in records]

    local = trained(str(tmp_path / "set"), "local")
    faults.requests.clear()
    faults.busy, faults.cut = 0.05, 0.05
    assert trained(f"s3://{BUCKET}/set", "cold") == local
    faults.busy = faults.cut = 0.0
    read = [each.split()[1].partition("?")[0] for each in faults.requests if each.startswith("GET")]
    assert {f"/{BUCKET}/set/{number}.png" for number in range(8)} <= set(read)
    faults.requests.clear()
    assert trained(f"s3://{BUCKET}/set", "warm") == local
    assert faults.requests and all("list-type" in each for each in faults.requests), faults.requests


def test_attributes_on_a_server_exclude_documents(store, tmp_path):
    faults, variables = store
    for place, key in (("documents", "text"), ("attributes/dups", "attributes")):
        values = [{"id": f"{n}", key: {"near": [[0, 1, 1.0]] * (n % 3)} if "/" in place else f"t{n}"} for n in range(9)]
        content = "".join(json.dumps(value) + "\n" for value in values)
        put(variables, f"{BUCKET}/web/{place}/x.jsonl", content.encode(), tmp_path)
    faults.busy, faults.retry_after = 0.3, "0"
    done = run(variables, "-c", EXCLUDING, f"s3://{BUCKET}/web")
    assert (done.returncode, done.stdout.split()) == (0, ["t0", "t3", "t6"]), done.stderr[-500:]


def test_many_processes_share_the_disk_and_survive_kills(store, tmp_path):
    faults, variables = store
    content = os.urandom(6 * CHUNK + 12_345)
    put(variables, f"{BUCKET}/big.bin", content, tmp_path)
    faults.requests.clear()
    faults.latency = 0.05
    start = lambda: subprocess.Popen(  # noqa: E731
        [sys.executable, "-c", READ, f"s3://{BUCKET}/big.bin"], env=variables, stdout=subprocess.PIPE, text=True
    )
    for moment in (1.2, 1.4, 1.6):
        victim = start()
        time.sleep(moment)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    killed = len([each for each in faults.requests if each.startswith("GET")])
    readers = [start() for _ in range(3)]
    digests = {reader.communicate()[0].split()[0] for reader in readers}
    assert digests == {hashlib.sha256(content).hexdigest()}
    gets = len([each for each in faults.requests if each.startswith("GET")])
    assert gets <= killed + 7, "each chunk that was not there is fetched once"


@pytest.mark.parametrize("fault", ["latency", "busy", "broken", "reset", "cut"])
def test_every_failure_is_overcome_or_one_line(store, tmp_path, fault):
    faults, variables = store
    put(variables, f"{BUCKET}/{fault}.bin", bytes(100_000), tmp_path)
    url = f"s3://{BUCKET}/{fault}.bin"
    if fault == "latency":
        faults.latency = 0.5
        assert run(variables, "-c", READ, url).returncode == 0
        return
    setattr(faults, fault, 0.5)
    done = run(variables, "-c", READ, url)
    assert done.returncode == 0, done.stderr[-500:]
    setattr(faults, fault, 1.0)
    shutil.rmtree(tmp_path / "tier")
    quick = "from k2jax.files.objects import store_client as s; s.RULE = s.RetryRule(3, 0.01, 0.1)\n" + READ
    done = run(variables, "-c", quick, url)
    assert done.returncode == 1 and re.search(rf"UserError: {url} failed after 3 attempts in \d s: ", done.stderr)


def test_a_full_disk_is_one_line(store, tmp_path):
    _, variables = store
    put(variables, f"{BUCKET}/room.bin", bytes(300_000), tmp_path)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # noqa: E731
    done = run(variables, "-c", READ, f"s3://{BUCKET}/room.bin", preexec_fn=limit)
    assert re.search(
        r"UserError: .*tier, which keeps what is read from object stores, cannot be written: ", done.stderr
    )
    assert not list(Path(tmp_path, "tier/chunks").glob("*/.*"))
