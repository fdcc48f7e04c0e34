"""What a run reads: its tokenizer and chat format, the images of tasks, and verifiers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
import functools
import os
from pathlib import Path
from typing import Any

from k2jax import processes
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scorer import Scorer
from k2jax.agents.task import Task
from k2jax.agents.verdicts import VerdictLog
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.client import ChatEndpoint
from k2jax.config.build import from_json
from k2jax.config.schema import Config, ImagesConfig, ModelConfig, RLConfig
from k2jax.convert.loading import tokenizer_of
from k2jax.data.vocabulary import prepare_tokenizer
from k2jax.errors import UserError
from k2jax.rl.event_loop import EventLoop
from k2jax.text.chat import ChatFormat, configured_chat
from k2jax.text.media_reading import MediaReader
from k2jax.text.tokenizer import Tokenizer, load_tokenizer
from k2jax.train.run import say

EPISODE_IMAGES, EPISODE_MEGAPIXELS = 4096, 1000.0
"""Most images of an episode, and most of their pixels before they are reduced [10^6]: its messages may be hostile."""


def open_chat(config: Config, workdir: Path) -> tuple[Tokenizer, ChatFormat]:
    """The tokenizer of the weights that the run starts from, which it keeps in its workdir, and its chat format.

    Raises:
        UserError: there is no tokenizer, or its vocabulary is larger than the model's.
    """
    folder = workdir / "tokenizer"
    if folder.exists() and (workdir / "config.json").exists():  # else a start that failed has left it
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


def images_of_run(config: str, tokenizer: str) -> MediaReader | None:
    """What reads the images of a run, for a worker: its config as JSON and the folder of its tokenizer."""
    read = from_json(config)
    return open_images(read.model, read.data.images, load_tokenizer(tokenizer))


@contextlib.contextmanager
def open_scorer(config: Config, workdir: Path | None, tasks: Iterable[Task]) -> Iterator[Scorer]:
    """The verifiers of tasks, with a log of verdicts in the workdir, and a sandbox backend where a verifier needs it.

    Of several processes the first one alone asks them; in the others none is started.

    Raises:
        UserError: a verifier is unknown, or the machine lacks what it or the backend needs.
    """
    scoring = config.rl.scoring
    limits = (scoring.workers, scoring.timeout, scoring.retries)
    with VerifierPool(*limits, environment=scoring.environment) as pool:
        with EventLoop() as event_loop:
            judged = event_loop.run(pool.judged_by(tasks if processes.is_first() else ()))
        needs_sandbox = "episode in a sandbox" in judged
        backend = make_backend(scoring.sandbox, images=config.rl.images) if needs_sandbox else None
        critic, model = config.rl.critic, None
        if critic.judge == "endpoint":
            model = functools.partial(ChatEndpoint, critic.url, critic.model, **endpoint_options(config.rl))
        processes.barrier("scorer", None)  # gloo waits for half a minute in the first collective, and no longer
        yield Scorer(pool, VerdictLog(workdir / "verdicts") if workdir else None, backend, model)


def endpoint_options(rl: RLConfig) -> dict[str, Any]:
    """How the endpoint of ``rl.critic`` is asked, for ``Endpoint``."""
    critic = rl.critic
    key = os.environ[critic.api_key_variable] if critic.api_key_variable else None
    return {"api_key": key, "timeout": critic.timeout, "attempts": 1 + rl.scoring.retries}
