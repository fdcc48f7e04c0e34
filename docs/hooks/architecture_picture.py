"""Prints the picture of the package floors: ``python docs/hooks/architecture_picture.py > docs/architecture.svg``.

The floors are those that import-linter checks (``pyproject.toml``); a test compares the picture with them.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
import tomllib

ROOT = Path(__file__).parents[2]
PURPOSES = {
    "agents": "episodes, no jax",
    "aot": "cost of compiled steps",
    "batch": "packed rows",
    "bench": "benchmarks",
    "checkpoint": "save and restore",
    "chips": "TPU specifications",
    "cli": "flags, one-line errors",
    "client": "requests, completions",
    "config": "keys and presets",
    "convert": "Hugging Face weights",
    "data": "corpora, shards, packing",
    "drawings": "pictures of tasks",
    "env": "tasks checked, served",
    "errors": "mistakes of the user",
    "evaluate": "suites, pass@k",
    "files": "bounded reading",
    "gateway": "proxy for agents",
    "generate": "text in the terminal",
    "inference": "engine, paged cache",
    "launch": "runs on TPU pods",
    "losses": "one file per loss",
    "mixture_plan": "shares of sources",
    "model": "decoder, router, head",
    "optim": "MuonClip, schedules",
    "parallel": "mesh, pipelines, ZeRO-1",
    "params": "declared weights",
    "pods": "TPU slices, manifests",
    "processes": "multi-process runs",
    "report": "metrics, plots",
    "reproduce": "studies of the reports",
    "rl": "reinforcement learning",
    "rollout": "collected trajectories",
    "runtime": "platform of JAX",
    "sandbox": "what is isolated",
    "serve": "HTTP server",
    "sharding": "logical to mesh axes",
    "synthesize": "data from models",
    "tasks": "families of tasks",
    "text": "tokenizers, chat, tools",
    "train": "steps, runs, workdir",
    "trajectories": "pages of rollouts",
    "trajectory": "rollouts as data",
}
KERNELS = ("mla_attention", "mla_decode", "routed_experts", "expert_exchange", "grouped_matmul", "newton_schulz")
WIDTH, MARGIN, LEFT = 940, 16, 54
BOX_HEIGHT, BOX_GAP, PER_ROW = 46, 10, 6
FLOOR_PADDING, FLOOR_GAP = 10, 8
TINTS = ("#e3eef1", "#d5e6ea", "#c7dee3", "#b9d5dc")
INK, SOFT, LINE, KERNEL = "#17303a", "#4a626c", "#8fb1ba", "#f3e3c8"


def floors() -> list[list[str]]:
    """Packages of every floor, from the top, as import-linter checks them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip(" ()") for name in layer.replace(":", "|").split("|")] for layer in layers]


def picture() -> str:
    """The SVG file."""
    y, parts = MARGIN, []
    for number, names in enumerate(floors()):
        drawn, height = _floor(names, y, TINTS[min(number // 3, len(TINTS) - 1)])
        parts, y = parts + drawn, y + height + FLOOR_GAP
    parts += _arrow(MARGIN + 14, MARGIN, y - FLOOR_GAP)
    y += 14
    parts.append(
        _text(LEFT, y, "pallas_kernels depends on JAX alone; model, optim, parallel and inference call it", 13)
    )
    drawn, height = _floor(list(KERNELS), y + 10, KERNEL)
    y += 10 + height
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + MARGIN}" role="img" '
        f'font-family="ui-sans-serif, system-ui, Helvetica, Arial, sans-serif">\n'
        "<title>The packages of k2jax, in floors: a package imports packages of lower floors only</title>\n"
        f'<rect width="{WIDTH}" height="{y + MARGIN}" rx="10" fill="#ffffff"/>\n'
    )
    return head + "\n".join(parts + drawn) + "\n</svg>\n"


def _floor(names: list[str], top: float, tint: str) -> tuple[list[str], float]:
    """One floor's shapes and its height."""
    rows = -(-len(names) // PER_ROW)
    columns = -(-len(names) // rows)
    height = rows * BOX_HEIGHT + (rows - 1) * BOX_GAP + 2 * FLOOR_PADDING
    width = WIDTH - LEFT - MARGIN
    parts = [f'<rect x="{LEFT}" y="{top:g}" width="{width}" height="{height}" rx="8" fill="{tint}"/>']
    for i, name in enumerate(names):
        row, column = divmod(i, columns)
        boxes = min(columns, len(names) - row * columns)
        box = min((width - 2 * FLOOR_PADDING - (boxes - 1) * BOX_GAP) / boxes, 240.0)
        start = LEFT + (width - boxes * box - (boxes - 1) * BOX_GAP) / 2
        x, y = start + column * (box + BOX_GAP), top + FLOOR_PADDING + row * (BOX_HEIGHT + BOX_GAP)
        parts += _box(name, x, y, box)
    return parts, height


def _box(name: str, x: float, y: float, width: float) -> list[str]:
    purpose = PURPOSES.get(name, "")
    middle = x + width / 2
    shape = (
        f'<rect x="{x:.4g}" y="{y:g}" width="{width:.4g}" height="{BOX_HEIGHT}" rx="6" fill="#fff" stroke="{LINE}"/>'
    )
    title = _text(
        middle, y + (20 if purpose else 28), name, 14 if purpose else 12.5, fill=INK, anchor="middle", bold=True
    )
    return [shape, title, *([_text(middle, y + 36, purpose, 11.5, anchor="middle")] if purpose else [])]


def _arrow(x: float, top: float, bottom: float) -> list[str]:
    middle = (top + bottom) / 2
    return [
        f'<path d="M{x + 12} {top} V{bottom - 8} m-6 -2 l6 9 l6 -9" fill="none" stroke="{SOFT}" stroke-width="2"/>',
        f'<text x="{x}" y="{middle:g}" font-size="13" fill="{SOFT}" text-anchor="middle" '
        f'transform="rotate(-90 {x} {middle:g})">imports point downwards</text>',
    ]


def _text(
    x: float, y: float, text: str, size: float, fill: str = SOFT, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.4g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>'
        f"{escape(text)}</text>"
    )


if __name__ == "__main__":
    print(picture(), end="")
