"""Text samples over time: ``samples/STEP.md`` contains the model's continuation of each prompt at that step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
import re

from k2jax.files.atomic import write_atomic
from k2jax.report.table import fenced

FOLDER = "samples"
_SAMPLE = re.compile(
    r"Prompt:\n\n(?P<f>`{3,})text\n(?P<prompt>.*?)\n(?P=f)\n\nContinuation:\n\n(?P<g>`{3,})text\n(?P<text>.*?)\n(?P=g)\n",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Sample:
    """A continuation by the model.

    Attributes:
        prompt: text that the model continued.
        text: the continuation.
    """

    prompt: str
    text: str


def write_sample(workdir: Path | str, step: int, prompt: str, text: str) -> Path:
    """Adds a sample to ``samples/STEP.md`` atomically; a prompt's earlier sample at the same step is replaced.

    Returns:
        The path of the file.
    """
    path = Path(workdir) / FOLDER / f"{int(step)}.md"
    samples = {sample.prompt: sample for sample in _read(path)}  # a resumed run samples its first step again
    clean = [part.encode("utf-8", "replace").decode("utf-8") for part in (prompt, text)]  # replaces unpaired surrogates
    samples[clean[0]] = Sample(*clean)
    parts = [f"# Samples at step {int(step):,}\n"]
    for sample in samples.values():
        parts.append(f"Prompt:\n\n{fenced(sample.prompt)}\nContinuation:\n\n{fenced(sample.text)}")
    return write_atomic(path, "\n".join(parts))


def read_samples(workdir: Path | str) -> dict[int, list[Sample]]:
    """Returns all samples of a workdir by ascending step, in the order in which they were written."""
    steps = sorted(int(path.stem) for path in (Path(workdir) / FOLDER).glob("*.md") if path.stem.isdecimal())
    return {step: _read(Path(workdir) / FOLDER / f"{step}.md") for step in steps}


def _read(path: Path) -> list[Sample]:
    if not path.exists():
        return []
    content = path.read_bytes().decode("utf-8", "replace")  # read_text would convert \r\n to \n
    return [Sample(match["prompt"], match["text"]) for match in _SAMPLE.finditer(content)]
