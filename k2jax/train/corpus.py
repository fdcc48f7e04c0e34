"""The corpus of a run: what this process reads of it, built by process 0 where it is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from pathlib import Path

from k2jax import processes
from k2jax.batch import PackedBatch
from k2jax.checkpoint import committed_steps
from k2jax.config.phases import RunPhase, run_phases
from k2jax.config.schema import Config, TokenizerConfig
from k2jax.convert.loading import tokenizer_folder, tokenizer_of
from k2jax.data import TrainingData, prepare_data
from k2jax.data.phases.phase_data import DataPhase, prepare_phases
from k2jax.data.training_data import ImageShape
from k2jax.errors import UserError
from k2jax.parallel.batches import BatchSharding
from k2jax.parallel.mesh import make_mesh
from k2jax.text.tokenizer import Tokenizer
from k2jax.train.run import say

_SEEN_SECONDS = 60.0  # until a shared disk shows to one host what another one has written


def open_corpus(config: Config, workdir: Path, phase: str = "") -> dict[str, TrainingData]:
    """Opens or builds the corpus, and puts its tokenizer into the workdir.

    Args:
        config: the experiment.
        workdir: the run's folder.
        phase: with which this start begins. Others may need other devices: where a later one does, that is said.

    Returns:
        The data of every phase by its name, which is empty in a run without phases.

    Raises:
        UserError: a mistake in the data, or a tokenizer that does not fit the model or ``init_from``.
    """
    phases = run_phases(config)
    data = _phased_data(config, phases, phase) if config.phases else _whole_data(config)
    tokenizer = data[0].tokenizer
    if tokenizer.vocab_size > config.model.vocab:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, config.model.vocab only {config.model.vocab}; raise it"
        )
    if config.init_from and not committed_steps(workdir):
        _check_tokenizer(config.init_from, data[0])
    processes.barrier("data", None)
    if processes.is_first():
        tokenizer.save(workdir / "tokenizer")
    return {phase.name: of for phase, of in zip(phases, data, strict=True)}


def _whole_data(config: Config) -> list[TrainingData]:
    batches = BatchSharding(config, make_mesh(config))
    return [shared_data(config, batches.rows, _images(config, batches))]


def _phased_data(config: Config, phases: Sequence[RunPhase], begun: str) -> list[TrainingData]:
    wanted, is_done = [], True
    for phase in phases:
        own, rows, images = phase.config, None, None
        is_done = is_done and phase.name != begun
        try:
            batches = BatchSharding(own, make_mesh(own))
            rows, images = batches.rows, _images(own, batches)
        except UserError as error:
            if phase.name == begun:
                raise
            if not is_done:
                say(f"the run stops before phase {phase.name}, to be continued on other devices: {error}")
        sizes = {"batch_size": own.train.batch_size, "local_rows": rows, "images": images}
        wanted.append(DataPhase(name=phase.name, first=phase.first, last=phase.last, config=own.data, **sizes))
    with _built_by_first():
        return prepare_phases(
            config.data,
            wanted,
            seed=config.train.seed,
            tokenizer=_named_tokenizer(config.data.tokenizer),
            builder=processes.is_first(),
            log=say,
            wait_seconds=_SEEN_SECONDS,
        )


def _images(config: Config, batches: BatchSharding) -> ImageShape | None:
    vision = config.model.vision
    return ImageShape(vision, batches.patch_rows, batches.local_patch_rows) if vision.layers else None


def shared_data(config: Config, rows: Sequence[int], images: ImageShape | None = None) -> TrainingData:
    """What this process reads of the data, which process 0 builds where they are missing."""
    with _built_by_first():
        return prepare_data(
            config.data,
            batch_size=config.train.batch_size,
            seed=config.train.seed,
            steps=config.train.steps,
            local_rows=rows,
            tokenizer=_named_tokenizer(config.data.tokenizer),
            images=images,
            builder=processes.is_first(),
            log=say,
            wait_seconds=_SEEN_SECONDS,
        )


def ptx_data(config: Config, tokenizer: Tokenizer) -> TrainingData | None:
    """The data of PTX in the tokens of the run, a batch of ``rl.loss.ptx_rows`` rows for every update.

    Returns:
        All rows of every batch, in every process; None without PTX.

    Raises:
        UserError: a mistake in the data.
    """
    loss = config.rl.loss
    if not loss.ptx:
        return None
    with _built_by_first():
        return prepare_data(
            config.data,
            batch_size=loss.ptx_rows,
            seed=config.train.seed,
            steps=config.train.steps * config.rl.updates,
            tokenizer=tokenizer,
            builder=processes.is_first(),
            log=say,
            wait_seconds=_SEEN_SECONDS,
        )


@contextlib.contextmanager
def _built_by_first() -> Iterator[None]:
    """Process 0 builds what is missing, and the others then find it.

    They wait for as long as process 0 lives: a large corpus takes hours.
    """
    if not processes.is_first():
        processes.barrier("built", None)
    yield
    if processes.is_first():
        processes.barrier("built", None)


def _named_tokenizer(config: TokenizerConfig) -> Tokenizer | None:
    """The tokenizer of ``kind=file``, whose path is any checkpoint argument; None for the other kinds."""
    return tokenizer_of(config.path) if config.kind == "file" and config.path else None


def held_out_batches(
    config: Config, data: TrainingData, final: bool, source: str | None = None
) -> Iterator[PackedBatch]:
    """This process's rows of the held-out batches of a validation, of all sources or of one."""
    rows = config.eval.final_rows if final else config.eval.rows
    return data.held_out.batches(config.train.batch_size, rows, source)


def _check_tokenizer(init_from: str, data: TrainingData) -> None:
    """Embeddings mean nothing under another tokenizer of the same size."""
    if tokenizer_of(init_from).fingerprint != data.tokenizer.fingerprint:
        raise UserError(
            f"init_from {init_from} was trained with another tokenizer; set config.data.tokenizer.kind to 'file' "
            f"and config.data.tokenizer.path to {tokenizer_folder(init_from)}"
        )
