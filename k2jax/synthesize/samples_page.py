"""A page with samples of what every stage kept and dropped. It loads nothing and runs nothing.

Records are whatever models wrote: all of it is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
import json

from k2jax.synthesize.funnel import StageCounts
from k2jax.synthesize.kept_results import StageResult
from k2jax.synthesize.stages import Record, SynthesisStage

SHOWN = 4
"""Records of each kind that are shown."""
LONGEST = 6000
"""Characters of a record that are shown."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2430}
table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.2rem .7rem;border-bottom:1px solid #d8dde4;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}
details{border-left:4px solid #2e9e5b;margin:.3rem 0;padding:.1rem .7rem}details.dropped{border-color:#d0443c}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f4f6f8;padding:.5rem;margin:.3rem 0}
@media(prefers-color-scheme:dark){body{background:#14181e;color:#dfe5ec}pre{background:#1e242c}
td,th{border-color:#39424e}}
"""


def samples_page(
    name: str, counts: Sequence[StageCounts], shown: Sequence[tuple[SynthesisStage, Sequence[StageResult]]]
) -> str:
    """The page as HTML.

    Args:
        name: of the pipeline.
        counts: of its stages.
        shown: the stages with their results.
    """
    return "".join(_parts(name, counts, shown))


def _parts(
    name: str, counts: Sequence[StageCounts], shown: Sequence[tuple[SynthesisStage, Sequence[StageResult]]]
) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield f"<title>{escape(name)}</title><style>{_STYLE}</style></head><body><main><h1>{escape(name)}</h1>"
    yield "<table><tr><th>stage</th><th>in</th><th>kept</th><th>dropped</th><th>tokens</th></tr>"
    for one in counts:
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in one.dropped.items())
        numbers = f'<td class="n">{one.records:,}</td><td class="n">{one.kept:,}</td>'
        tokens = f'<td class="n">{sum(one.tokens.values()):,}</td>'
        yield f"<tr><td>{escape(one.stage)}</td>{numbers}<td>{escape(dropped)}</td>{tokens}</tr>"
    yield "</table>"
    for stage, results in shown:
        yield f"<h2>{escape(stage.name)}</h2>"
        kept = [record for result in results for record in result.made.kept]
        for record in _spread(kept):
            yield _record("kept", record, "")
        by_reason: dict[str, list[Record]] = {}
        for result in results:
            for reason, record in result.made.dropped:
                by_reason.setdefault(reason, []).append(record)
        for reason, records in sorted(by_reason.items()):
            for record in _spread(records):
                yield _record(reason, record, ' class="dropped"')
    yield "</main></body></html>\n"


def _spread(records: Sequence[Record]) -> Sequence[Record]:
    """Some records, evenly from all of them."""
    if len(records) <= SHOWN:
        return records
    return [records[place * len(records) // SHOWN] for place in range(SHOWN)]


def _record(title: str, record: Record, kind: str) -> str:
    text = json.dumps(record, indent=2, ensure_ascii=False)
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}\n[{len(text) - LONGEST:,} characters left out]"
    label = record.get("name") or record.get("id") or ""
    return f"<details{kind}><summary>{escape(f'{title} · {label}')}</summary><pre>{escape(cut)}</pre></details>"
