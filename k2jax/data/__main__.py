"""Prepares the data of a run, and shows what is there: tokenised sources in the cache, and what a step sees.

Example:
    python -m k2jax.data build --config=experiments/pretrain/nano.py --workers=8
    python -m k2jax.data build --config=experiments/pretrain/nano.py --cluster=ray://HOST:10001
    python -m k2jax.data list
    python -m k2jax.data show text-0123456789abcdef --tokenizer=runs/nano/tokenizer --count=3
    python -m k2jax.data show --config=experiments/pretrain/nano.py --batch=10
    python -m k2jax.data verify
    python -m k2jax.data sync ~/.cache/k2jax s3://bucket/corpora
    python -m k2jax.data retire text-0123456789abcdef --reason="its licence forbids it"
    python -m k2jax.data page --out=corpora.html
    python -m k2jax.data duplicates --documents='corpus/*.jsonl.gz' --attributes=corpus/attributes --threshold=0.8
    python -m k2jax.data contamination --documents=corpus --against=mmlu.jsonl --attributes=corpus/attributes

``build`` does what a run does at its start where something is missing, and nothing where nothing is; it uses all cores,
or a Ray cluster (extra ``ray``), and after it was killed continues where it was. ``show`` prints
what a manifest says, with documents where a tokenizer is given, or with ``--batch`` the rows of a step. ``verify``
reads everything and compares it with its checksums; its exit code is 1 where something is damaged. ``sync`` copies the
corpora of a cache, or one of them, to another cache: what is missing, verified by hash. ``retire`` removes a corpus and
leaves a record of when and why. ``page`` writes a page of all corpora. A cache may be a folder or a URL.
``duplicates`` says which documents of files are copies or near duplicates of which, and ``contamination`` which hold
questions of evaluation sets, both as attributes in dolma's layout (docs/duplicates.md).
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from k2jax import cli
from k2jax.errors import UserError, nearest

COMMANDS = ("build", "list", "show", "verify", "sync", "retire", "page", "duplicates", "contamination")
_ARGUMENTS = {"build": 0, "list": 0, "page": 0, "sync": 2, "duplicates": 0, "contamination": 0}


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    cli.define_config(values)
    flags.DEFINE_string("cache_dir", "", "Cache without --config; empty: $K2JAX_CACHE, else ~/.cache/k2jax.", **to)
    flags.DEFINE_string("tokenizer", None, "Tokenizer of the shown documents.", **to)
    flags.DEFINE_integer("count", 3, "Documents, or pairs of duplicates, that are shown.", **to, lower_bound=1)
    flags.DEFINE_string("reason", None, "Why a corpus is retired.", **to)
    flags.DEFINE_bool("yes", False, "Retires a corpus of a store, where nobody sees whether it is in use.", **to)
    flags.DEFINE_string("out", "corpora.html", "The page that is written.", **to)
    flags.DEFINE_string("cluster", "", "A Ray cluster's address, auto, or local:NODES to try one here.", **to)
    flags.DEFINE_integer("batch", None, "Step whose rows are shown.", **to, lower_bound=1)
    flags.DEFINE_integer("workers", None, "Processes; all cores by default.", **to, lower_bound=1)
    flags.DEFINE_string("documents", None, "Files of documents: a folder, a file, or a pattern in quotes.", **to)
    flags.DEFINE_string("attributes", None, "Folder that attributes of documents are written to.", **to)
    flags.DEFINE_string("field", "text", "Field of a document's text.", **to)
    flags.DEFINE_float("threshold", 0.8, "Least Jaccard similarity of near duplicates, by 5-word shingles.", **to)
    flags.DEFINE_float("contained", 0.95, "Least share of 3-word runs of a contained document; 0: none are.", **to)
    flags.DEFINE_float("numbers", 0.5, "Least similarity of the words with digits; 0: they do not matter.", **to)
    flags.DEFINE_list("against", None, "Evaluation sets: files, or datasets as 'gsm8k path=FILE'.", **to)
    flags.DEFINE_float("overlap", 0.8, "Least weighted share of a question's runs of words in a document.", **to)
    flags.DEFINE_float("with_answer", 0.5, "Least share where the question's answer is near.", **to)
    flags.DEFINE_integer("rows", 32, "Rows of the step that are shown; 0 shows all.", **to, lower_bound=0)


def main(values: flags.FlagValues, command: str, name: str = "", destination: str = "") -> int:
    """Runs the command; returns its exit code."""
    if command not in COMMANDS:
        raise UserError(f"there is no command {command!r}{nearest(command, list(COMMANDS))}")
    if name and not _ARGUMENTS.get(command, 1):
        raise UserError(f"{command} takes no name of a corpus")
    if destination and _ARGUMENTS.get(command, 1) < 2:
        raise UserError(f"{command} takes one name of a corpus, and {destination!r} is another")
    if (values.workers or values.cluster) and command not in ("build", "duplicates", "contamination"):
        raise UserError(
            f"{command} takes neither --workers nor --cluster, which are of build, duplicates and contamination"
        )
    if values.workers and values.cluster:
        raise UserError("a cluster has its own number of processes: give --workers or --cluster, not both")
    if command == "show":
        return _show_batch(values) if values.batch else _show(values, name)
    if command == "sync":
        return _sync(name, destination)
    if command in ("verify", "retire"):
        return {"verify": _verify, "retire": _retire}[command](values, name)
    of_files = {"duplicates": _duplicates, "contamination": _contamination}
    return {"build": _build, "list": _list, "page": _page, **of_files}[command](values)


def _cache(values: flags.FlagValues) -> str:
    return cli.config_of(values).data.cache_dir if values.config else values.cache_dir


def _build(values: flags.FlagValues) -> int:
    from k2jax.config.phases import run_phases
    from k2jax.data.phases.phase_sources import phase_sources
    from k2jax.data.preparation.pools import open_pool

    cli.require(values, "config")
    config = cli.config_of(values)
    vision = config.model.vision if config.model.vision.layers else None
    with open_pool(values.workers or 0, values.cluster) as pool:
        options = {"tokenizer": _named_tokenizer(config), "vision": vision, "pool": pool}
        phases = run_phases(config)
        _, sources = phase_sources(config.data, [phase.config.data for phase in phases], log=_say, **options)
    shown: dict[str, list[object]] = {}
    for phase, own in zip(phases, sources, strict=True):
        for name, source in own.items():
            if source in (before := shown.setdefault(name, [])):
                continue
            again = f" in phase {phase.name}" if before else ""
            counts = source.manifest["splits"]["train"]
            print(f"{name}{again}: {counts['documents']:,} documents, {counts['tokens']:,} tokens")
            before.append(source)
    return 0


def _list(values: flags.FlagValues) -> int:
    from k2jax.data.cache import cache_root
    from k2jax.data.kept_corpora import kept_corpora
    from k2jax.data.retired import retired_corpora
    from k2jax.report.table import text_table

    found, problems = kept_corpora(_cache(values))
    header = ("name", "source", "documents", "tokens", "held out", "skipped", "MB", "made (UTC)")
    rows = []
    for corpus in found:
        train, held_out = (corpus.manifest["splits"][split] for split in ("train", "held_out"))
        counts = (train["documents"], train["tokens"], held_out["documents"], corpus.manifest["skipped"]["count"])
        rows.append((corpus.folder.name, corpus.path, *counts, round(corpus.bytes / 1e6, 1), corpus.made))
    print(text_table(header, rows) if rows else f"{cache_root(_cache(values))} has no tokenised sources")
    if retired := retired_corpora(cache_root(_cache(values))):
        print(text_table(("retired", "date", "reason", "source", "documents", "tokens"), retired))
    for problem in problems:
        print(problem)
    return 0


def _sync(source: str, destination: str) -> int:
    from k2jax.data.storage.corpus_sync import sync_corpora
    from k2jax.files.objects.store_client import COUNTS

    if not destination:
        raise UserError("sync takes two names, SOURCE and DESTINATION: caches, or of the first a corpus in one")
    counts = sync_corpora(source, destination, _say)
    copied = f"{counts.files:,} files copied ({counts.bytes:,} bytes), {counts.present:,} were there"
    print(f"{counts.corpora:,} corpora: {copied}")
    if COUNTS.requests:
        print(COUNTS.words())
    return 0


def _retire(values: flags.FlagValues, name: str) -> int:
    from k2jax.data.kept_corpora import kept_corpus
    from k2jax.data.storage.retirement import retire

    if not name:
        raise UserError("name the corpus to retire; python -m k2jax.data list shows what there is")
    cli.require(values, "reason")
    corpus = kept_corpus(name, _cache(values))
    print(f"{corpus.folder} is retired; {retire(corpus, values.reason, values.yes)} says so")
    return 0


def _page(values: flags.FlagValues) -> int:
    from k2jax.data.cache import cache_root, get_or_build
    from k2jax.data.kept_corpora import kept_corpora
    from k2jax.data.retired import retired_corpora
    from k2jax.data.storage.corpus_figures import figures_of, tokenizers_of
    from k2jax.data.storage.registry_page import registry_page
    from k2jax.files.atomic import write_atomic

    root = cache_root(_cache(values))
    tokenizers = tokenizers_of(root, get_or_build)
    if values.tokenizer:
        from k2jax.convert.loading import tokenizer_of

        tokenizers.append(tokenizer_of(values.tokenizer))
    found, problems = kept_corpora(_cache(values))
    shown = []
    for corpus in found:
        try:
            shown.append((corpus, figures_of(corpus, tokenizers, values.count)))
        except UserError as error:
            problems.append(str(error))
    write_atomic(values.out, registry_page(str(root), shown, retired_corpora(root), problems))
    print(f"{values.out}: {len(shown)} corpora")
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
    from k2jax.data.batch_preview import pieces_of, use_of
    from k2jax.report.table import text_table

    cli.require(values, "config")
    config = cli.config_of(values)
    if config.model.vision.layers:
        raise UserError("--batch shows batches of text; this configuration has images")
    if values.batch > config.train.steps:
        raise UserError(f"--batch {values.batch} is behind the last step, {config.train.steps}")
    data = _data_of(config)
    if config.phases:
        from k2jax.config.phases import phase_at

        print(f"phase {phase_at(config, values.batch).name}")
    size = len(data.loader.sources(values.batch - 1))
    shown = range(min(values.rows or size, size))
    rows = [(p.row, p.source, p.begin, p.end, p.trained, repr(p.text)) for p in pieces_of(data, values.batch, shown)]
    print(text_table(("row", "source", "begin", "end", "trained", "text"), rows))
    if len(shown) < size:
        print(f"{len(shown)} of {size:,} rows; --rows=0 shows all")
    used = [(u.source, u.rows, f"{u.passes:.4g}", f"{u.tokens:,}") for u in use_of(data, values.batch)]
    print(text_table(("source", "rows of the step", "passes so far", "tokens seen so far"), used))
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


def _duplicates(values: flags.FlagValues) -> int:
    from k2jax.data.duplicates.finding import find_duplicates
    from k2jax.data.duplicates.settings import DuplicateSettings
    from k2jax.data.preparation.pools import open_pool

    cli.require(values, "documents", "attributes")
    settings = {name: values[name].value for name in ("threshold", "contained", "numbers")}
    options = {"field": values.field, "shown": values.count, "log": _say}
    with open_pool(values.workers or 0, values.cluster) as pool:
        folder = _work_folder(values, "duplicates")
        attributes, settings = Path(values.attributes), DuplicateSettings(**settings)
        find_duplicates(values.documents, attributes, folder, settings, run=pool.run, **options)
    return 0


def _contamination(values: flags.FlagValues) -> int:
    from k2jax.data.contamination.matching import ContaminationSettings
    from k2jax.data.contamination.scanning import find_contamination
    from k2jax.data.preparation.pools import open_pool

    cli.require(values, "documents", "against", "attributes")
    options = {"field": values.field, "shown": values.count, "log": _say}
    with open_pool(values.workers or 0, values.cluster) as pool:
        settings = ContaminationSettings(overlap=values.overlap, with_answer=values.with_answer)
        places = Path(values.attributes), _work_folder(values, "contamination")
        find_contamination(values.documents, values.against, *places, settings, run=pool.run, **options)
    return 0


def _work_folder(values: flags.FlagValues, name: str) -> Path:
    """A folder of the cache, in which a command that was killed finds what it has done."""
    from k2jax.data.cache import cache_root

    root = cache_root(_cache(values))
    if not isinstance(root, Path):
        raise UserError(f"{name} keeps what it has done on a disk: name a folder with --cache_dir")
    return root / name


def _named_tokenizer(config):
    from k2jax.convert.loading import tokenizer_of

    settings = config.data.tokenizer
    return tokenizer_of(settings.path) if settings.kind == "file" and settings.path else None


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    names = ("COMMAND", "NAME", "DESTINATION")
    cli.run(main, define, __doc__, positional=names, optional=2, remote=("cache_dir", *names))
