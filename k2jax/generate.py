"""Continues a text, or answers in a chat, as it is generated; the speed goes to the error output.

Example:
    python -m k2jax.generate --checkpoint=smollm2 --prompt="Once upon a time"
    python -m k2jax.generate --checkpoint=smollm2 --prompt="What is the capital of France?" --chat --temperature=0
    python -m k2jax.generate --checkpoint=path/to/Kimi-K2.5 --image=photo.jpg --prompt="What is this?" --chat
"""

import secrets
import sys
import time
from typing import Any

from absl import flags

from k2jax import cli, runtime
from k2jax.errors import UserError


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("checkpoint", None, "Workdir, step of one, Hugging Face folder, hub:ORG/NAME or smollm2.", **to)
    flags.DEFINE_string("prompt", None, "Text to continue, or message to answer.", **to)
    text = "File or URL of an image before the prompt; may be given several times."
    flags.DEFINE_multi_string("image", [], text, **to)
    flags.DEFINE_multi_string("video", [], "The same of a video, after the images.", **to)
    flags.DEFINE_bool("chat", False, "Answer the prompt as a user's message in a chat.", **to)
    flags.DEFINE_integer("max_tokens", 256, "Most tokens to generate.", **to)
    flags.DEFINE_float("temperature", 1.0, "Divides the logits; 0 takes the most likely token.", **to)
    flags.DEFINE_float("top_p", 1.0, "Keeps the most likely tokens whose probabilities reach this sum.", **to)
    flags.DEFINE_integer("seed", None, "Seed of the random numbers; default: a random one.", **to)
    flags.DEFINE_integer("expert", 1, "Devices over which the experts are distributed.", **to, lower_bound=1)
    flags.DEFINE_enum("dtype", None, ("float32", "bfloat16"), "Data type of the weights; default: as stored.", **to)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "checkpoint", "prompt")
    runtime.prepare()
    from k2jax.client import Sampling
    from k2jax.convert.loading import tokenizer_of
    from k2jax.inference.loading import load_engine
    from k2jax.inference.mesh import make_engine_mesh
    from k2jax.inference.request import Request
    from k2jax.text.chat import chat_format
    from k2jax.text.streaming import TextStream

    seed = secrets.randbelow(2**32) if values.seed is None else values.seed
    sampling = Sampling(values.max_tokens, temperature=values.temperature, top_p=values.top_p, seed=seed)
    sampling.check()
    tokenizer = tokenizer_of(values.checkpoint)
    ends = {tokenizer.eos, chat_format(tokenizer).end} if values.chat else {tokenizer.eos}
    prompt, media = _prompt(values, tokenizer)
    text, times = TextStream(tokenizer, prompt), []

    def show(request: Request) -> None:
        times.append(time.perf_counter())
        last = request.tokens[-1]
        print("" if last in ends else text.feed(last), end="", flush=True)

    mesh = make_engine_mesh(expert=values.expert)
    sizes = {"slots": values.expert, "max_length": len(prompt) + values.max_tokens}
    engine = load_engine(values.checkpoint, values.dtype, mesh, vision=bool(media), **sizes)
    sampling = Sampling(**vars(sampling) | {"stop_tokens": tuple(ends)})
    began = time.perf_counter()
    engine.submit(prompt, sampling, media=media, on_token=show)
    while engine.has_work():
        engine.step()
    print(text.end(), flush=True)
    print(_speed(len(prompt), began, times), file=sys.stderr)


def _prompt(values: flags.FlagValues, tokenizer: Any) -> tuple[list[int], tuple[Any, ...]]:
    """Token ids of the prompt, and its images and videos; reading these needs the extra ``vision``."""
    from k2jax.convert.image_limits import processor_limits
    from k2jax.convert.loading import open_pretrained
    from k2jax.text.chat import chat_format, render_history

    if not (values.image or values.video):
        if not values.chat:
            return tokenizer.encode_document(values.prompt), ()
        builder = render_history(chat_format(tokenizer), [{"role": "user", "content": values.prompt}])
        builder.open_assistant()
        return builder.tokens, ()
    try:
        from k2jax.data.images.places import read_named
        from k2jax.data.images.processor import ImageProcessor
        from k2jax.data.images.reading import FILE_LIMITS
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed: pip install -e ".[vision]"') from None
    from k2jax.inference.media_prompt import chat_prompt, document_prompt

    vision = open_pretrained(values.checkpoint).model.vision
    if not vision.layers:
        raise UserError(f"{values.checkpoint} reads text alone; --image and --video need a model with a tower")
    named = [("image", place) for place in values.image] + [("video", place) for place in values.video]
    content = [{"type": kind, kind: read_named(place, FILE_LIMITS, kind)} for kind, place in named]
    content += [{"type": "text", "text": values.prompt}]
    processor = ImageProcessor(vision, limits=processor_limits(values.checkpoint, vision))
    if values.chat:
        return chat_prompt([{"role": "user", "content": content}], tokenizer, processor)
    return document_prompt(content, tokenizer, processor)


def _speed(prompt: int, began: float, times: list[float]) -> str:
    """The first token includes compiling; the rate is of those after it, of which the second still compiles."""
    line = f"{prompt} prompt tokens, first token after {times[0] - began:.2f} s, {len(times)} tokens"
    return line if len(times) < 4 else f"{line}, {(len(times) - 2) / (times[-1] - times[1]):.1f} tokens/s"


if __name__ == "__main__":
    cli.run(main, define, __doc__)
