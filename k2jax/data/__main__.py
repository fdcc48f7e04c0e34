"""Prepares the data of a run, and shows what is there: tokenised sources in the cache, and what a step sees.

Example:
    python -m k2jax.data build --config=experiments/pretrain/nano.py
    python -m k2jax.data list
    python -m k2jax.data show text-0123456789abcdef --tokenizer=runs/nano/tokenizer --count=3
    python -m k2jax.data show --config=experiments/pretrain/nano.py --batch=10
    python -m k2jax.data verify

``build`` does what a run does at its start where something is missing, and nothing where nothing is. ``show`` prints
what a manifest says, with documents where a tokenizer is given, or with ``--batch`` the rows of a step. ``verify``
reads everything and compares it with its checksums; its exit code is 1 where something is damaged.
"""

from __future__ import annotations

from absl import flags

from k2jax import cli
from k2jax.errors import UserError, nearest

COMMANDS = ("build", "list", "show", "verify")


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    cli.define_config(values)
    flags.DEFINE_string("cache_dir", "", "Cache without --config; empty: $K2JAX_CACHE, else ~/.cache/k2jax.", **to)
    flags.DEFINE_string("tokenizer", None, "Tokenizer of the shown documents.", **to)
    flags.DEFINE_integer("count", 3, "Documents that are shown.", **to, lower_bound=1)
    flags.DEFINE_integer("batch", None, "Step whose rows are shown.", **to, lower_bound=1)


def main(values: flags.FlagValues, command: str, name: str = "") -> int:
    """Runs the command; returns its exit code."""
    if command not in COMMANDS:
        raise UserError(f"there is no command {command!r}{nearest(command, list(COMMANDS))}")
    if name and command in ("build", "list"):
        raise UserError(f"{command} takes no name of a corpus")
    if command == "build":
        return _build(values)
    if command == "show":
        return _show_batch(values) if values.batch else _show(values, name)
    return _list(values) if command == "list" else _verify(values, name)


def _cache(values: flags.FlagValues) -> str:
    return cli.config_of(values).data.cache_dir if values.config else values.cache_dir


def _build(values: flags.FlagValues) -> int:
    from k2jax.data.training_data import build_sources

    cli.require(values, "config")
    config = cli.config_of(values)
    vision = config.model.vision if config.model.vision.layers else None
    _, sources = build_sources(config.data, tokenizer=_named_tokenizer(config), vision=vision, log=_say)
    for name, source in sources.items():
        counts = source.manifest["splits"]["train"]
        print(f"{name}: {counts['documents']:,} documents, {counts['tokens']:,} tokens")
    return 0


def _list(values: flags.FlagValues) -> int:
    from k2jax.data.cache import cache_root
    from k2jax.data.kept_corpora import kept_corpora
    from k2jax.report.table import text_table

    found, problems = kept_corpora(_cache(values))
    header = ("name", "source", "documents", "tokens", "held out", "skipped", "MB", "made (UTC)")
    rows = []
    for corpus in found:
        train, held_out = (corpus.manifest["splits"][split] for split in ("train", "held_out"))
        counts = (train["documents"], train["tokens"], held_out["documents"], corpus.manifest["skipped"]["count"])
        rows.append((corpus.folder.name, corpus.path, *counts, round(corpus.bytes / 1e6, 1), corpus.made))
    print(text_table(header, rows) if rows else f"{cache_root(_cache(values))} has no tokenised sources")
    for problem in problems:
        print(problem)
    return 0


def _show(values: flags.FlagValues, name: str) -> int:
    from k2jax.data.kept_corpora import kept_corpus
    from k2jax.report.table import text_table

    if not name:
        raise UserError("name a corpus of python -m k2jax.data list, or give --config and --batch=STEP")
    corpus = kept_corpus(name, _cache(values))
    print(text_table(("", "value"), corpus.facts()))
    if values.tokenizer:
        from k2jax.convert.loading import tokenizer_of

        for text in corpus.documents(tokenizer_of(values.tokenizer), values.count):
            print(f"--- {text!r}")
    return 0


def _show_batch(values: flags.FlagValues) -> int:
    from k2jax.data.batch_preview import pieces_of
    from k2jax.report.table import text_table

    cli.require(values, "config")
    config = cli.config_of(values)
    if config.model.vision.layers:
        raise UserError("--batch shows batches of text; this configuration has images")
    if values.batch > config.train.steps:
        raise UserError(f"--batch {values.batch} is behind the last step, {config.train.steps}")
    data = _data_of(config)
    rows = [(p.row, p.source, p.begin, p.end, p.trained, repr(p.text)) for p in pieces_of(data, values.batch)]
    if config.phases:
        from k2jax.config.phases import phase_at

        print(f"phase {phase_at(config, values.batch).name}")
    print(text_table(("row", "source", "begin", "end", "trained", "text"), rows))
    seen = data.loader.epochs(values.batch)
    print(f"passes over each source up to here: {', '.join(f'{name} {passes:.2f}' for name, passes in seen.items())}")
    return 0


def _data_of(config):
    """The data of a run, of all phases where it has some."""
    from k2jax.config.phases import run_phases
    from k2jax.data.phases.phase_data import DataPhase, prepare_phases
    from k2jax.data.training_data import prepare_data

    options = {"seed": config.train.seed, "tokenizer": _named_tokenizer(config), "log": _say}
    if not config.phases:
        return prepare_data(config.data, batch_size=config.train.batch_size, steps=config.train.steps, **options)
    phases = []
    for phase in run_phases(config):
        own = {"config": phase.config.data, "batch_size": phase.config.train.batch_size}
        phases.append(DataPhase(name=phase.name, first=phase.first, last=phase.last, **own))
    return prepare_phases(config.data, phases, **options)[0]


def _verify(values: flags.FlagValues, name: str) -> int:
    from k2jax.data.kept_corpora import kept_corpora, kept_corpus

    found, problems = ([kept_corpus(name, _cache(values))], []) if name else kept_corpora(_cache(values))
    for corpus in found:
        try:
            corpus.verify()
            print(f"{corpus.folder.name}: as it was written, {corpus.bytes:,} bytes")
        except UserError as error:
            problems.append(str(error))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _named_tokenizer(config):
    from k2jax.convert.loading import tokenizer_of

    settings = config.data.tokenizer
    return tokenizer_of(settings.path) if settings.kind == "file" and settings.path else None


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("COMMAND", "NAME"), optional=1)
