"""What a run with images answers about drawn pictures that it has not seen, and about each other's pictures.

Words, layouts and seeds are those of the split ``held_out``. The second figure of every kind is of the same questions
with the pictures exchanged among them: what the model knows without seeing.

    python -m k2jax.evaluate.pictures --checkpoint=runs/sft-nano-vision
    python -m k2jax.evaluate.pictures --checkpoint=runs/sft-nano-vision --kinds=locate,point
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags
import numpy as np

from k2jax import cli, runtime
from k2jax.checkpoint import checkpoint_config
from k2jax.client import Sampling
from k2jax.config.schema import Config
from k2jax.convert.image_limits import processor_limits
from k2jax.convert.loading import tokenizer_of
from k2jax.data.images.measuring import picture_size
from k2jax.data.images.processor import ImageProcessor
from k2jax.drawings.canvas import VisualSample
from k2jax.drawings.synthetic import BASIC_KINDS, KINDS, least_size, synthetic_sample
from k2jax.errors import UserError, nearest
from k2jax.evaluate.picture_scores import score_answer
from k2jax.inference import Engine
from k2jax.inference.loading import load_engine
from k2jax.inference.media_prompt import chat_prompt
from k2jax.report.table import text_table
from k2jax.text.chat import ChatFormat, configured_chat
from k2jax.text.tokenizer import Tokenizer

SEED = 1
"""Seed of held-out pictures; training draws with seed 0."""
LONGEST = 192
"""Bytes of the longest answers: nine boxes, or four descriptions, and some more."""
LONGEST_CODE = 384
"""Bytes of the longest code, and some more."""


class PictureScore(NamedTuple):
    """Means over questions of one kind.

    Attributes:
        kind: what is asked.
        seen: score with the right pictures.
        exchanged: with another question's picture.
        questions: their number.
    """

    kind: str
    seen: float
    exchanged: float
    questions: int


class PictureReader(NamedTuple):
    """A run with images that answers questions.

    Attributes:
        engine: the model.
        tokenizer: its vocabulary, with the special tokens of media.
        chat: the chat format that it was trained in.
        processor: of its images, which are reduced as in its training.
    """

    engine: Engine
    tokenizer: Tokenizer
    chat: ChatFormat
    processor: ImageProcessor


def load_picture_reader(checkpoint: str | Path, config: Config, max_tokens: int, slots: int = 64) -> PictureReader:
    """Loads a checkpoint for prompts that are at most as long as its rows.

    Args:
        checkpoint: a workdir, or one of its steps.
        config: of its run, or of the phase that saved it.
        max_tokens: most tokens of an answer.
        slots: questions that are answered at a time.
    """
    tokenizer = tokenizer_of(checkpoint)
    sizes = {"max_length": config.data.sequence_length + max_tokens, "slots": slots}
    engine = load_engine(checkpoint, np.float32, vision=True, **sizes)
    vision = engine.model.vision
    processor = ImageProcessor(vision, limits=processor_limits(checkpoint, vision))
    return PictureReader(engine, tokenizer, configured_chat(tokenizer, config.data.chat_format), processor)


def greedy_answers(reader: PictureReader, contents: Sequence[Sequence[Any]], max_tokens: int) -> list[str]:
    """Greedy answers to messages with images and clips.

    Args:
        reader: the model.
        contents: parts of each message, as ``ImageProcessor.prepare`` takes them.
        max_tokens: most tokens of an answer.
    """
    engine, tokenizer, chat, processor = reader
    messages = [[{"role": "user", "content": content}] for content in contents]
    prompts = [chat_prompt(message, tokenizer, processor, chat=chat) for message in messages]
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, stop_tokens=(chat.end,))
    requests = engine.generate([prompt.tokens for prompt in prompts], sampling, [prompt.media for prompt in prompts])
    ends = [request.finish_reason == "stop" for request in requests]
    return [
        tokenizer.decode(request.tokens[:-1] if ended else request.tokens)
        for request, ended in zip(requests, ends, strict=True)
    ]


def evaluate_pictures(
    checkpoint: str, config: Config, questions: int, *, kinds: Sequence[str] = (), max_tokens: int = 0
) -> list[PictureScore]:
    """Scores of a checkpoint on pictures of the sizes that its run trained on.

    Args:
        checkpoint: a workdir, or one of its steps.
        config: of its run, or of the phase that saved it.
        questions: of each kind.
        kinds: what is asked; empty is what the run trained on. What it did not train on is drawn in the largest
            of its sizes that shows it.
        max_tokens: most tokens of an answer; 0 is ``LONGEST``, and ``LONGEST_CODE`` of code.

    Raises:
        UserError: the run has no synthetic pictures, or a kind is unknown or needs larger ones.
    """
    drawn = [source for source in config.data.sources.values() if source.kind == "synthetic_images"]
    if not drawn:
        raise UserError(f"{checkpoint} trained on no source of kind synthetic_images: there is nothing to ask about")
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(f"--kinds: no kind {kind!r}{nearest(kind, KINDS)}")
    size_of = {kind: picture_size(source) for source in reversed(drawn) for kind in source.pictures or BASIC_KINDS}
    asked = {}
    for kind in kinds or sorted(size_of):
        options = {"kind": kind, "split": "held_out", "size": size_of.get(kind) or _largest(kind, size_of.values())}
        asked[kind] = [synthetic_sample(SEED, index, **options) for index in range(questions)]
    longest = {kind: max_tokens or (LONGEST_CODE if kind == "code" else LONGEST) for kind in asked}
    reader = load_picture_reader(checkpoint, config, max(longest.values()))
    scores = []
    for kind, samples in asked.items():
        answers = [greedy_answers(reader, _asked(shown), longest[kind]) for shown in (samples, exchanged(samples))]
        means = [np.mean([score_answer(*pair) for pair in zip(samples, replies, strict=True)]) for replies in answers]
        scores.append(PictureScore(kind, *map(float, means), questions))
    return scores


def _largest(kind: str, sizes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The largest size in which a kind can be drawn, or the largest of all where there is none."""
    least = least_size([kind])
    return max(sizes, key=lambda size: (size[0] >= least[0] and size[1] >= least[1], size[0] * size[1]))


def exchanged(samples: Sequence[VisualSample]) -> list[VisualSample]:
    """The same questions, each about the picture of the next one."""
    pictures = [*samples[1:], samples[0]]
    return [sample._replace(image=other.image) for sample, other in zip(samples, pictures, strict=True)]


def _asked(samples: Sequence[VisualSample]) -> list[list[dict[str, Any]]]:
    """Parts of the messages that show a picture and ask about it."""
    return [[{"type": "image", "image": sample.image}, {"type": "text", "text": sample.question}] for sample in samples]


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("checkpoint", None, "The workdir of a run with images, or one of its steps.", **to)
    flags.DEFINE_integer("questions", 128, "Held-out questions of each kind.", **to, lower_bound=2)
    flags.DEFINE_list("kinds", [], "What is asked, such as locate,point; empty is what the run trained on.", **to)
    about = f"Most tokens of an answer; 0 is {LONGEST}, and {LONGEST_CODE} where code is asked for."
    flags.DEFINE_integer("max_tokens", 0, about, **to, lower_bound=0)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "checkpoint")
    runtime.prepare()
    config = checkpoint_config(values.checkpoint)
    options = {"kinds": values.kinds, "max_tokens": values.max_tokens}
    scores = evaluate_pictures(values.checkpoint, config, values.questions, **options)
    rows = [[score.kind, f"{score.seen:.3f}", f"{score.exchanged:.3f}", str(score.questions)] for score in scores]
    print(text_table(("kind", "right pictures", "pictures exchanged", "questions"), rows))


if __name__ == "__main__":
    cli.run(main, define, __doc__)
