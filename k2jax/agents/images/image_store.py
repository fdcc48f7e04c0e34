"""The folder of unpacked images that ``rl.images`` names: by digest below ``sha256``, and links by their names."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import fcntl
import json
import os
from pathlib import Path
import re
import shutil
from typing import Any

from k2jax.agents.images.manifest import ImageConfig
from k2jax.errors import UserError, abbreviate
from k2jax.files.atomic import write_atomic

UNPACKING = ".unpacking-"
"""How the folder of an image begins that is not complete."""
_NAMING = ".naming-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}")


@dataclasses.dataclass(frozen=True)
class StoredImage:
    """An image that has been unpacked.

    Attributes:
        digest: of its manifest.
        source: where it came from.
        bytes: of its files.
        entries: of its layers.
        config: see ``ImageConfig``.
    """

    digest: str
    source: str
    bytes: int
    entries: int
    config: ImageConfig


class ImageStore:
    """A folder of images.

    Args:
        folder: is made where it is missing.
    """

    def __init__(self, folder: str):
        self.folder = Path(folder).expanduser()
        self.digests = self.folder / "sha256"

    def root(self, digest: str) -> Path:
        """The folder of an image's files, whether it is there or not."""
        return self.digests / digest.removeprefix("sha256:")

    def get(self, digest: str) -> StoredImage | None:
        """An image that is complete; None for another one.

        Raises:
            UserError: its record is damaged.
        """
        path = self._record(digest)
        if not path.exists() or not self.root(digest).is_dir():
            return None
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            config = ImageConfig(**values.pop("config"))
            return StoredImage(**values, config=config._replace(command=tuple(config.command)))
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{path} is damaged; delete it and fetch the image again") from None

    def put(self, image: StoredImage, unpacked: Path) -> None:
        """Takes over the files of an image; until its record is there, it is not."""
        target = self.root(image.digest)
        if target.exists():  # of a process that was killed here
            shutil.rmtree(target)
        os.replace(unpacked, target)
        values = dataclasses.asdict(image) | {"config": image.config._asdict()}
        write_atomic(self._record(image.digest), json.dumps(values, indent=1))

    def check_name(self, name: str) -> Path:
        """The path of a name.

        Raises:
            UserError: it is no name, lies in another image, or a folder has it.
        """
        if not _NAME.fullmatch(name) or ".." in name.split("/") or name.split("/")[0] == "sha256":
            raise UserError(f"{abbreviate(name)} is no name of an image; write it as in a registry, such as tests/a:1")
        path = self.folder / name
        above = [each for each in path.parents if self.folder in each.parents]
        if any(each.is_symlink() or _is_root(each) for each in above):  # it would be made in an image, or outside
            raise UserError(f"{path} lies in another image; choose another name")
        if path.exists() and not path.is_symlink():
            raise UserError(f"{path} is a folder of its own; choose another name")
        return path

    def name(self, name: str, digest: str) -> None:
        """Lets a name stand for an image, also where it stood for another one; raises as ``check_name`` does."""
        path = self.check_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{_NAMING}{path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(self.root(digest), path.parent))
        os.replace(temporary, path)

    def images(self) -> Iterator[StoredImage]:
        """All that are complete, by their digests."""
        for path in sorted(self.digests.glob("*.json")):
            if (image := self.get(path.stem)) is not None:
                yield image

    def names(self) -> dict[str, list[str]]:
        """Names by the digest of their image."""
        found: dict[str, list[str]] = {}
        for folder, folders, _ in os.walk(self.folder):
            paths = [Path(folder, name) for name in folders]
            for path in (path for path in paths if path.is_symlink() and not path.name.startswith(_NAMING)):
                if (real := path.resolve()).parent == self.digests.resolve():
                    found.setdefault(f"sha256:{real.name}", []).append(str(path.relative_to(self.folder)))
            folders[:] = [path.name for path in paths if path != self.digests and not _is_root(path)]
        return found

    def prune(self, most: int) -> list[StoredImage]:
        """Deletes images, those first that were not used for longest, until all have at most so many bytes together.

        What a running process has shown to a sandbox stays; see ``hold_image``. Nobody else may write to the folder.

        Returns:
            Those that are deleted.
        """
        images, deleted = {image.digest: image for image in self.images()}, []
        total, names = sum(image.bytes for image in images.values()), self.names()
        for image in sorted(images.values(), key=lambda image: self._record(image.digest).stat().st_mtime_ns):
            if total <= most:
                break
            with open(self._record(image.digest)) as record:
                try:
                    fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                for name in names.get(image.digest, ()):
                    (self.folder / name).unlink()
                self._record(image.digest).unlink()
                shutil.rmtree(self.root(image.digest))
            total -= image.bytes
            deleted.append(image)
        return deleted

    def forget_unfinished(self) -> None:
        """Deletes what processes that were killed have left, while nobody else writes to the folder."""
        for path in self.digests.glob(f"{UNPACKING}*"):
            shutil.rmtree(path)
        for path in (*self.digests.glob(".*.json.*.tmp"), *self.folder.glob(f"{_NAMING}*")):
            path.unlink(missing_ok=True)

    def _record(self, digest: str) -> Path:
        return self.root(digest).with_suffix(".json")


def _is_root(path: Path) -> bool:
    """Whether a folder is a root file system, which holds no names of images."""
    return any((path / name).exists() for name in ("usr", "bin"))
