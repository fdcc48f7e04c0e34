"""Images unpacked as umoci unpacks them, and fetched from the registry that others use.

apt-get install umoci skopeo docker-registry
python -m pytest -n0 -m external tests/agents/images
"""

import os
import shutil
import socket
import subprocess
import time

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.images.pull import pull
from k2jax.errors import UserError
from tests.agents.images.layouts import Layout, entry, tar_of, tree_of

pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(
        not all(map(shutil.which, ("umoci", "skopeo", "docker-registry"))), reason="needs umoci, skopeo"
    ),
]
NAMES = st.sampled_from(["a", "b", "c", "a/b", "a/c", "b/a", "c/d", "a/b/c"])
TARGETS = st.sampled_from(["a", "b", "/a", "../b", "../../../a", "a/b", "nowhere"])
ENTRIES = st.one_of(
    st.tuples(st.sampled_from(["folder", "file", "whiteout"]), NAMES),
    st.tuples(st.just("opaque"), st.sampled_from(["a", "a/b", "c"])),
    st.tuples(st.sampled_from(["link", "hard link"]), NAMES, TARGETS),
)


def entry_of(kind, name, *target):
    folder, _, base = name.rpartition("/")
    if kind == "whiteout":
        return entry("file", f"{folder}/.wh.{base}".lstrip("/"))
    if kind == "opaque":
        return entry("file", f"{name}/.wh..wh..opq")
    return entry(kind, name, *(target or ([b"x"] if kind == "file" else [])))


def test_random_layers_are_unpacked_as_by_umoci(tmp_path_factory):
    compared = []

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.lists(ENTRIES, max_size=5), min_size=1, max_size=3))
    def compare(layers):
        compared.append(is_as_by_umoci(tmp_path_factory, layers))

    compare()
    assert sum(compared) > 100


def is_as_by_umoci(tmp_path_factory, layers):
    """Whether both have unpacked an image; then they have made the same of it."""
    folder, layout = tmp_path_factory.mktemp("image"), Layout()
    image = layout.image(*(tar_of([entry_of(*each) for each in layer]) for layer in layers))
    source = layout.write(folder / "layout", image, tags=("x",))
    command = ["umoci", "unpack", "--image", f"{folder}/layout:x", str(folder / "bundle")]
    theirs = subprocess.run(command, capture_output=True, text=True)
    try:
        ours = pull(source, str(folder / "images"))
    except UserError as error:
        refused = ("where a folder is needed", "too many links", "hard link to what is")
        assert theirs.returncode or any(words in str(error) for words in refused), (error, layers)
        return False
    if theirs.returncode == 0:
        root = folder / "images/sha256" / ours.digest.partition(":")[2]
        assert tree_of(root) == tree_of(folder / "bundle/rootfs"), layers
    shutil.rmtree(folder)
    return theirs.returncode == 0


def test_an_image_of_docker_s_registry(tmp_path):
    layout = Layout()
    image = layout.image(tar_of([entry("folder", "usr"), entry("file", "usr/a", os.urandom(3 << 20))]))
    layout.write(tmp_path / "layout", image, tags=("x",))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "config.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}', secret: x}}\n"
    )
    server = subprocess.Popen(["docker-registry", "serve", str(tmp_path / "config.yml")], stderr=subprocess.DEVNULL)
    try:
        url = f"127.0.0.1:{port}/tests/a:1"
        for _ in range(100):
            time.sleep(0.1)
            copy = ["skopeo", "copy", "--insecure-policy", "--dest-tls-verify=false", f"oci:{tmp_path}/layout:x"]
            if subprocess.run([*copy, f"docker://{url}"], capture_output=True).returncode == 0:
                break
        pulled = pull(f"http://{url}", str(tmp_path / "images"))
    finally:
        server.kill()
        server.wait()
    assert pulled.digest == image["digest"] and pulled.bytes == 3 << 20
