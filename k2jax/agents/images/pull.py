"""Unpacks an image into a folder of images, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path
import tempfile

from k2jax.agents.images.image_registry import RegistrySource
from k2jax.agents.images.image_store import UNPACKING, ImageStore, StoredImage
from k2jax.agents.images.layers import ImageBounds, apply_layer
from k2jax.agents.images.layout import LayoutSource
from k2jax.agents.images.manifest import BlobSource, read_image, unpack_blob
from k2jax.agents.images.tree import ImageTree
from k2jax.agents.sandbox.mount_namespace import NOBODY
from k2jax.errors import UserError
from k2jax.files.folder_lock import locked_folder


def image_source(text: str) -> BlobSource:
    """The source that a text names: ``oci:FOLDER``, ``oci:FOLDER:TAG``, or a URL of a registry on the loopback.

    Raises:
        UserError: it names none.
    """
    if text.startswith("oci:"):
        path, tag = text.removeprefix("oci:"), ""
        if not Path(path).is_dir():
            path, _, tag = path.rpartition(":")
        return LayoutSource(path, tag)
    if text.startswith("http://"):
        return RegistrySource(text)
    raise UserError(f"{text} is no source of an image; write oci:FOLDER:TAG, or http://127.0.0.1:PORT/NAME:TAG")


def pull(
    source: str,
    folder: str,
    name: str = "",
    *,
    bounds: ImageBounds | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> StoredImage:
    """Unpacks an image, unless it is there, and names it.

    Files belong to the user as whom sandboxes run: to this one, or to 65534 where this is root.

    Args:
        source: see ``image_source``.
        folder: of images, which is made where it is missing.
        name: under which tasks find it beside its digest; empty for none.
        bounds: of its layers together.
        say: receives a line for every layer.

    Raises:
        UserError: the image cannot be read or is refused, another process unpacks there, or the disk is full.
    """
    bounds = bounds or ImageBounds()
    try:
        store = ImageStore(folder)
        if name:
            store.check_name(name)
        store.digests.mkdir(parents=True, exist_ok=True)
        with locked_folder(store.folder):
            store.forget_unfinished()
            image = _unpacked(store, source, bounds, say)
            if name:
                store.name(name, image.digest)
            return image
    except BlockingIOError:
        raise UserError(f"another process unpacks an image into {folder}; try again later") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a home folder of nobody
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"the image cannot be unpacked into {folder}: {reason}") from None


def _unpacked(store: ImageStore, text: str, bounds: ImageBounds, say: Callable[[str], None]) -> StoredImage:
    source = image_source(text)
    image = read_image(source)
    if (known := store.get(image.digest)) is not None:
        return known
    with tempfile.TemporaryDirectory(prefix=UNPACKING, dir=store.digests) as temporary:
        files = Path(os.path.realpath(temporary)) / "files"
        files.mkdir(mode=0o755)
        owner = NOBODY if os.geteuid() == 0 else None
        if owner is not None:
            os.chown(files, owner, owner)
        tree = ImageTree(str(files), owner)
        for number, (layer, content) in enumerate(zip(image.layers, image.contents, strict=True), start=1):
            say(f"layer {number} of {len(image.layers)}, {layer.size / 2**20:,.1f} MiB")
            with tempfile.TemporaryFile(dir=temporary) as tar:
                unpack_blob(source, layer, content, tar, bounds.most_tar())
                tar.seek(0)
                apply_layer(tree, tar, bounds, layer.digest)
        tree.finish()
        stored = StoredImage(image.digest, text, bounds.bytes, bounds.entries, image.config)
        store.put(stored, files)
    return stored
