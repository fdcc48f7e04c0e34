"""The command ``python -m k2jax.sandbox image``: fetches images for sandboxes, lists them and tries them out."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from k2jax.agents.images.image_store import ImageStore, StoredImage
from k2jax.agents.images.pull import pull
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.errors import UserError
from k2jax.files.folder_lock import locked_folder

_TRIED = 30.0
"""Time in which an image's shell must answer [s]."""


def add_image(commands: Any) -> None:
    """Adds the commands below ``image`` to those of ``python -m k2jax.sandbox``."""
    image = commands.add_parser("image", help="unpack images of containers for sandboxes, and list them")
    below = image.add_subparsers(dest="image_command", required=True, metavar="COMMAND")
    parser = below.add_parser("pull", help="unpack an image, unless it is there")
    parser.add_argument("source", help="oci:FOLDER, oci:FOLDER:TAG, or http://127.0.0.1:PORT/NAME:TAG")
    parser.add_argument("folder", help="folder of images, as rl.images and --images name it")
    parser.add_argument("--name", default="", help="under which tasks find it beside its digest")
    parser.set_defaults(run=_pull)
    parser = below.add_parser("list", help="images of a folder")
    parser.add_argument("folder", help="folder of images")
    parser.set_defaults(run=_list)
    parser = below.add_parser("prune", help="delete images that were not used for longest, down to a size")
    parser.add_argument("folder", help="folder of images")
    parser.add_argument("--gib", type=float, required=True, help="how many GiB may stay; images in use stay anyway")
    parser.set_defaults(run=_prune)
    parser = below.add_parser("check", help="start a shell in an image")
    parser.add_argument("folder", help="folder of images")
    parser.add_argument("image", help="name, or sha256:...")
    parser.add_argument(
        "--backend", choices=("bubblewrap", "nsjail"), default="bubblewrap", help="(default: bubblewrap)"
    )
    parser.set_defaults(run=_check)


def _pull(arguments: argparse.Namespace) -> int:
    image = pull(arguments.source, arguments.folder, arguments.name, say=print)
    print(_line(image, [arguments.name] if arguments.name else []))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    store = ImageStore(arguments.folder)
    names, total = store.names(), 0
    for image in store.images():
        print(_line(image, names.get(image.digest, [])))
        total += image.bytes
    print(f"{total / 2**20:,.1f} MiB in {store.folder}")
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.gib < float("inf"):
        raise UserError(f"--gib={arguments.gib} is no size; write how many GiB may stay")
    store = ImageStore(arguments.folder)
    try:
        with locked_folder(store.folder):
            for image in store.prune(int(arguments.gib * 2**30)):
                print(f"deleted {_line(image, [])}")
    except BlockingIOError:
        raise UserError(f"another process writes images into {store.folder}; wait for it") from None
    return _list(arguments)


def _check(arguments: argparse.Namespace) -> int:
    async def answer() -> str:
        spec = SandboxSpec(image=arguments.image)
        async with await make_backend(arguments.backend, images=arguments.folder).open(spec) as sandbox:
            shell = ["/bin/sh", "-c", '. /etc/os-release 2>/dev/null; echo "${PRETTY_NAME:-no name}; PATH $PATH"']
            result = await sandbox.exec(shell, timeout=_TRIED)
            if result.code:
                raise UserError(f"its shell ends with {result.code}: {result.stderr[-300:].decode(errors='replace')}")
            return result.stdout.decode(errors="replace").strip()

    print(f"{arguments.image} works in {arguments.backend}: {asyncio.run(answer())}")
    return 0


def _line(image: StoredImage, names: list[str]) -> str:
    size = f"{image.bytes / 2**20:,.1f} MiB, {image.entries:,} entries"
    return f"{image.digest}  {size}  {' '.join(names) or 'without a name'}  from {image.source}"
