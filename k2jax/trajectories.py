"""Shows, checks and exports the trajectories of a run.

Writes a page with the run's curves, the groups and rewards of an iteration, and of each trajectory its tree, its turns,
what a critic said, and every token with its mask, log-probability and version:

    python -m k2jax.trajectories runs/post --step=40 --out=iteration40.html

Checks that tokens, masks, versions and rewards of all stored iterations are consistent:

    python -m k2jax.trajectories runs/post --verify

Exports training rows, or demonstrations for supervised fine-tuning by rejection sampling:

    python -m k2jax.trajectories runs/post --step=40 --format=turns --out=rows.jsonl
    python -m k2jax.trajectories runs/post --filters=finished,correct_answer --out=demonstrations.jsonl

Writes how often each task was solved, which a class of tasks may be filtered by (config.rl.tasks.NAME.pass_rates):

    python -m k2jax.trajectories runs/rollouts --pass_rates --out=rates.json
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import itertools
import json
from pathlib import Path

from absl import flags
import numpy as np

from k2jax import cli
from k2jax.agents.viewer.viewer import MAX_TOKENS, write_page
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.report.metrics import read_metrics
from k2jax.text.tokenizer import Tokenizer, load_tokenizer
from k2jax.trajectory import Trajectory, TrajectoryStore, exported, verify, write_jsonl
from k2jax.trajectory.filters import demonstrated_paths
from k2jax.trajectory.pass_rates import pass_rates
from k2jax.trajectory.store import FOLDER

PROBLEMS = 1
"""Exit code of a check that has found some."""
ROWS = ".jsonl"
"""End of the name of a file of exported rows."""


def define_flags(values: flags.FlagValues) -> None:
    """Adds the command's flags to ``values``."""
    flags.DEFINE_integer("step", None, "Iteration; the newest, or all where all are read.", flag_values=values)
    flags.DEFINE_integer("prompt", None, "Show the samples of this prompt alone.", lower_bound=0, flag_values=values)
    flags.DEFINE_string("out", None, "File to write; trajectories.html in the run's folder.", flag_values=values)
    flags.DEFINE_integer("tokens", MAX_TOKENS, "Most tokens of a page.", lower_bound=1, flag_values=values)
    flags.DEFINE_bool("verify", False, "Check the stored trajectories.", flag_values=values)
    flags.DEFINE_string("format", None, "Export rows: tree, paths, turns or flat.", flag_values=values)
    flags.DEFINE_integer("length", None, "Most tokens of an exported row.", lower_bound=1, flag_values=values)
    flags.DEFINE_bool("pass_rates", False, "Write the share of right samples of every task.", flag_values=values)
    flags.DEFINE_list("filters", None, "Export demonstrations that pass these filters.", flag_values=values)


def main(values: flags.FlagValues, workdir: str) -> int:
    """Runs the command; returns its exit code."""
    store = TrajectoryStore(Path(workdir) / FOLDER)
    if not store.steps():
        raise UserError(f"{workdir} has no trajectories; give the folder of a run of reinforcement learning")
    if sum((values.verify, values.pass_rates, values.format is not None, values.filters is not None)) > 1:
        raise UserError("--verify, --format, --filters and --pass_rates exclude each other; run the command for each")
    if values.verify:
        return _verify(store, values.step)
    if values.pass_rates:
        return _write_pass_rates(values, store)
    if values.format is not None:
        rows = exported(store.read(_step(store, values.step)), values.format, values.length)
        return _export(values, rows, Path(workdir))
    if values.filters is not None:
        paths = demonstrated_paths(_all(store, values.step), values.filters)
        # The tokens before the first answer decide the split, also where a path trains on a later answer alone.
        records = ({**path.to_json(), "prompt": int(np.argmax(path.written))} for path in paths)
        return _export(values, records, Path(workdir))
    return _show(values, store, Path(workdir))


def _step(store: TrajectoryStore, step: int | None) -> int:
    return store.steps()[-1] if step is None else step


def _all(store: TrajectoryStore, step: int | None) -> Iterator[Trajectory]:
    return itertools.chain.from_iterable(
        store.read(number) for number in ([step] if step is not None else store.steps())
    )


def _verify(store: TrajectoryStore, step: int | None) -> int:
    count, inconsistent = 0, 0
    for trajectory in _all(store, step):
        problems = verify(trajectory)
        for problem in problems:
            print(f"{trajectory.key} {trajectory.task!a}: {problem}")
        count, inconsistent = count + 1, inconsistent + bool(problems)
    print(f"{count:,} trajectories, {inconsistent:,} of them inconsistent")
    return PROBLEMS if inconsistent else 0


def _write_pass_rates(values: flags.FlagValues, store: TrajectoryStore) -> int:
    cli.require(values, "out")
    rates = pass_rates(_all(store, values.step))
    write_atomic(Path(values.out), json.dumps(rates, indent=1) + "\n")
    print(f"{values.out}: {sum(map(len, rates.values())):,} tasks")
    return 0


def _export(values: flags.FlagValues, records: Iterator[dict], workdir: Path) -> int:
    """Writes rows of tokens, each with the fingerprint of the tokenizer that they are of; see ``data.token_rows``."""
    cli.require(values, "out")
    if not values.out.endswith(ROWS):
        raise UserError(f"--out is {values.out}, and rows are JSON lines; give it a name that ends with {ROWS}")
    fingerprint = load_tokenizer(workdir / "tokenizer").fingerprint
    print(
        f"{values.out}: {write_jsonl(values.out, ({**record, 'tokenizer': fingerprint} for record in records)):,} lines"
    )
    return 0


def _show(values: flags.FlagValues, store: TrajectoryStore, workdir: Path) -> int:
    if values.out and values.out.endswith(ROWS):
        raise UserError(f"--out is {values.out}, and this writes a page: give --format or --filters to export rows")
    step = _step(store, values.step)
    chosen = (t for t in store.read(step) if values.prompt is None or t.key[1] == values.prompt)
    path = write_page(
        values.out or workdir / "trajectories.html",
        chosen,
        decoder(load_tokenizer(workdir / "tokenizer")),
        title=f"{workdir.resolve().name}, iteration {step}",
        records=read_metrics(workdir, most_lists=1),
        max_tokens=values.tokens,
    )
    print(path)
    return 0


def decoder(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A function that gives the text of one token, a special one's name, and bytes that are no text in hexadecimal."""

    def decode(token: int) -> str:
        if (name := tokenizer.special_name(token)) is not None:
            return name
        if not 0 <= token < tokenizer.vocab_size:
            return f"[{token}]"
        if not tokenizer.is_byte_level:
            return tokenizer.decode([token])
        data = tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:  # a part of a character
            return "".join(chr(byte) if byte < 0x80 else f"\\x{byte:02x}" for byte in data)

    return decode


if __name__ == "__main__":
    cli.run(main, define_flags, __doc__, ("WORKDIR",))
