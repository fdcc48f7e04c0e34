"""Notebooks run from top to bottom, and are the same as their paired text files."""

from pathlib import Path

import jupytext
from nbclient import NotebookClient
import nbformat
import pytest

FIGURES = {"asynchronous_rl": 1, "swarm": 2, "synthesis": 2, "vision": 5}
"""Pictures of notebooks that have another number than the others."""
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_equals_its_text_file(path):
    notebook, text = nbformat.read(path, as_version=4), jupytext.read(path.with_suffix(".py"))
    cells = [[(cell.cell_type, cell.source) for cell in nb.cells] for nb in (notebook, text)]
    assert cells[0] == cells[1], f"jupytext --to ipynb {path.with_suffix('.py').name}"
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("K2JAX_NOTEBOOK_STEPS", "2")
    monkeypatch.setenv("K2JAX_NOTEBOOK_WORKDIR", str(tmp_path / "run"))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=400, kernel_name="python3").execute()
    images = [o for cell in notebook.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(images) == FIGURES.get(path.stem, 3)
