"""``python -m k2jax.convert import``: turns a Hugging Face folder into a workdir whose step 0 holds its parameters."""

from __future__ import annotations

from pathlib import Path

from rich import filesize

from k2jax.checkpoint import checkpoint_step, read_meta, run_config
from k2jax.checkpoint.streaming import ParamsWriter, StoredArray
from k2jax.config.build import resolve, to_json
from k2jax.config.identity import fixed_keys
from k2jax.config.schema import Config, OptimizerConfig
from k2jax.convert.image_limits import copy_limits
from k2jax.convert.loading import open_source, tokenizer_of
from k2jax.convert.mapping import blocks, chunks, to_region
from k2jax.convert.source import Source
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.report.transfer import transfer
from k2jax.text.chat import chat_format
from k2jax.text.tokenizer import Tokenizer, load_tokenizer

UNFINISHED = "import"
TOKENIZERS = ("tokenizer.json", "tiktoken.model")


def import_folder(folder: str | Path, workdir: str | Path) -> None:
    """Imports weights, architecture and tokenizer. After a crash, the same call resumes the import.

    Host memory holds only a few blocks of 64 MiB at a time. Every weight keeps its dtype; quantised weights become
    bfloat16.

    Args:
        folder: a folder with ``config.json``, safetensors and possibly a tokenizer, or the name of a packaged model or
            of one of the hub.
        workdir: a new folder.

    Raises:
        UserError: the folder cannot be imported, or the workdir is taken.
    """
    workdir = Path(workdir)
    if (workdir / "config.json").exists() and not (workdir / UNFINISHED).exists():
        raise UserError(f"{workdir} holds a run already; name a new --workdir")
    source = open_source(folder)
    for line in source.notes:
        print(line)
    optimizer = OptimizerConfig(name="muon" if source.model.gqa.qk_norm else "muonclip")  # QK-Clip refuses QK-norm
    config = resolve(Config(model=source.model, optimizer=optimizer))  # before anything is written
    tokenizer = _tokenizer(source, folder, workdir)
    if tokenizer:
        tokenizer.save(workdir / "tokenizer")
    identity = {"tokenizer": tokenizer.fingerprint} if tokenizer else {}
    writer = _begin(source, workdir, {"identity": identity, "config": fixed_keys(config)})
    write_atomic(workdir / "config.json", to_json(config))
    if source.model.vision.layers:
        copy_limits(folder, workdir, source.model.vision)
    _copy(source, writer)
    writer.commit(workdir)
    print(f"imported {filesize.decimal(source.size)} into {workdir}")


def _tokenizer(source: Source, folder: str | Path, workdir: Path) -> Tokenizer | None:
    """The folder's tokenizer, of which a line tells the chat format; None without one."""
    if source.origin.is_dir() and not any((source.origin / name).is_file() for name in TOKENIZERS):
        print(
            f"{source.origin} has no tokenizer ({' or '.join(TOKENIZERS)}); only the weights are imported: "
            f"`python -m k2jax.convert tokenizer FILE --workdir={workdir}` adds one"
        )
        return None
    tokenizer = tokenizer_of(folder)
    if tokenizer.vocab_size > source.model.vocab:
        print(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens and the model only {source.model.vocab:,}: a text with "
            "one of the others is nothing that the model can read"
        )
    _print_chat_format(tokenizer)
    return tokenizer


def _print_chat_format(tokenizer: Tokenizer) -> None:
    """Tells which format a vocabulary's special tokens choose, since another would be a wrong one without an error."""
    try:
        print(f"chat format: {type(chat_format(tokenizer)).__name__}")
    except UserError as error:
        print(f"no chat format: {error}")


def give_tokenizer(file: str | Path, workdir: str | Path) -> None:
    """Gives a tokenizer to a run that was imported without one.

    Args:
        file: a ``tokenizer.json``, a rank file, or the folder of one.
        workdir: the imported run.

    Raises:
        UserError: there is no tokenizer, it does not fit the model, or the run has one already.
    """
    tokenizer, workdir = load_tokenizer(file), Path(workdir)
    vocab, known = run_config(workdir).model.vocab, read_meta(checkpoint_step(workdir)).get("identity", {})
    if known.get("tokenizer") not in (None, tokenizer.fingerprint):
        raise UserError(f"{workdir} was trained with a tokenizer of its own, which lies in {workdir / 'tokenizer'}")
    if (workdir / "tokenizer").exists() and tokenizer_of(workdir).fingerprint != tokenizer.fingerprint:
        raise UserError(f"{workdir} has another tokenizer already; delete {workdir / 'tokenizer'} to replace it")
    if tokenizer.vocab_size > vocab:
        raise UserError(f"{file} has {tokenizer.vocab_size:,} tokens, the model only {vocab:,}; give the model's own")
    tokenizer.save(workdir / "tokenizer")
    _print_chat_format(tokenizer)
    print(f"{workdir} has the tokenizer of {file} now")


def _begin(source: Source, workdir: Path, meta: dict) -> ParamsWriter:
    layouts = {name: StoredArray(spec.shape, source.dtype(spec), chunks(spec)) for name, spec in source.specs.items()}
    meta = {**meta, "imported_from": str(source.origin.absolute())}
    return ParamsWriter(workdir / UNFINISHED, 0, layouts, meta, _identity(source))


def _copy(source: Source, writer: ParamsWriter) -> None:
    """Copies every block that no earlier call has written."""
    with transfer("importing", source.size) as advance:
        for name, spec in source.specs.items():
            dtype = source.dtype(spec)
            for block in blocks(spec):
                key = f"{block.name}:{block.start}"
                if key not in writer.done:
                    rows = source.read(block.name, block.start, block.stop).astype(dtype)
                    writer.write(name, block.index, to_region(spec, rows))
                    writer.mark(key)
                advance((block.stop - block.start) * spec.size_of(spec.inputs) * dtype.itemsize)


def _identity(source: Source) -> list:
    """Describes the source files; an unfinished import is resumed only from the same ones."""
    if source.origin.is_file():
        files = [source.origin]
    else:
        files = sorted(path for path in source.origin.iterdir() if path.suffix in (".json", ".safetensors"))
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
