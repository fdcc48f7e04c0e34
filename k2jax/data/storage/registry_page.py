"""A page of all corpora of a cache. It loads nothing and runs nothing.

What manifests and documents say is of whoever wrote the texts: all of it is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from k2jax.data.kept_corpora import KeptCorpus
from k2jax.data.manifest import HELD_OUT, TRAIN
from k2jax.data.retired import RetiredCorpus
from k2jax.data.storage.corpus_figures import CorpusFigures

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1c2430}
table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.2rem .7rem;border-bottom:1px solid #d8dde4;text-align:left;
vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}.wide{overflow-x:auto}
td.h{width:16rem}td.h div{background:#4678b8;height:.8em;min-width:1px}td.w{overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f4f6f8;padding:.5rem;margin:.3rem 0}
details{border-left:4px solid #b8c0cc;margin:.3rem 0;padding:.1rem .7rem}h2{margin-top:2rem;overflow-wrap:anywhere}
.two{display:flex;flex-wrap:wrap;gap:0 3rem}p.bad{border-left:4px solid #d0443c;padding-left:.6rem}
@media(prefers-color-scheme:dark){body{background:#14181e;color:#dfe5ec}pre{background:#1e242c}
td,th{border-color:#39424e}a{color:#8ab4f8}}
"""


def registry_page(
    place: str,
    corpora: Sequence[tuple[KeptCorpus, CorpusFigures]],
    retired: Sequence[RetiredCorpus],
    problems: Sequence[str],
) -> str:
    """The page as HTML.

    Args:
        place: of the cache.
        corpora: with their figures.
        retired: records of corpora that are gone.
        problems: lines about damaged folders.
    """
    return "".join(_parts(place, corpora, retired, problems))


def _parts(
    place: str,
    corpora: Sequence[tuple[KeptCorpus, CorpusFigures]],
    retired: Sequence[RetiredCorpus],
    problems: Sequence[str],
) -> Iterator[str]:
    title = f"Corpora in {place}"
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
    for problem in problems:
        yield f'<p class="bad">{escape(problem)}</p>'
    head = ("name", "source", "licence", "version", "documents", "tokens", "held out", "skipped", "MB", "made (UTC)")
    yield _table(head, [_overview(corpus, number) for number, (corpus, _) in enumerate(corpora)])
    for number, (corpus, figures) in enumerate(corpora):
        yield f'<h2 id="corpus-{number}">{escape(corpus.folder.name)}</h2>'
        yield f'<div class="two"><div>{_facts(corpus)}</div><div>{_funnel(figures)}{_lengths(figures)}</div></div>'
        yield _files(corpus)
        for text in figures.samples:
            yield f"<pre>{escape(text)}</pre>"
        if figures.note:
            yield f"<p>No samples: {escape(figures.note)}.</p>"
    if retired:
        rows = [[_word(each.name), _word(each.date), _word(each.reason), _word(each.source), _number(each.documents),
                 _number(each.tokens)] for each in retired]  # fmt: skip
        yield "<h2>Retired</h2>" + _table(("name", "date", "reason", "source", "documents", "tokens"), rows)
    yield "</main></body></html>\n"


def _overview(corpus: KeptCorpus, number: int) -> list[str]:
    train, held_out = (corpus.manifest["splits"][split] for split in (TRAIN, HELD_OUT))
    source = corpus.manifest.get("source", {})
    return [
        f'<td><a href="#corpus-{number}">{escape(corpus.folder.name)}</a></td>',
        _word(corpus.path),
        *(_word(source.get(key) or "not given") for key in ("licence", "version")),
        *(_number(count) for count in (train["documents"], train["tokens"], held_out["documents"])),
        _number(corpus.manifest["skipped"]["count"]),
        f'<td class="n">{corpus.bytes / 1e6:,.1f}</td>',
        _word(corpus.made),
    ]


def _facts(corpus: KeptCorpus) -> str:
    rows = [[_word(name), _number(value) if isinstance(value, int) else _word(value)] for name, value in corpus.facts()]
    for name, value in corpus.manifest["splits"][HELD_OUT].items():
        if name.endswith("per_byte"):
            rows.append([_word(f"held_out: {name.replace('_', ' ')}"), f'<td class="n">{value:.3f}</td>'])
    parents = corpus.manifest.get("parents") or ["none: read from its source"]
    rows.append([_word("parents"), _word(", ".join(map(str, parents)))])
    return _table(("", "value"), rows)


def _funnel(figures: CorpusFigures) -> str:
    largest = max((count for _, count in figures.funnel), default=0) or 1
    rows = [[_word(stage), _number(count), _bar(count / largest)] for stage, count in figures.funnel]
    return _table(("stage", "records", ""), rows)


def _lengths(figures: CorpusFigures) -> str:
    if not figures.lengths:
        return ""
    largest = max(each.documents for each in figures.lengths)
    rows = [[_word(f"{each.low:,} to {each.high - 1:,}"), _number(each.documents), _bar(each.documents / largest)]
            for each in figures.lengths]  # fmt: skip
    return _table((f"tokens of a document (the median has {figures.median:,} or more)", "documents", ""), rows)


def _files(corpus: KeptCorpus) -> str:
    rows = [[_word(name), _number(entry["bytes"]), _word(entry["sha256"])]
            for name, entry in sorted(corpus.manifest["files"].items())]  # fmt: skip
    table = _table(("file", "bytes", "sha256"), rows)
    return f"<details><summary>{len(rows):,} files with their hashes</summary>{table}</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{names}</tr>{body}</table></div>'


def _word(value: Any) -> str:
    return f'<td class="w">{escape(str(value))}</td>'


def _number(value: int) -> str:
    return f'<td class="n">{value:,}</td>'


def _bar(share: float) -> str:
    return f'<td class="h"><div style="width:{100 * share:.1f}%"></div></td>'
