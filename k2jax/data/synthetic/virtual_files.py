"""Files whose bytes are computed when they are read.

A split is a number of groups. A group has 8,192 documents in 2^23 tokens, and all groups are cut in the same way. So
the high bits of an offset are those of its group and the low ones those of its document, and ``linear_sums`` knows the
sums of all pages. A block of 4,096 tokens has its number in its tokens, by which a row can be told from every other.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import io
from pathlib import Path
from typing import NamedTuple
import zlib

import numpy as np

from k2jax.data.blocks import BLOCK, BLOCKS
from k2jax.data.disk_files import DISK, OpenedFile
from k2jax.data.paged.array import FENCES, PAGE, PAGES, fence_numbers
from k2jax.data.synthetic.linear_sums import linear_sums

DOCUMENTS, TOKENS = 2**13, 2**23
"""Documents and tokens of a group."""
PER_SHARD = 64 * 2**20
"""Tokens of a file, as those of real shards."""
BITS = 32
"""Of the number of a page or of a block."""
_IN_BLOCK = BLOCK // 4
_HEADER = 128


class VirtualFile(NamedTuple):
    """A file of one array.

    Attributes:
        size: its length [bytes].
        header: its first bytes.
        values: of numbers of values, int64 ``[n]``.
        width: bytes of a value.
    """

    size: int
    header: bytes
    values: Callable[[np.ndarray], np.ndarray]
    width: int

    def read(self, start: int, stop: int) -> bytes:
        """See ``OpenedFile``."""
        stop = min(stop, self.size)
        begin = len(self.header)
        first, last = max(start - begin, 0) // self.width, -(-max(stop - begin, 0) // self.width)
        content = self.values(np.arange(first, last)).tobytes()
        low = first * self.width + begin
        return self.header[start:stop] + content[max(start - low, 0) : max(stop - low, 0)]

    def forget(self, start: int, stop: int) -> bool:
        """See ``OpenedFile``."""
        return False


class VirtualSplit:
    """The files of a split.

    Attributes:
        documents: number of documents.
        tokens: number of tokens, of four bytes each.
        bytes: UTF-8 bytes that the documents are said to have.
    """

    def __init__(self, groups: int, seed: int):
        """A split of so many groups; the seed decides tokens and lengths."""
        rng = np.random.default_rng(seed)
        self.documents, self.tokens = groups * DOCUMENTS, groups * TOKENS
        cuts = rng.choice(TOKENS // 2 - 1, DOCUMENTS - 1, replace=False)  # of pairs: none has less than two tokens
        self._starts = np.concatenate([[0], 2 * np.sort(cuts + 1)])
        self._lengths = 4 * np.diff(np.append(self._starts, TOKENS)).astype(np.uint32)
        self.bytes = groups * int(self._lengths.sum())
        self._tokens = rng.integers(0, 2**16, _IN_BLOCK).astype(np.uint32)

    @property
    def sizes(self) -> dict[str, int]:
        """Length of every file of tokens, and of every index, by name [bytes]."""
        numbers = range(-(-self.tokens // PER_SHARD))
        sizes = {f"tokens-{number:05d}.bin": self._shard_size(number) for number in numbers}
        return sizes | {name: file.size for name, file in self._indices().items()}

    def open(self, name: str) -> VirtualFile:
        """A file of ``sizes``."""
        if not name.startswith("tokens-"):
            return self._indices()[name]
        number = int(name.removeprefix("tokens-").removesuffix(".bin"))
        return VirtualFile(self._shard_size(number), b"", lambda places: self.values(number * PER_SHARD + places), 4)

    def _shard_size(self, number: int) -> int:
        return 4 * min(PER_SHARD, self.tokens - number * PER_SHARD)

    def values(self, places: np.ndarray) -> np.ndarray:
        """The tokens at places of the stream, uint32 ``[n]``."""
        block, within = places >> 12, places & (_IN_BLOCK - 1)
        number = np.where(within % 2, block >> 16, block & 0xFFFF)
        return self._tokens[within] ^ number.astype(np.uint32)

    def offsets(self, numbers: np.ndarray) -> np.ndarray:
        """Where documents begin, int64 ``[n]``."""
        return (numbers >> 13 << 23) + self._starts[numbers & (DOCUMENTS - 1)]

    def tables(self) -> dict[str, np.ndarray]:
        """The checksums of all indices' pages, and the fences of the offsets."""
        indices = self._indices()
        pages = [self._page_sums(file, *self._masks(name)) for name, file in indices.items()]
        size = indices["offsets.npy"].size
        fences = self.offsets(fence_numbers(size, self.documents + 1))
        return {PAGES: np.concatenate(pages), FENCES: fences}

    def _indices(self) -> dict[str, VirtualFile]:
        blocks = -(-self.tokens // _IN_BLOCK)
        return {
            "offsets.npy": _array(np.int64, self.documents + 1, self.offsets),
            "bytes.npy": _array(np.uint32, self.documents, lambda numbers: self._lengths[numbers % DOCUMENTS]),
            BLOCKS: _array(np.uint32, blocks, self._block_sums),
        }

    def _block_sums(self, numbers: np.ndarray) -> np.ndarray:
        """CRC-32 of blocks of tokens."""
        low, high = _changed_sums()
        return np.uint32(zlib.crc32(self._tokens.tobytes())) ^ low[numbers & 0xFFFF] ^ high[numbers >> 16]

    def _masks(self, name: str) -> tuple[int, list[int]]:
        """Bytes of a value, and what each bit of a page's number changes in all its values."""
        if name == "offsets.npy":
            return 8, [TOKENS << bit for bit in range(BITS)]
        if name != BLOCKS:
            return 4, []
        high = np.arange(BITS - 14)  # a page has 2^14 sums
        plain, *changed = self._block_sums(np.concatenate([[0], 1 << (high + 14)])).tolist()
        return 4, [each ^ plain for each in changed]

    def _page_sums(self, file: VirtualFile, width: int, changes: list[int]) -> np.ndarray:
        """CRC-32 of every page of an index.

        The header shifts the values: the first ones of a page belong to the number before it, the others to its own.
        """
        count = -(-file.size // PAGE)
        begin, dtype = _HEADER // width, np.dtype(f"uint{8 * width}")
        base = file.values(np.arange(PAGE // width) - begin + PAGE // width)
        base = base.astype(dtype)
        for change in changes[:1]:
            base[begin:] ^= dtype.type(change)  # from page 1 to page 0
        masks = []
        for part in (slice(0, begin), slice(begin, None)):
            for change in changes:
                mask = np.zeros(PAGE // width, dtype)
                mask[part] = change
                masks.append(mask.tobytes())
        numbers = np.arange(count)
        sums = linear_sums(base.tobytes(), masks, (numbers - 1) | numbers << len(changes) if changes else numbers * 0)
        for number in {0, count - 1}:
            sums[number] = zlib.crc32(file.read(number * PAGE, min((number + 1) * PAGE, file.size)))
        return sums


class VirtualFiles:
    """The files of a folder of shards: the manifest and the tables on disk, all others computed.

    Attributes:
        splits: by name.
    """

    def __init__(self, splits: dict[str, VirtualSplit]):
        self.splits = splits

    def open(self, path: Path) -> OpenedFile:
        """See ``Files``."""
        return DISK.open(path) if path.name in (PAGES, FENCES) else self.splits[path.parent.name].open(path.name)

    def sizes(self, folder: Path) -> dict[str, int]:
        """See ``Files``."""
        return DISK.sizes(folder) | self.splits[folder.name].sizes


@functools.cache
def _changed_sums() -> tuple[np.ndarray, np.ndarray]:
    """What the low and the high 16 bits of a block's number change in its sum, uint32 ``[2^16]`` each."""
    masks = []
    for bit in range(BITS):
        mask = np.zeros(_IN_BLOCK, np.uint32)
        mask[bit // 16 :: 2] = 1 << bit % 16
        masks.append(mask.tobytes())
    numbers, zero = np.arange(2**16), bytes(BLOCK)
    plain = np.uint32(zlib.crc32(zero))
    return linear_sums(zero, masks[:16], numbers) ^ plain, linear_sums(zero, masks[16:], numbers) ^ plain


def _array(dtype: type, length: int, values: Callable[[np.ndarray], np.ndarray]) -> VirtualFile:
    """A file of NumPy."""
    header, kind = io.BytesIO(), np.dtype(dtype)
    described = {"descr": kind.str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(header, described)
    return VirtualFile(_HEADER + length * kind.itemsize, header.getvalue(), values, kind.itemsize)
