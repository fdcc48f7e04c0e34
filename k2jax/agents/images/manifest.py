"""What an image consists of: its manifest, its configuration, and blobs that are checked against their digests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import hashlib
import platform
import re
from typing import Any, BinaryIO, NamedTuple, Protocol
import zlib

from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json

MOST_MANIFEST = 4 << 20
"""Bytes of a manifest, of an index, or of a configuration."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"[^=\0\n]+=[^\0]*")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHUNK = 1 << 20
_MOST_LAYERS = 500


class Descriptor(NamedTuple):
    """A blob.

    Attributes:
        digest: ``sha256:`` and 64 hexadecimal digits.
        size: [bytes].
        media_type: what it is.
    """

    digest: str
    size: int
    media_type: str

    @classmethod
    def read(cls, value: Any) -> Descriptor:
        """Reads a descriptor from JSON.

        Raises:
            UserError: it is none, or of another hash.
        """
        fields = value if isinstance(value, Mapping) else {}
        digest, size = fields.get("digest"), fields.get("size")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
            raise UserError(f"the image names a blob without a size, or not by its SHA-256: {abbreviate(value)}")
        return cls(digest, size, str(fields.get("mediaType", "")))


class BlobSource(Protocol):
    """Where images come from."""

    def root(self) -> tuple[bytes, str]:
        """The manifest or the index that was asked for, and its digest, which is checked."""
        ...

    def blob(self, descriptor: Descriptor) -> contextlib.AbstractContextManager[BinaryIO]:
        """The content of a blob, which is not checked yet."""
        ...


class ImageConfig(NamedTuple):
    """How programs of an image want to be started.

    Attributes:
        env: variables.
        workdir: folder inside.
        user: name or number, with or without a group; empty for root.
        command: entry point and arguments.
    """

    env: dict[str, str]
    workdir: str
    user: str
    command: tuple[str, ...]


class Image(NamedTuple):
    """An image that can be unpacked.

    Attributes:
        digest: of its manifest, by which it is named.
        layers: compressed blobs, the lowest first.
        contents: digests of the uncompressed layers.
        config: see ``ImageConfig``.
    """

    digest: str
    layers: tuple[Descriptor, ...]
    contents: tuple[str, ...]
    config: ImageConfig


def read_image(source: BlobSource) -> Image:
    """The image of a source, for this machine's processor where there are several.

    Raises:
        UserError: a part is missing, malformed, or has not its digest.
    """
    data, digest = source.root()
    manifest = _object(data, "manifest")
    for _ in range(2):  # an index may hold another one
        if "manifests" not in manifest:
            break
        descriptor = _of_this_machine(manifest)
        data, digest = read_small(source, descriptor), descriptor.digest
        manifest = _object(data, "manifest")
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(layers) > _MOST_LAYERS:
        raise UserError(f"the manifest {digest} has no list of at most {_MOST_LAYERS} layers")
    config = _object(read_small(source, Descriptor.read(manifest.get("config"))), "configuration")
    rootfs = config.get("rootfs")
    contents = rootfs.get("diff_ids") if isinstance(rootfs, Mapping) else None
    if not isinstance(contents, list) or len(contents) != len(layers) or not all(map(_is_digest, contents)):
        raise UserError(f"the configuration of the image {digest} does not say what its layers contain")
    return Image(digest, tuple(map(Descriptor.read, layers)), tuple(contents), _config(config.get("config")))


def read_small(source: BlobSource, descriptor: Descriptor) -> bytes:
    """A blob of JSON, checked.

    Raises:
        UserError: it is too long, or not what the descriptor says.
    """
    if descriptor.size > MOST_MANIFEST:
        raise UserError(f"{descriptor.digest} has {descriptor.size:,} bytes; at most {MOST_MANIFEST:,} are read")
    with source.blob(descriptor) as file:
        data = file.read(descriptor.size + 1)
    check_blob(descriptor, len(data), hashlib.sha256(data).hexdigest())
    return data


def unpack_blob(source: BlobSource, layer: Descriptor, content: str, target: BinaryIO, most: int) -> None:
    """Writes the tar of a layer, and checks both the blob and what was in it.

    Args:
        source: of the blob.
        layer: the blob.
        content: digest of the tar.
        target: file that gets it.
        most: bytes of the tar.

    Raises:
        UserError: it is not what the manifest says, too long, or compressed in an unknown way.
    """
    tar = _TarWriter(layer, target, most)
    blob, size = hashlib.sha256(), 0
    with source.blob(layer) as file:
        while size <= layer.size and (data := file.read(min(_CHUNK, layer.size - size + 1))):
            size += len(data)
            blob.update(data)
            tar.write(data)
    check_blob(layer, size, blob.hexdigest())
    if tar.error is not None:
        raise UserError(f"the layer {layer.digest} is no gzip: {tar.error}")
    if tar.digest() != content:
        raise UserError(f"the layer {layer.digest} does not contain what the image's configuration says: {content}")


class _TarWriter:
    """Expands a blob into a file, up to a size.

    Attributes:
        error: why the blob cannot be expanded; None where it can. A damaged blob is better called that.
    """

    def __init__(self, layer: Descriptor, target: BinaryIO, most: int):
        self._layer, self._target, self._most = layer, target, most
        self._expand, self._hash, self._written = _expander(layer), hashlib.sha256(), 0
        self.error: zlib.error | None = None

    def write(self, data: bytes) -> None:
        """Takes a piece of the blob."""
        if self.error is not None:
            return
        try:
            for part in self._expand(data):
                self._written += len(part)
                if self._written > self._most:
                    raise UserError(f"the layer {self._layer.digest} has more than {self._most:,} bytes when expanded")
                self._hash.update(part)
                self._target.write(part)
        except zlib.error as error:
            self.error = error

    def digest(self) -> str:
        """Of what was written."""
        return f"sha256:{self._hash.hexdigest()}"


def check_blob(descriptor: Descriptor, size: int, digest: str) -> None:
    """Raises UserError where a blob is not what a descriptor says."""
    if size != descriptor.size or f"sha256:{digest}" != descriptor.digest:
        raise UserError(f"the blob {descriptor.digest} is damaged or incomplete; fetch the image again")


def _expander(layer: Descriptor) -> Callable[[bytes], Iterable[bytes]]:
    """A function from compressed pieces to pieces of the tar."""
    kind = layer.media_type.rpartition("tar")[2] if "tar" in layer.media_type else None
    if kind == "":
        return lambda data: (data,)
    if kind in ("+gzip", ".gzip"):
        return _Gunzip()
    raise UserError(
        f"the layer {layer.digest} is of the type {abbreviate(layer.media_type)}; tar and gzip are read: convert the "
        "image with skopeo copy --dest-compress-format=gzip"
    )


class _Gunzip:
    """Decompresses gzip of several members, a piece at a time."""

    def __init__(self):
        self._stream = zlib.decompressobj(wbits=31)

    def __call__(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream.eof:
                self._stream = zlib.decompressobj(wbits=31)
            part = self._stream.decompress(data, _CHUNK)
            yield part
            while len(part) == _CHUNK and not (self._stream.unconsumed_tail or self._stream.eof):
                part = self._stream.decompress(b"", _CHUNK)  # what it still has of a long repetition
                yield part
            data = self._stream.unconsumed_tail or self._stream.unused_data.lstrip(b"\0")  # blocks are padded


def _of_this_machine(index: Mapping[str, Any]) -> Descriptor:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    manifests = index["manifests"] if isinstance(index["manifests"], list) else []
    found = []
    for entry in manifests:
        where = entry.get("platform") if isinstance(entry, Mapping) else None
        if not isinstance(entry, Mapping) or not isinstance(where, Mapping | None):
            continue
        if where is None or (where.get("os"), where.get("architecture")) == ("linux", machine):
            found.append(entry)
    if not found:
        raise UserError(f"the index has no image for linux/{machine}")
    plain = [entry for entry in found if not (entry.get("platform") or {}).get("variant")]
    return Descriptor.read((plain or found)[0])


def _config(value: Any) -> ImageConfig:
    fields = value if isinstance(value, Mapping) else {}
    env = [text for text in _texts(fields.get("Env")) if _VARIABLE.fullmatch(text) and _is_utf8(text)]
    workdir, user = fields.get("WorkingDir"), fields.get("User")
    command = (*_texts(fields.get("Entrypoint")), *_texts(fields.get("Cmd")))
    return ImageConfig(
        dict(text.partition("=")[::2] for text in env),
        workdir if isinstance(workdir, str) and workdir.startswith("/") else "/",
        user if isinstance(user, str) else "",
        command,
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = parse_bounded_json(data)
    except ValueError as error:
        raise UserError(f"the {what} of the image cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"the {what} of the image is no object")
    return value
