"""A small corpus in which every kind of record that is skipped, counted or numbered occurs, always the same."""

import hashlib
import json
import random

from k2jax.config.schema import SourceConfig
from tests.data.corpora import data_config

KINDS = ("jsonl", "chat", "parquet", "text", "limited")


def text(rng, longest=60):
    """A few words, some with characters of several bytes."""
    words = ("a", "word", "naïve", "月", "x" * 30, "𝛼β", "line\nbreak")
    return " ".join(rng.choice(words) for _ in range(rng.randint(1, longest)))


def sources(folder):
    """Writes the corpus; returns its sources by name."""
    rng = random.Random(7)
    folder.mkdir()
    lines = [json.dumps({"text": text(rng), "n": i}, ensure_ascii=False).encode() for i in range(300)]
    for place, line in ((5, b"{bad"), (80, b""), (81, b'{"text": "\xff"}'), (200, b'{"no": 1}'), (299, b"3")):
        lines[place] = line
    ends = (b"\n", b"\r\n", b"\n\n")
    content = b"".join(line + ends[i % 3] for i, line in enumerate(lines))
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + content)
    (folder / "b.jsonl").write_bytes(b'[\n {"text": "one value"}\n]\n')
    last = text(rng, 400).replace("\n", " ").encode()
    (folder / "c.jsonl").write_bytes(b'{"text": "no end"}\n{"text": "' + last + b'"}')
    (folder / "empty.jsonl").write_bytes(b"")
    chats = []
    for i in range(120):
        question = {"role": "user", "content": text(rng)}
        record = {"messages": [question, {"role": "assistant", "content": text(rng)}], "source": "here"}
        if i % 11 == 3:
            record = {"messages": []}
        if i % 7 == 3:
            record[f"field{i % 3}"] = 1
        chats.append(record)
    (folder / "chat.ndjson").write_text("".join(json.dumps(each) + "\n" for each in chats))
    (folder / "texts").mkdir()
    for i in range(40):
        (folder / f"texts/{i:02}.txt").write_bytes(b"\xfe" if i == 9 else text(rng).encode() * (i % 4))
    _parquet(folder / "table.parquet", [text(rng) for _ in range(200)])
    return {
        "jsonl": SourceConfig(kind="jsonl", path=str(folder / "*.jsonl")),
        "limited": SourceConfig(kind="jsonl", path=str(folder / "*.jsonl"), max_documents=150),
        "chat": SourceConfig(kind="chat", path=str(folder / "chat.ndjson")),
        "text": SourceConfig(kind="text", path=str(folder / "texts")),
        "parquet": SourceConfig(kind="parquet", path=str(folder / "table.parquet")),
    }


def _parquet(path, texts):
    import pyarrow
    import pyarrow.parquet

    texts[17] = None
    table = pyarrow.table({"text": texts})
    pyarrow.parquet.write_table(table, path, row_group_size=16, compression="none")


def config(cache, corpus, **fields):
    """A configuration of the corpus."""
    return data_config(cache, corpus, chat_format="plain", sequence_length=4096, held_out=0.1, **fields)


TABLES = ("/pages.npy", "/fences.npy")


def fingerprint(shards, folder):
    """Hash of a manifest, with the checksums of all files; where the corpus lies is left out.

    The tables of pages follow from the indices, and came later than the hashes that are compared.
    """
    files = {name: entry for name, entry in shards.manifest["files"].items() if not name.endswith(TABLES)}
    manifest = shards.manifest | {"files": files}
    return hashlib.sha256(json.dumps(manifest).replace(str(folder), "").encode()).hexdigest()[:16]
