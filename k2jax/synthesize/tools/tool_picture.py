"""A picture of tools in which those whose texts are close lie close, by source and by category (Kimi K2, Fig. 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from k2jax.errors import UserError
from k2jax.report.style import new_figure, style_axes
from k2jax.synthesize.tools.near_duplicates import text_vectors, tool_text

MOST_SHOWN = 3000
"""Tools in the picture: those of servers, and others that are drawn evenly from all."""
_LEGEND = 14


def draw_tools(entries: Sequence[Mapping[str, Any]], path: Path, encoder: str = "") -> str:
    """Draws tools by t-SNE (van der Maaten and Hinton, 2008) of their texts.

    Args:
        entries: lines of ``tools.jsonl``.
        path: of the picture.
        encoder: see ``text_vectors``.

    Returns:
        A line that says what was drawn.

    Raises:
        UserError: scikit-learn is not installed, the encoder cannot be used, or there are too few tools.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError("the picture of tools needs scikit-learn: pip install 'k2jax[synthesize]'") from None
    if len(entries) < 8:
        raise UserError(f"a picture needs at least 8 tools, and there are {len(entries)}")
    shown = _shown(entries)
    vectors = text_vectors([tool_text(entry["tool"]) for entry in shown], encoder)
    near = min(30.0, (len(shown) - 1) / 3)
    places = TSNE(perplexity=near, init="pca", metric="cosine", random_state=0).fit_transform(vectors)
    figure, axes = new_figure(1, 2, width=13.0, height=5.6)
    for axis, key, title in zip(axes[0], ("source", "category"), ("by source", "by category"), strict=True):
        _panel(axis, places, [str(entry[key]) for entry in shown], f"Tools {title}")
    figure.savefig(path, dpi=120)
    how = f"vectors of {encoder}" if encoder else "vectors of words"
    return f"{path}: {len(shown):,} of {len(entries):,} tools by t-SNE of {how}"


def _shown(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    of_servers = [entry for entry in entries if entry["source"] == "mcp"][:MOST_SHOWN]
    others = [entry for entry in entries if entry["source"] != "mcp"]
    many = min(len(others), MOST_SHOWN - len(of_servers))
    return [*(others[place * len(others) // many] for place in range(many)), *of_servers]


def _panel(axis: Any, places: np.ndarray, groups: Sequence[str], title: str) -> None:
    import matplotlib

    names = sorted(set(groups), key=lambda name: -groups.count(name))
    colours = matplotlib.colormaps["tab20"].colors
    for number, name in enumerate(names):
        mine = np.array([group == name for group in groups])
        size = 5 if mine.mean() > 0.05 else 16  # a few among many have to be seen
        label = f"{name} ({mine.sum():,})" if number < _LEGEND else None
        axis.scatter(
            *places[mine].T, s=size, color=colours[(2 * number) % 20 + (number // 10) % 2], label=label, linewidths=0
        )
    style_axes(axis, title=title)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=2)
