"""Shows, checks and exports the trajectories of a run.

Writes a page with the run's curves, the groups and rewards of an iteration, and of each trajectory its tree, its turns,
what a critic said, and every token with its mask, log-probability and version:

    python -m k2jax.trajectories runs/post --step=40 --out=iteration40.html

Checks that tokens, masks, versions and rewards of all stored iterations are consistent:

    python -m k2jax.trajectories runs/post --verify

Exports training rows, or demonstrations for supervised fine-tuning by rejection sampling:

    python -m k2jax.trajectories runs/post --step=40 --format=turns --out=rows.jsonl
    python -m k2jax.trajectories runs/post --filters=finished,correct_answer --out=demonstrations.jsonl

The trajectories of sub-agents are rows of their own with --sub_agents, and are left out without it.

Writes each episode as a file for tools that read the Agent Trajectory Interchange Format, its sub-agents embedded:

    python -m k2jax.trajectories runs/post --step=40 --atif --out=episodes

Writes how often each task was solved, which a class of tasks may be filtered by (config.rl.tasks.NAME.pass_rates):

    python -m k2jax.trajectories runs/rollouts --pass_rates --out=rates.json
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import dataclasses
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
from k2jax.trajectory.atif import atif_document, atif_name
from k2jax.trajectory.filters import demonstrated_paths
from k2jax.trajectory.links import sub_trajectories
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
    flags.DEFINE_bool("sub_agents", False, "Export the trajectories of sub-agents too.", flag_values=values)
    flags.DEFINE_bool("atif", False, "Export every episode as a file of ATIF.", flag_values=values)
    flags.DEFINE_bool("pass_rates", False, "Write the share of right samples of every task.", flag_values=values)
    flags.DEFINE_list("filters", None, "Export demonstrations that pass these filters.", flag_values=values)


def main(values: flags.FlagValues, workdir: str) -> int:
    """Runs the command; returns its exit code."""
    store = TrajectoryStore(Path(workdir) / FOLDER)
    if not store.steps():
        raise UserError(f"{workdir} has no trajectories; give the folder of a run of reinforcement learning")
    rows = values.format is not None or values.filters is not None
    if sum((values.verify, values.pass_rates, values.atif, values.format is not None, values.filters is not None)) > 1:
        raise UserError(
            "--verify, --format, --filters, --atif and --pass_rates exclude each other; run the command for each"
        )
    if values.sub_agents and not rows:
        raise UserError("--sub_agents adds rows of sub-agents: give --format or --filters with it")
    if values.verify:
        return _verify(store, values.step)
    if values.pass_rates:
        return _write_pass_rates(values, store)
    if values.atif:
        return _write_atif(values, store, Path(workdir))
    return _export(values, store, Path(workdir)) if rows else _show(values, store, Path(workdir))


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


class _Exported:
    """The trajectories of a command's rows: episodes, and with ``sub_agents`` those below each of them.

    A sub-agent that was not scored by itself has the reward of its episode.
    """

    def __init__(self, sub_agents: bool):
        self._sub_agents, self.left_out = sub_agents, 0

    def of(self, episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
        for episode in episodes:
            yield episode
            for each in sub_trajectories(episode):
                if self._sub_agents:
                    yield each if each.reward is not None else dataclasses.replace(each, reward=episode.reward)
                else:
                    self.left_out += 1


def _export(values: flags.FlagValues, store: TrajectoryStore, workdir: Path) -> int:
    """Writes rows of tokens, each with the fingerprint of the tokenizer that they are of; see ``data.token_rows``."""
    chosen = _Exported(values.sub_agents)
    if values.format is not None:
        records = exported(chosen.of(store.read(_step(store, values.step))), values.format, values.length)
    else:
        paths = demonstrated_paths(chosen.of(_all(store, values.step)), values.filters)
        # The tokens before the first answer decide the split, also where a path trains on a later answer alone.
        records = ({**path.to_json(), "prompt": int(np.argmax(path.written))} for path in paths)
    cli.require(values, "out")
    if not values.out.endswith(ROWS):
        raise UserError(f"--out is {values.out}, and rows are JSON lines; give it a name that ends with {ROWS}")
    fingerprint = load_tokenizer(workdir / "tokenizer").fingerprint
    count = write_jsonl(values.out, ({**record, "tokenizer": fingerprint} for record in records))
    print(f"{values.out}: {count:,} lines")
    if chosen.left_out:
        print(f"{chosen.left_out:,} trajectories of sub-agents are left out; --sub_agents exports them too")
    return 0


def _write_atif(values: flags.FlagValues, store: TrajectoryStore, workdir: Path) -> int:
    cli.require(values, "out")
    if values.out.endswith(ROWS):
        raise UserError(f"--out is {values.out}, and --atif writes a file for each episode; give it a folder")
    folder, count = Path(values.out), 0
    for trajectory in _of_prompt(values, store.read(_step(store, values.step))):
        document = atif_document(trajectory, workdir.resolve().name)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"{atif_name(trajectory)}.json", json.dumps(document, allow_nan=False) + "\n")
        count += 1
    print(f"{folder}: {count:,} episodes")
    return 0


def _of_prompt(values: flags.FlagValues, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
    return (each for each in trajectories if values.prompt is None or each.key[1] == values.prompt)


def _show(values: flags.FlagValues, store: TrajectoryStore, workdir: Path) -> int:
    if values.out and values.out.endswith(ROWS):
        raise UserError(f"--out is {values.out}, and this writes a page: give --format or --filters to export rows")
    step = _step(store, values.step)
    path = write_page(
        values.out or workdir / "trajectories.html",
        _of_prompt(values, store.read(step)),
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
