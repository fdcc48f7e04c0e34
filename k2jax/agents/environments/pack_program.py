"""Runs inside a sandbox, as text: packs the files that an agent has left below ``/work``.

What does not fit is left out, the largest first, and so is what cannot be read: an answer is not worth less for what
lies beside it. Modes are kept, also of files and folders that nobody may read: this program is their owner.
"""

import json
import os
import stat
import sys
import tarfile
import zlib

TRIES = 20  # files that are compressed in vain before the rest, which is larger, is left out
SHOWN = 20  # names of what was left out
TOO_LARGE = "too large beside the others"
BLOCK = 4096  # bytes of a file system's block


class Archive:
    """A tar archive, compressed as gzip, of a limited size."""

    def __init__(self, largest: int):
        """Args: ``largest`` is its limit [bytes]."""
        self._compressor, self._largest = zlib.compressobj(6, zlib.DEFLATED, 31), largest - 2048
        self._taken, self.data = 0, bytearray()

    def add(self, item: tarfile.TarInfo, file: int = -1) -> bool:
        """Adds an item, with the content of an open file where it has one; False where it does not fit."""
        header = item.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        kept = None
        if self._taken + len(header) + item.size + tarfile.BLOCKSIZE > 0.99 * self._largest:
            kept = self._compressor.copy(), self._taken, len(self.data)
        fits = self._write(header) and (file < 0 or self._write_file(file, item.size))
        if kept is None or (fits and len(self.data) + len(self._compressor.copy().flush()) <= self._largest):
            return True  # what is shorter than the limit uncompressed is hardly longer compressed
        self._compressor, self._taken, end = kept
        del self.data[end:]
        return False

    def end(self) -> bytes:
        """The whole archive."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self.data += self._compressor.flush()
        return bytes(self.data)

    def _write(self, data: bytes) -> bool:
        self._taken += len(data)
        self.data += self._compressor.compress(data)
        return len(self.data) <= self._largest

    def _write_file(self, file: int, size: int) -> bool:
        left = size
        while left:
            data = os.read(file, min(left, 1 << 16)) or bytes(min(left, 1 << 16))
            left -= len(data)
            if not self._write(data):
                return False
        return self._write(bytes(-size % tarfile.BLOCKSIZE))


def opened(path: str, mode: int, flags: int) -> None:
    """Gives the owner a right to a file or folder that its mode does not."""
    if mode & flags != flags:
        os.chmod(path, mode | flags)


def below(top: str, left_out: list):
    """Everything below a folder, itself first: paths and what ``lstat`` says."""
    waiting = [top]
    while waiting:
        path = waiting.pop()
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                opened(path, stat.S_IMODE(status.st_mode), 0o700)
                waiting += [path + "/" + name for name in sorted(os.listdir(path), reverse=True)]
        except OSError as error:
            left_out.append((path, error.strerror))
        else:
            yield path, status


def item_of(path: str, status: os.stat_result) -> tarfile.TarInfo:
    """What the archive says of a path; no times or owners, so that an episode that is repeated has the same bytes."""
    item = tarfile.TarInfo(".")
    item.name = path
    item.mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        item.type = tarfile.DIRTYPE
        if path == ".":
            item.mode |= 0o700
    elif stat.S_ISLNK(status.st_mode):
        item.type, item.linkname = tarfile.SYMTYPE, os.readlink(path)
    else:
        item.size = status.st_size
    return item


def add_file(archive: Archive, path: str, status: os.stat_result) -> bool:
    """Adds a regular file; OSError where it cannot be read, also because a program holds a lease on it."""
    opened(path, stat.S_IMODE(status.st_mode), 0o400)
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return archive.add(item_of(path, status), file)
    finally:
        os.close(file)


def packed(first: list, largest: int, disk: int, files: int) -> tuple:
    """The archive of this folder, and what was left out: pairs of a path and a reason.

    Args:
        first: paths of files and folders whose files come before all others.
        largest: bytes of the archive.
        disk: bytes of the files where it is unpacked.
        files: how many there may be there.
    """
    left_out: list = []
    entries = list(below(".", left_out))
    regular = [each for each in entries if stat.S_ISREG(each[1].st_mode)]
    named = tuple("./" + path.strip("/") + "/" for path in first)
    regular.sort(key=lambda each: (not (each[0] + "/").startswith(named), each[1].st_size, each[0]))
    others = [each for each in entries if stat.S_ISDIR(each[1].st_mode) or stat.S_ISLNK(each[1].st_mode)]
    archive, failed = Archive(largest), 0
    for path, status in others + regular:
        is_file = stat.S_ISREG(status.st_mode)
        room = -(-status.st_size // BLOCK) * BLOCK if is_file else BLOCK
        fits = room <= disk and files > 0 and failed < TRIES
        try:
            if fits and is_file:
                fits = add_file(archive, path, status)
                failed += not fits
            elif fits:
                fits = archive.add(item_of(path, status))
        except (OSError, ValueError) as error:
            left_out.append((path, str(getattr(error, "strerror", None) or error)))
            continue
        if fits:
            disk, files = disk - room, files - 1
        else:
            left_out.append((path, TOO_LARGE))
    return archive.end(), left_out


def main() -> None:
    """Reads a request from its argument; writes a line of JSON about what was left out, and the archive."""
    os.chmod("/work", 0o755 | stat.S_IMODE(os.stat("/work").st_mode))
    os.chdir("/work")
    data, left_out = packed(**json.loads(sys.argv[1]))
    names = [os.fsencode(path)[2:202].decode("utf-8", "replace") + ": " + reason for path, reason in left_out[:SHOWN]]
    if len(left_out) > SHOWN:
        names.append(f"{len(left_out) - SHOWN} more")
    sys.stdout.buffer.write(json.dumps(names).encode() + b"\n" + data)


if __name__ == "__main__":
    main()
