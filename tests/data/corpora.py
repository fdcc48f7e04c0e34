"""Small corpora and a token stream in memory, for the tests of this folder."""

import json

import jax
import numpy as np

from k2jax.config.schema import DataConfig, SourceConfig, TokenizerConfig


class Places(np.ndarray):
    """Offsets in memory."""

    def between(self, start, stop):
        return np.array([place for place in self.tolist() if start < place < stop], np.int64)


class ListStream:
    """A TokenStream over documents in memory; by default token values are stream positions plus one."""

    is_stored = False

    def __init__(self, lengths):
        self.offsets = np.cumsum([0, *lengths]).view(Places)
        self.documents, self.tokens = len(lengths), int(self.offsets[-1])
        self.targets = self.tokens - self.documents
        self.bytes = 3 * self.tokens
        self._content = np.arange(1, self.tokens + 1, dtype=np.int32)

    def read(self, start, stop):
        return self._content[start:stop]


def text_folder(folder, texts):
    """Writes each text as a file; returns the source that reads the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, text in enumerate(texts):
        (folder / f"{i:04d}.txt").write_bytes(text.encode() if isinstance(text, str) else text)
    return SourceConfig(kind="text", path=str(folder))


def jsonl_file(path, texts):
    """Writes each text as a line; returns the source that reads the file."""
    return SourceConfig(kind="jsonl", path=write_records(path, [{"text": text} for text in texts]))


def write_records(path, records):
    """Writes JSON values as lines; returns the path as a configuration has it."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def asked(question, answer):
    """A record of a question and its answer, each a text or a list of parts."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def data_config(cache, sources, **fields):
    """A DataConfig with the byte tokenizer and its cache under ``cache``."""
    fields = {"tokenizer": TokenizerConfig(kind="bytes"), "held_out": 0.2, "sequence_length": 16} | fields
    return DataConfig(sources=sources, cache_dir=str(cache), **fields)


def words(count, seed=0):
    """``count`` distinct short texts."""
    rng = np.random.default_rng(seed)
    return [f"{seed}-{i} " + "".join(rng.choice(list("abc é\n"), rng.integers(1, 40))) for i in range(count)]


def stored(stream):
    """The texts of a split of bytes, checking that each lies between bos and eos."""
    texts = []
    for i in range(stream.documents):
        bos, *ids, eos = stream.read(int(stream.offsets[i]), int(stream.offsets[i + 1])).tolist()
        assert (bos, eos) == (0, 1) and not {0, 1} & set(ids)
        texts.append(bytes(i - 2 for i in ids).decode())
        assert stream.document_bytes[i] == len(ids)
    return texts


def equal(a, b):
    """Whether two PackedBatches are equal in every leaf."""
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
