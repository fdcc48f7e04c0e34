"""MkDocs hook: one API page for every public module of both packages, and their place in the navigation.

``mkdocs.yml`` names this file. mkdocstrings reads the sources without importing them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PACKAGES = ("k2jax", "pallas_kernels")
TITLE = "API"


def modules(package: str) -> Iterator[tuple[str, ...]]:
    """Dotted names, in parts, of a package's public modules; ``__main__`` files belong to docs/commands.md."""
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            yield parts


def page_of(parts: tuple[str, ...]) -> str:
    """Path of a module's page below ``docs_dir``; a package's page is the index of its folder."""
    folder = ROOT.joinpath(*parts)
    return "/".join(("api", *parts, "index.md")) if folder.is_dir() else "/".join(("api", *parts)) + ".md"


def navigation(package: str) -> dict[str, Any]:
    """The navigation entry of a package: its own page first, then modules and packages by name."""
    sections: dict[tuple[str, ...], list[Any]] = {}
    for parts in modules(package):
        entries = sections.setdefault(parts[:-1], [])
        if ROOT.joinpath(*parts).is_dir():
            sections[parts] = [{".".join(parts): page_of(parts)}]
            entries.append({parts[-1]: sections[parts]})
        else:
            entries.append({parts[-1]: page_of(parts)})
    return sections[()][0]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Appends the API section to the navigation."""
    config.nav.append({TITLE: ["api/index.md", *(navigation(package) for package in PACKAGES)]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    for package in PACKAGES:
        for parts in modules(package):
            text = f"::: {'.'.join(parts)}\n    options: {{heading_level: 1}}\n"
            files.append(File.generated(config, page_of(parts), content=text))
    return files
