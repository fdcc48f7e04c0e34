"""Text samples over time: ``samples/STEP.md`` holds what the model wrote for each prompt at that step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
import re

from k2jax.report.files import write_atomic
from k2jax.report.table import fenced

FOLDER = "samples"
_SAMPLE = re.compile(
    r"Prompt:\n\n(?P<f>`{3,})text\n(?P<prompt>.*?)\n(?P=f)\n\nContinuation:\n\n(?P<g>`{3,})text\n(?P<text>.*?)\n(?P=g)\n",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the model wrote after a prompt."""

    prompt: str
    text: str


def write_sample(workdir: Path | str, step: int, prompt: str, text: str) -> Path:
    """Add a sample to ``samples/STEP.md`` in one rename; a prompt sampled again at a step replaces its old text."""
    path = Path(workdir) / FOLDER / f"{int(step)}.md"
    samples = {sample.prompt: sample for sample in _read(path)}  # a resumed run repeats the samples of its first step
    clean = [part.encode("utf-8", "replace").decode("utf-8") for part in (prompt, text)]  # lone surrogates
    samples[clean[0]] = Sample(*clean)
    parts = [f"# Samples at step {int(step):,}\n"]
    for sample in samples.values():
        parts.append(f"Prompt:\n\n{fenced(sample.prompt)}\nContinuation:\n\n{fenced(sample.text)}")
    return write_atomic(path, "\n".join(parts))


def read_samples(workdir: Path | str) -> dict[int, list[Sample]]:
    """All samples of a workdir by ascending step, in the order they were written."""
    steps = sorted(int(path.stem) for path in (Path(workdir) / FOLDER).glob("*.md") if path.stem.isdecimal())
    return {step: _read(Path(workdir) / FOLDER / f"{step}.md") for step in steps}


def _read(path: Path) -> list[Sample]:
    if not path.exists():
        return []
    content = path.read_bytes().decode("utf-8", "replace")  # not read_text: it would turn \r\n into \n
    return [Sample(match["prompt"], match["text"]) for match in _SAMPLE.finditer(content)]
