"""What a run of reinforcement learning opens before its first iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
from pathlib import Path

from k2jax import processes
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scorer import Scorer
from k2jax.agents.task import Task
from k2jax.agents.verdicts import VerdictLog
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.config.schema import IMAGE_SOURCES, Config, ImagesConfig, ModelConfig
from k2jax.convert.loading import tokenizer_of
from k2jax.data.vocabulary import prepare_tokenizer
from k2jax.errors import UserError
from k2jax.inference import Engine
from k2jax.rl.critic.setup import check_critic, uses_critic
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine, store_folder
from k2jax.text.chat import ChatFormat, configured_chat
from k2jax.text.media_reading import MediaReader
from k2jax.text.tokenizer import Tokenizer, load_tokenizer
from k2jax.train.run import say

EPISODE_IMAGES, EPISODE_MEGAPIXELS = 4096, 1000.0
"""Most images of an episode, and most of their pixels before they are reduced [10^6]: its messages may be hostile."""


def check_config(config: Config) -> None:
    """Rejects what this loop cannot run, before anything is opened.

    Raises:
        UserError: in one line that names the keys.
    """
    rl, length = config.rl, config.data.sequence_length
    if config.stage != "rl":
        raise UserError(f"config.stage is {config.stage!r}; k2jax.rl runs 'rl', and k2jax.train the others")
    if rl.rollout.max_length > length:
        raise UserError(
            f"config.rl.rollout.max_length {rl.rollout.max_length} is longer than a row of config.data.sequence_length "
            f"{length}; a response is trained on in one row"
        )
    for name, task in rl.tasks.items():
        if task.max_tokens >= rl.rollout.max_length:
            raise UserError(
                f"config.rl.tasks.{name}.max_tokens {task.max_tokens} leaves no room for a prompt in "
                f"config.rl.rollout.max_length {rl.rollout.max_length}"
            )
    if config.router.balance_loss:
        raise UserError("config.router.balance_loss counts rows of pretraining; set it to 0 for reinforcement learning")
    if rl.packing.layout == "tree" and config.parallel.expert_slots < 1:
        raise UserError(
            f"config.rl.packing.layout tree gives the gradient of all paths only where no token is dropped; set "
            f"config.parallel.expert_slots {config.parallel.expert_slots} to 1, or the layout to paths"
        )
    if rl.advantage.baseline == "none" and rl.advantage.scale != "none":
        raise UserError("config.rl.advantage.scale divides what a baseline has centred; set it to none, or a baseline")
    check_critic(config)
    _check_images(config)
    if rl.updates > rl.rollout.prompts:
        raise UserError(f"config.rl.updates {rl.updates} is more than config.rl.rollout.prompts {rl.rollout.prompts}")


def _check_images(config: Config) -> None:
    """Rejects what is not built for a model with vision; raises UserError."""
    rl = config.rl
    without = {
        "rl.loss.mcla.passes": rl.loss.mcla.passes > 1,
        "rl.distill.weight": bool(rl.distill.weight),
        "rl.critic": uses_critic(rl),
    }
    if config.model.vision.layers and (used := [key for key, is_used in without.items() if is_used]):
        raise UserError(f"config.{used[0]} is not built for a model with vision (config.model.vision.layers); unset it")
    shown = [name for name, source in config.data.sources.items() if source.kind in IMAGE_SOURCES]
    if rl.loss.ptx and shown:
        raise UserError(f"config.rl.loss.ptx learns from text alone, and config.data.sources.{shown[0]} has images")


def open_chat(config: Config, workdir: Path) -> tuple[Tokenizer, ChatFormat]:
    """The tokenizer of the weights that the run starts from, which it keeps in its workdir, and its chat format.

    Raises:
        UserError: there is no tokenizer, or its vocabulary is larger than the model's.
    """
    folder = workdir / "tokenizer"
    if folder.exists():
        tokenizer = load_tokenizer(folder)
    elif config.init_from:
        tokenizer = tokenizer_of(config.init_from)
    else:
        tokenizer = prepare_tokenizer(config.data, builder=processes.is_first(), log=say)
    if tokenizer.vocab_size > config.model.vocab:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, config.model.vocab only {config.model.vocab}; raise it"
        )
    processes.barrier("tokenizer", None)
    if processes.is_first():
        tokenizer.save(folder)
    return tokenizer, configured_chat(tokenizer, config.data.chat_format)


def open_images(model: ModelConfig, images: ImagesConfig, tokenizer: Tokenizer) -> MediaReader | None:
    """What reads the images of tasks, in the sizes of the run; None for a model of text.

    Raises:
        UserError: the vocabulary has no tokens of media, or the extra ``vision`` is not installed.
    """
    if not model.vision.layers:
        return None
    try:
        from k2jax.data.images.processor import run_processor
        from k2jax.inference.media_reader import ImageReader, MediaLimits
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed: pip install -e ".[vision]"') from None
    limits = MediaLimits(EPISODE_IMAGES, EPISODE_MEGAPIXELS, patches=images.patches)
    return ImageReader(run_processor(model.vision, images), tokenizer, limits)


@contextlib.contextmanager
def open_scorer(config: Config, workdir: Path | None, tasks: Iterable[Task]) -> Iterator[Scorer]:
    """The verifiers of tasks, with a log of verdicts in the workdir, and a sandbox backend where a verifier needs it.

    Raises:
        UserError: a verifier is unknown, or the machine lacks what the backend needs.
    """
    scoring = config.rl.scoring
    with VerifierPool(scoring.workers, scoring.timeout, scoring.retries) as pool:
        with EventLoop() as event_loop:
            names = sorted({task.verifier for task in tasks if task.verifier})
            in_sandbox = [event_loop.run(pool.needs_sandbox(name)) for name in names]
        backend = make_backend(scoring.sandbox, images=config.rl.images) if any(in_sandbox) else None
        yield Scorer(pool, VerdictLog(workdir / "verdicts") if workdir else None, backend)


@contextlib.contextmanager
def publisher(config: Config, workdir: Path, engine: Engine) -> Iterator[Callable[[int], None]]:
    """A function that keeps the engine's weights in shared memory under a version, where ``rl.rollout.publish`` is set.

    Each of several processes keeps what lies on its devices. What is kept is freed when the run ends by itself. It
    outlives a trainer that is killed: engines in other processes go on from there.

    Raises:
        UserError: another run publishes under the same workdir.
    """
    if not config.rl.rollout.publish:
        yield lambda version: None
        return
    several = processes.count() > 1
    store = CheckpointEngine(store_folder(workdir, processes.index() if several else None), keeps_before=several)
    yield lambda version: store.publish(engine.weights.leaves(), version)
    store.remove()
