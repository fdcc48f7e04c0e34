"""Images from layouts and registries: whole or not at all, checked, named, and shown in sandboxes."""

import argparse
import asyncio
import contextlib
import fcntl
import gzip
import http.server
import json
import os
from pathlib import Path
import subprocess
import sys
import threading

import pytest

from k2jax.agents.images.image_store import UNPACKING, ImageStore
from k2jax.agents.images.pull import image_source, pull
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.images import hold_image, image_settings
from k2jax.errors import UserError
from k2jax.files.folder_lock import locked_folder
from k2jax.sandbox import add_commands
from tests.agents.images.layouts import MACHINE, Layout, digest, entry, tar_of, tree_of
from tests.agents.sandbox.backends import new_backend

FILES = tar_of([entry("folder", "usr"), entry("file", "usr/a", b"a"), entry("file", "etc/motd", b"hello")])
MORE = tar_of([entry("file", "usr/b", b"b")])
CONFIG = {"Env": ["PATH=/opt/bin:/usr/bin", "LANG=C", "BROKEN"], "WorkingDir": "/testbed", "User": "1000:1000",
          "Entrypoint": ["/bin/sh"], "Cmd": ["-c", "true"]}  # fmt: skip


def layout_of(folder, **options):
    layout = Layout()
    return layout.write(folder, layout.image(FILES, MORE, **options))


def test_an_image_is_unpacked_once_and_known_by_its_digest_and_its_name(tmp_path):
    source, said = layout_of(tmp_path / "layout", config=CONFIG), []
    image = pull(source, str(tmp_path / "images"), "tests/a:1", say=said.append)
    root = tmp_path / "images/sha256" / image.digest.partition(":")[2]
    assert tree_of(root)["usr/b"] == ("file", b"b") and (image.entries, image.bytes) == (4, 7) and len(said) == 2
    assert image.config == (
        {"PATH": "/opt/bin:/usr/bin", "LANG": "C"},
        "/testbed",
        "1000:1000",
        ("/bin/sh", "-c", "true"),
    )
    settings = image_settings(str(root), "", "")
    assert settings == ({"PATH": "/opt/bin:/usr/bin", "HOME": "/", "LANG": "C"}, 1000, "/testbed")
    assert image_settings(str(root), "7", "/a")[1:] == (7, "/a")
    assert image_settings(str(tmp_path / "images/tests/a:1"), "", "")[1:] == (0, "/work")
    assert (tmp_path / "images/tests/a:1").resolve() == root.resolve()
    assert pull(source, str(tmp_path / "images"), "b", say=said.append) == image and len(said) == 2
    store = ImageStore(str(tmp_path / "images"))
    assert list(store.images()) == [image] and sorted(store.names()[image.digest]) == ["b", "tests/a:1"]


def test_uncompressed_layers_and_gzip_of_several_members(tmp_path):
    halves = lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]) + bytes(1000)  # noqa: E731
    for number, compress in enumerate((None, halves, lambda data: gzip.compress(data, 0))):
        source = layout_of(tmp_path / f"layout{number}", compress=compress)
        image = pull(source, str(tmp_path / f"images{number}"))
        assert (image.entries, image.bytes) == (4, 7)


def test_an_index_has_the_image_of_this_machine(tmp_path):
    layout = Layout()
    here, other = layout.image(FILES), layout.image(MORE)
    unknown = {"platform": {"os": "unknown", "architecture": "unknown"}}
    entries = [
        here | {"platform": {"os": "linux", "architecture": MACHINE}},
        other | {"platform": {"os": "linux", "architecture": "s390x"}},
        other | unknown,
    ]
    index = layout.manifest({"schemaVersion": 2, "manifests": entries}, "index.v1+json")
    source = layout.write(tmp_path / "layout", index, other, tags=("1.0", "other"))
    assert pull(f"{source}:1.0", str(tmp_path / "images")).digest == here["digest"]
    for text in (source, f"{source}:2"):
        with pytest.raises(UserError, match=r"tags: '1\.0, other'"):
            pull(text, str(tmp_path / "images"))


def broken(layout, how):
    """Breaks the layout of an image; returns the descriptor of its manifest."""
    good = layout.image(FILES, MORE)
    manifest = json.loads(layout.blobs[good["digest"]])
    layer, config = manifest["layers"][0], json.loads(layout.blobs[manifest["config"]["digest"]])
    if how == "damaged or incomplete":
        layout.blobs[layer["digest"]] = layout.blobs[layer["digest"]][:-9] + b"x" * 9
    elif how == "is no gzip":
        manifest["layers"][0] = layout.blob(b"no gzip at all", "layer.v1.tar+gzip")
    elif how == "does not contain what":
        config["rootfs"]["diff_ids"][0] = digest(b"other")
        manifest["config"] = layout.blob(json.dumps(config).encode(), "config.v1+json")
    elif how == "does not say what its layers contain":
        manifest["layers"].pop()
    elif how == "tar and gzip are read":
        layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar+zstd"
    elif how == "is not in":
        del layout.blobs[layer["digest"]]
    elif how == "names a blob without a size":
        layer["digest"] = "sha256:../../../etc/passwd"
    elif how == "has no list of at most":
        manifest["layers"] = "all"
    elif how == "cannot be read":
        return layout.blob(b'{"layers": NaN}', "manifest.v1+json")
    elif how == "at most 4,194,304 are read":
        return layout.blob(b" " * (5 << 20), "manifest.v1+json")
    return layout.manifest(manifest)


@pytest.mark.parametrize(
    "how",
    [
        "damaged or incomplete", "is no gzip", "does not contain what", "does not say what its layers contain",
        "tar and gzip are read", "is not in", "names a blob without a size", "has no list of at most",
        "cannot be read", "at most 4,194,304 are read",
    ],
)  # fmt: skip
def test_what_is_not_as_it_says_is_refused_and_leaves_nothing(tmp_path, how):
    layout = Layout()
    source = layout.write(tmp_path / "layout", broken(layout, how))
    with pytest.raises(UserError, match=how):
        pull(source, str(tmp_path / "images"))
    assert list((tmp_path / "images/sha256").iterdir()) == []


def test_what_a_killed_process_has_left_is_deleted_and_another_one_waits(tmp_path):
    source, images = layout_of(tmp_path / "layout"), tmp_path / "images"
    image = pull(source, str(images))
    root = ImageStore(str(images)).root(image.digest)
    root.with_suffix(".json").unlink()  # killed before the record
    (root / "usr/a").write_text("half")
    (images / "sha256" / f"{UNPACKING}x").mkdir()
    assert ImageStore(str(images)).get(image.digest) is None
    assert pull(source, str(images)) == image and (root / "usr/a").read_bytes() == b"a"
    assert sorted(path.name for path in (images / "sha256").iterdir()) == [root.name, f"{root.name}.json"]
    with locked_folder(images), pytest.raises(UserError, match="another process unpacks"):
        pull(source, str(images))


@pytest.mark.parametrize("name", ["../a", "a/../b", "sha256/x", "/a", "a b", "", "-x"])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    if name:
        with pytest.raises(UserError, match="is no name of an image"):
            pull(layout_of(tmp_path / "layout"), str(tmp_path / "images"), name)


def test_a_name_never_lies_in_another_image_or_outside(tmp_path):
    layout, images, outside = Layout(), tmp_path / "images", tmp_path / "outside"
    outside.mkdir()
    tar = tar_of([entry("folder", "usr"), entry("link", "out", str(outside)), entry("folder", "opt")])
    source = layout.write(tmp_path / "layout", layout.image(tar))
    pull(source, str(images), "tests")
    (images / "own/usr").mkdir(parents=True)
    for name in ("tests/out/a:1", "tests/opt/a:1", "own/a"):
        with pytest.raises(UserError, match="lies in another image"):
            pull(source, str(images), name)
    with pytest.raises(UserError, match="is a folder of its own"):
        pull(source, str(images), "own")
    assert list(outside.iterdir()) == [] and list((images / "own").iterdir()) == [images / "own/usr"]


def test_a_layout_of_pipes_and_strange_notes_is_refused(tmp_path):
    layout = Layout()
    source = layout.write(tmp_path / "layout", layout.image(FILES) | {"annotations": [1]}, tags=("",))
    assert pull(source, str(tmp_path / "images")).entries == 3
    (tmp_path / "layout/index.json").unlink()
    os.mkfifo(tmp_path / "layout/index.json")
    with pytest.raises(UserError, match="is no regular file"):
        pull(source, str(tmp_path / "images"))


def test_of_variants_of_a_processor_the_plain_one_is_taken(tmp_path):
    layout = Layout()
    here, other, where = layout.image(FILES), layout.image(MORE), {"os": "linux", "architecture": MACHINE}
    entries = [other | {"platform": where | {"variant": "v9"}}, here | {"platform": where}, "none"]
    index = layout.manifest({"schemaVersion": 2, "manifests": entries}, "index.v1+json")
    assert pull(layout.write(tmp_path / "layout", index), str(tmp_path / "images")).digest == here["digest"]


@contextlib.contextmanager
def registry(layout, tags, *, status=200):
    """A registry of a layout on the loopback; yields its address, and the paths that were asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            reference = self.path.rpartition("/")[2]
            data = layout.blobs.get(tags.get(reference, reference))
            self.send_response(status if data is not None else 404)
            if status == 307:
                self.send_header("Location", "http://[elsewhere")
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_a_registry_on_the_loopback(tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    layout = Layout()
    image = layout.image(FILES, MORE)
    with registry(layout, {"1.0": image["digest"]}) as (url, asked):
        assert pull(f"{url}/tests/a:1.0", str(tmp_path / "images")).digest == image["digest"]
        assert len(asked) == 4 and asked[0] == "/v2/tests/a/manifests/1.0"
        other = pull(f"{url}/tests/a@{image['digest']}", str(tmp_path / "other"))
        assert other.digest == image["digest"]
        with pytest.raises(UserError, match="answers 404"):
            pull(f"{url}/tests/a:2.0", str(tmp_path / "images"))
    redirecting = registry(layout, {"1.0": image["digest"]}, status=307)
    with redirecting as (url, _), pytest.raises(UserError, match="answers 307"):
        pull(f"{url}/tests/a:1.0", str(tmp_path / "images"))
    with pytest.raises(UserError, match="cannot be read"):
        pull(f"{url}/tests/a:1.0", str(tmp_path / "images"))
    layout.blobs[image["digest"]] += b" "
    with registry(layout, {}) as (url, _), pytest.raises(UserError, match="another manifest"):
        pull(f"{url}/tests/a@{image['digest']}", str(tmp_path / "x"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("docker.io/a:1", "is no source"),
        ("http://192.0.2.1/a:1", "skopeo copy"),
        ("http://127.0.0.1:5000/a", "names no image"),
        ("http://127.0.0.1:5000/a:1?x=1", "names no image"),
        ("http://127.0.0.1:5000/../a:1", "names no image"),
        ("https://127.0.0.1:5000/a:1", "is no source"),
    ],
)
def test_other_sources_are_refused(text, words):
    with pytest.raises(UserError, match=words):
        image_source(text)


def programs(*paths):
    """Entries of programs of this machine, and of what they are linked to."""
    needed = {}
    for path in paths:
        listing = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        needed |= {word: word for word in listing.split() if word.startswith("/")} | {path: path}
    return [entry("file", path, Path(path).resolve().read_bytes(), mode=0o755) for path in needed]


@pytest.mark.parametrize("name", ["bubblewrap", pytest.param("nsjail", marks=pytest.mark.slow)])
def test_a_sandbox_shows_an_image_with_its_variables(tmp_path, name):
    layout = Layout()
    config = {"Env": ["PATH=/opt/bin:/bin", "LANG=C", "WHO=image"], "WorkingDir": "/opt"}
    system = tar_of([entry("folder", "opt/bin"), *programs("/bin/sh", "/bin/cat")])
    source = layout.write(tmp_path / "layout", layout.image(system, FILES, config=config))
    image = pull(source, str(tmp_path / "images"), "tests/small:1")
    script = "echo $PATH $WHO; pwd; echo own >> /etc/motd; /bin/cat /etc/motd"

    async def run():
        opened = new_backend(name, str(tmp_path / "images"))
        try:
            for chosen in (image.digest, "tests/small:1"):
                async with await opened.open(SandboxSpec(image=chosen, env={"LANG": "C.UTF-8"})) as sandbox:
                    result = await sandbox.exec(["/bin/sh", "-c", script])
                    assert result.stdout == b"/opt/bin:/bin image\n/opt\nhelloown\n", result
        finally:
            opened.close()

    asyncio.run(run())


def test_the_command(tmp_path):
    source = layout_of(tmp_path / "layout")

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "k2jax.sandbox", "image", *arguments], capture_output=True, text=True, env=os.environ
        )
        return done.returncode, done.stdout, done.stderr

    code, out, _ = run("pull", source, str(tmp_path / "images"), "--name=tests/a:1")
    assert code == 0 and "layer 2 of 2" in out and "tests/a:1" in out
    code, out, _ = run("list", str(tmp_path / "images"))
    assert code == 0 and out.count("sha256:") == 1 and "tests/a:1" in out and "0.0 MiB in" in out
    code, _, error = run("pull", "oci:/nowhere", str(tmp_path / "images"))
    assert code == 2 and error.startswith("error: ") and error.count("\n") == 1


def test_images_that_were_not_used_for_longest_are_deleted_and_those_in_use_are_not(tmp_path, capsys):
    folder, stored = str(tmp_path / "images"), []
    for number in range(4):
        data = tar_of([entry("file", "usr/a", bytes([number]) * 1000)])
        layout = Layout()
        source = layout.write(tmp_path / f"layout{number}", layout.image(data))
        stored.append(pull(source, folder, f"name:{number}", say=lambda text: None))
        record = tmp_path / "images/sha256" / f"{stored[-1].digest[7:]}.json"
        os.utime(record, (number, number))

    def prune(gib):
        parser = argparse.ArgumentParser()
        add_commands(parser)
        arguments = parser.parse_args(["image", "prune", folder, f"--gib={gib}"])
        return arguments.run(arguments)

    store, used = ImageStore(folder), stored[0]
    program = (
        "import sys; from k2jax.agents.sandbox.images import hold_image, image_folder\n"
        "hold_image(image_folder(*sys.argv[1:])); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, "name:0", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as user:
        assert user.stdout.readline() == b"held\n"
        record = tmp_path / "images/sha256" / f"{used.digest[7:]}.json"
        assert record.stat().st_mtime > 1e9, "its use was not noted"
        os.utime(record, (0, 0))
        assert prune(2500 / 2**30) == 0
        assert {image.digest for image in store.images()} == {used.digest, stored[3].digest}
        assert sorted(name for names in store.names().values() for name in names) == ["name:0", "name:3"]
        assert capsys.readouterr().out.count("deleted sha256:") == 2
        assert sorted(os.listdir(tmp_path / "images/sha256")) == sorted(
            name for image in (used, stored[3]) for name in (image.digest[7:], f"{image.digest[7:]}.json")
        )
        user.stdin.close()
    assert prune(0) == 0 and list(store.images()) == []
    with pytest.raises(UserError, match="no size"):
        prune(-1)


def test_an_image_that_is_being_deleted_is_refused(tmp_path):
    image = pull(layout_of(tmp_path / "layout"), str(tmp_path / "images"), "a", say=lambda text: None)
    root = str(tmp_path / "images/sha256" / image.digest[7:])
    with open(f"{root}.json") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is being deleted"):
            hold_image(root)
    hold_image(root)
