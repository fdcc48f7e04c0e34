"""Image layouts that tests write: layers from lists of entries, with right digests unless a test breaks them."""

import gzip
import hashlib
import io
import json
import platform
import tarfile

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
TYPES = {
    "folder": tarfile.DIRTYPE,
    "file": tarfile.REGTYPE,
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "pipe": tarfile.FIFOTYPE,
}


def entry(kind, name, data=b"", mode=None, mtime=1_000_000_000):
    """A tar entry: ``data`` is a file's content, or a link's target."""
    info = tarfile.TarInfo(name)
    info.type, info.mtime = TYPES[kind], mtime
    info.mode = mode if mode is not None else 0o755 if kind == "folder" else 0o644
    if kind == "file":
        info.size = len(data)
    elif isinstance(data, str):
        info.linkname = data
    return info, data if kind == "file" else b""


def tar_of(entries):
    """An uncompressed tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Layout:
    """A layout in a folder, or in memory for a registry."""

    def __init__(self):
        self.blobs = {}

    def blob(self, data, kind):
        """Adds a blob; returns its descriptor."""
        self.blobs[digest(data)] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data)}

    def image(self, *tars, config=None, compress=gzip.compress):
        """Adds an image of some tars; returns the descriptor of its manifest."""
        kind = "layer.v1.tar+gzip" if compress else "layer.v1.tar"
        layers = [self.blob(compress(tar) if compress else tar, kind) for tar in tars]
        machine = {"os": "linux", "architecture": MACHINE}
        values = machine | {
            "config": config or {},
            "rootfs": {"type": "layers", "diff_ids": [digest(tar) for tar in tars]},
        }
        configured = self.blob(json.dumps(values).encode(), "config.v1+json")
        return self.manifest({"schemaVersion": 2, "config": configured, "layers": layers})

    def manifest(self, values, kind="manifest.v1+json"):
        return self.blob(json.dumps(values).encode(), kind)

    def write(self, folder, *manifests, tags=("",)):
        """Writes the layout; returns the text that names it."""
        (folder / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        for name, data in self.blobs.items():
            (folder / "blobs/sha256" / name.partition(":")[2]).write_bytes(data)
        entries = [
            each | ({"annotations": {"org.opencontainers.image.ref.name": tag}} if tag else {})
            for each, tag in zip(manifests, tags, strict=True)
        ]
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
        return f"oci:{folder}"


def written(folder, *layers, **options):
    """Writes a layout of one image from lists of entries; returns the text that names it."""
    layout = Layout()
    return layout.write(folder, layout.image(*map(tar_of, layers), **options))


def tree_of(root):
    """What a folder holds: by path (kind, content or target, mode of files and folders)."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("folder", "")
        else:
            found[name] = ("file", path.read_bytes())
    return found
