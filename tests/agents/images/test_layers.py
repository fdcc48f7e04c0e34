"""Layers over each other: whiteouts, links and modes as the specification has them, and nothing that leads out."""

import os
import tarfile

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.images.layers import ImageBounds
from k2jax.agents.images.pull import pull
from k2jax.errors import UserError
from tests.agents.images.layouts import Layout, entry, tar_of, tree_of, written


def unpacked(folder, *layers, **options):
    """The files of an image of these layers."""
    source = written(folder / "layout", *layers)
    image = pull(source, str(folder / "images"), **options)
    return folder / "images/sha256" / image.digest.partition(":")[2]


def test_upper_layers_replace_and_take_away(tmp_path):
    lower = [
        entry("folder", "etc"), entry("file", "etc/a", b"1"), entry("file", "etc/b", b"2"), entry("folder", "var"),
        entry("folder", "var/log"), entry("file", "var/log/x", b"x"), entry("file", "usr", b"a file"),
        entry("folder", "opt"), entry("file", "opt/kept", b"k"), entry("file", "opt/new", b"old"),
    ]  # fmt: skip
    upper = [
        entry("file", "etc/.wh.a"), entry("file", "etc/b", b"3"), entry("file", ".wh.var"), entry("folder", "usr"),
        entry("link", "usr/lib", "../etc"), entry("file", "usr/lib/c", b"4"),
        entry("file", "opt/new", b"new"), entry("file", "opt/.wh..wh..opq"), entry("file", "opt/also", b"new"),
    ]  # fmt: skip
    assert tree_of(unpacked(tmp_path, lower, upper)) == {
        "etc": ("folder", ""), "etc/b": ("file", b"3"), "etc/c": ("file", b"4"), "usr": ("folder", ""),
        "usr/lib": ("link", "../etc"), "opt": ("folder", ""), "opt/new": ("file", b"new"), "opt/also": ("file", b"new"),
    }  # fmt: skip


def test_modes_times_and_hard_links(tmp_path):
    root = unpacked(
        tmp_path,
        [
            entry("folder", "bin", mode=0o500), entry("file", "bin/su", b"#!", mode=0o4755),
            entry("file", "bin/secret", b"s", mode=0), entry("hard link", "bin/again", "/bin/su"),
            entry("link", "bin/sh", "/usr/bin/dash"), entry("hard link", "bin/sh2", "bin/sh"),
            entry("folder", "tmp", mode=0o1777), entry("file", "./made/on/the/way", b"", mtime=5),
        ],
    )  # fmt: skip
    mode = lambda name: oct(os.lstat(root / name).st_mode & 0o7777)  # noqa: E731
    assert (mode("bin"), mode("bin/su"), mode("bin/secret"), mode("tmp")) == ("0o700", "0o755", "0o600", "0o1777")
    assert os.path.samefile(root / "bin/su", root / "bin/again") and os.readlink(root / "bin/sh2") == "/usr/bin/dash"
    assert os.lstat(root / "bin").st_mtime == os.lstat(root / "bin/sh").st_mtime == 1_000_000_000
    assert os.lstat(root / "made/on/the/way").st_mtime == 5 and mode("made") == "0o755"


def test_links_lead_to_what_is_in_the_image(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("k")
    climbing = "../" * 30
    root = unpacked(
        tmp_path,
        [
            entry("link", "a", str(outside)), entry("link", "b", f"{climbing}{outside}"), entry("link", "c", "b/c2"),
            entry("file", "a/one", b"1"), entry("file", "b/two", b"2"), entry("file", "c/three", b"3"),
        ],
        [entry("file", "a/.wh.kept"), entry("file", "b/.wh..wh..opq"), entry("file", "a/four", b"4")],
    )  # fmt: skip
    assert tree_of(outside) == {"kept": ("file", b"k")}
    inside = {name for name, (kind, _) in tree_of(root).items() if kind == "file"}
    assert inside == {f"{str(outside).strip('/')}/four"}


NAMES = st.sampled_from(["a", "b", "a/b", "a/c", "b/a", "a/b/c"])
ENTRIES = st.one_of(
    st.tuples(st.just("folder"), NAMES),
    st.tuples(st.just("file"), NAMES),
    st.tuples(st.just("whiteout"), NAMES),
    st.tuples(st.just("opaque"), st.sampled_from(["", "a", "a/b"])),
)


def modelled(layers):
    """What the specification says of layers without links, on a dictionary: a path's kind and its layer's number."""
    tree = {}
    for number, layer in enumerate(layers):
        below = dict(tree)  # whiteouts hold for lower layers alone
        for kind, name in layer:
            if kind == "whiteout":
                gone = {path for path in below if path == name or path.startswith(f"{name}/")}
            elif kind == "opaque":
                gone = {path for path in below if name == "" or path.startswith(f"{name}/")}
            else:
                gone = set()
            for path in gone:
                if (
                    path in tree
                    and tree[path][1] < number
                    and not any(tree[other][1] == number for other in tree if other.startswith(f"{path}/"))
                ):
                    del tree[path]
            if kind in ("file", "folder"):
                parts = name.split("/")
                for above in ("/".join(parts[:count]) for count in range(1, len(parts))):
                    if above in tree and tree[above][0] == "file":
                        return None  # refused: a file where a folder is needed
                    tree[above] = ("folder", number)
                if kind == "file":
                    for path in [path for path in tree if path.startswith(f"{name}/")]:
                        del tree[path]
                if not (kind == "folder" and name in tree and tree[name][0] == "folder"):
                    below = {path: value for path, value in below.items() if not path.startswith(f"{name}/")}
                tree[name] = (kind, number)
    return {name: kind for name, (kind, _) in tree.items()}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(ENTRIES, max_size=6), min_size=1, max_size=3))
def test_layers_are_what_the_specification_says(tmp_path_factory, layers):
    def entry_of(kind, name):
        folder, _, base = name.rpartition("/")
        if kind == "whiteout":
            return entry("file", f"{folder}/.wh.{base}")
        return entry("file", f"{name}/.wh..wh..opq") if kind == "opaque" else entry(kind, name)

    expected = modelled(layers)
    written_layers = [[entry_of(kind, name) for kind, name in layer] for layer in layers]
    folder = tmp_path_factory.mktemp("image")
    if expected is None:
        with pytest.raises(UserError, match="a file where a folder is needed"):
            unpacked(folder, *written_layers)
    else:
        assert {name: kind for name, (kind, _) in tree_of(unpacked(folder, *written_layers)).items()} == expected


def sized(name, size):
    info, _ = entry("file", name)
    info.size = size
    return info


HOSTILE = {
    "a path that leads upwards": [entry("file", "a/../../b", b"x")],
    "a path that leads": [entry("folder", "..")],
    "a hard link to what is not there": [entry("hard link", "a", "etc/shadow")],
    "a path that leads up": [entry("hard link", "a", "../../../../etc/hostname")],
    "a hard link to what is no file": [entry("folder", "d"), entry("hard link", "a", "d")],
    "a device or a pipe": [entry("device", "usr/zero")],
    "a device or a": [entry("pipe", "usr/pipe")],
    "a whiteout of nothing": [entry("file", "a/.wh...")],
    "too many links": [entry("link", "a", "b"), entry("link", "b", "a"), entry("file", "a/x", b"x")],
    "a file where a folder is needed": [entry("file", "a", b"x"), entry("file", "a/b", b"x")],
    "too many folders": [entry("file", "d/" * 300 + "x", b"x")],
    "too many folders in": [entry("file", "d/" * 1200 + "x", b"x")],
    "too many folders in each": [
        entry("link", "l", "d/" * 200),
        entry("file", "l/" + "d/" * 100 + "x", b"x"),
        entry("folder", "d/" * 200),
    ],
    "File name too long": [entry("file", "n" * 300, b"x")],
    "embedded null": [entry("link", "a", "x" * 200 + "\0y")],
    "more than 3,000 bytes": [entry("file", "a", b"x" * 2000), entry("file", "b", b"x" * 2000)],
    "more than 10 entries": [entry("folder", f"d{number}") for number in range(11)],
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_hostile_layers_are_refused_and_leave_nothing(tmp_path, reason):
    with pytest.raises(UserError, match=reason):
        unpacked(tmp_path, HOSTILE[reason], bounds=ImageBounds(10, 3000))
    assert [path.name for path in (tmp_path / "images/sha256").iterdir()] == []
    unpacked(tmp_path / "good", [entry("file", "a", b"x")])


def hostile_tars():
    """Tars by the reason for which they are refused."""
    good = tar_of([entry("file", "a", b"x" * 5000)])
    yield "it ends in what is no tar", tar_of([entry("file", "a", b"x")])[:1024] + b"\xff" * 1024
    yield "cannot be unpacked", good[:2000]  # cut off
    yield "a header of more than", tar_with_pax(2 << 20)
    negative = bytearray(tar_of([entry("file", "a", b"x")]))
    negative[124:136] = b"\xff" * 12  # a size of -1
    negative[148:156] = b"%06o\0 " % (sum(negative[:148]) + sum(negative[156:512]) + 8 * 32)
    yield "cannot be unpacked", bytes(negative)
    huge, _ = entry("file", "a")
    huge.size = 1 << 50
    chained = b"".join(pax_header(b"11 path=aa\n") for _ in range(2000))
    yield "cannot be unpacked", chained + good
    yield "bytes", huge.tobuf(tarfile.PAX_FORMAT) + b"\0" * 1024


def pax_header(records):
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    return info.tobuf(tarfile.USTAR_FORMAT) + records.ljust(512, b"\0")


def tar_with_pax(size):
    info, _ = entry("file", "a")
    info.pax_headers = {"comment": "x" * size}
    return info.tobuf(tarfile.PAX_FORMAT) + b"\0" * 1024


@pytest.mark.parametrize("number", range(6))
def test_damaged_tars_are_refused(tmp_path, number):
    reason, tar = list(hostile_tars())[number]
    layout = Layout()
    source = layout.write(tmp_path / "layout", layout.image(tar))
    with pytest.raises(UserError, match=reason):
        pull(source, str(tmp_path / "images"))
    assert list((tmp_path / "images/sha256").iterdir()) == []


def test_files_with_holes_stay_small_and_the_devices_of_dev_are_left_out(tmp_path):
    root = unpacked(tmp_path, [entry("file", "holes", b"a" + bytes(30 << 20) + b"b"), entry("device", "dev/null")])
    assert os.stat(root / "holes").st_blocks * 512 < 8 << 20 and (root / "holes").read_bytes()[-1:] == b"b"
    assert not (root / "dev/null").exists()


def test_entries_that_are_made_to_take_long_are_refused_for_it(tmp_path):
    """Each is behind links that lead back and forth; what is granted grows with usual entries alone."""
    links = [entry("link", f"l{n}", "x/../" * 150 + (f"l{n - 1}" if n else "x")) for n in range(30)]
    layer = [entry("folder", "x"), *links, *(entry("file", f"l29/{n}/a") for n in range(1000))]
    with pytest.raises(
        UserError, match=r"at its entry 'l29/\d+/a': its entries take far longer than those of an image"
    ):
        unpacked(tmp_path, layer, bounds=ImageBounds(seconds=0.25))
    usual = [entry("file", f"x/{n % 40}/{n}", b"x") for n in range(1000)]
    assert len(tree_of(unpacked(tmp_path / "usual", usual, bounds=ImageBounds(seconds=0.25)))) == 1041
