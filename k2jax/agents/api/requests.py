"""The request that every dialect parses to, and the fields that the dialects share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import hashlib
import secrets
from typing import Any

from k2jax.agents.api.api_error import bad_request
from k2jax.agents.api.fields import Fields, invalid_value
from k2jax.agents.api.model_card import ModelCard
from k2jax.client import MAX_BIASES, Sampling
from k2jax.errors import UserError
from k2jax.text.chat import ChatFormat

MAX_STOP_LENGTH, MAX_CHOICES = 1000, 128
MAX_STOPS = {"stop": 4, "stop_sequences": 64}  # OpenAI's limit; Anthropic's interface has none
_SEEDS = 2**32

# Fields that cannot change a response.
IGNORED = frozenset({"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """The generation that one HTTP request asks for: ``n`` choices for each prompt.

    Attributes:
        prompts: token ids of each prompt, in a tuple or an array int32 ``[P]``.
        sampling: sampling parameters of every choice, except for max_tokens and seed.
        max_tokens: most tokens per choice; None for as many as fit; 0 only scores the prompt.
        n: choices per prompt.
        stops: stop strings.
        stream: whether the response is streamed.
        include_usage: whether a stream ends with the numbers of tokens.
        logprobs: whether the response contains log-probabilities.
        echo: whether the response begins with the prompt.
        token_ids: whether the response contains token ids beside the text.
        chat: the format as which the answer is read: its reasoning and its calls are no text, and special tokens are
            left out; None where all of it is text.
        thinking: whether it follows the prompt of an answer that may begin with reasoning.
        media: images and chunks of video in the only prompt, as the card's ``MediaReader`` places them.
        record: name under which a gateway records the answer; dialects put it where clients send it back unread.
    """

    prompts: tuple[Sequence[int], ...]
    sampling: Sampling
    max_tokens: int | None = None
    n: int = 1
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    echo: bool = False
    token_ids: bool = False
    chat: ChatFormat | None = None
    thinking: bool = False
    media: tuple[Any, ...] = ()
    record: str = ""

    @property
    def choices(self) -> int:
        """Number of choices of all prompts; the choices of one prompt are neighbours."""
        return len(self.prompts) * self.n

    def choice_prompt(self, choice: int) -> Sequence[int]:
        """Returns the prompt of a choice."""
        return self.prompts[choice // self.n]

    def choice_sampling(self, choice: int, max_length: int) -> Sampling:
        """Returns the sampling of a choice: its own seed, and no more tokens than ``max_length`` leaves."""
        room = max_length - len(self.choice_prompt(choice))
        # A request that only scores its prompt draws one token, because the engine scores on the way to a token.
        max_tokens = room if self.max_tokens is None else min(max(1, self.max_tokens), room)
        seed = _choice_seed(self.sampling.seed, choice % self.n)
        return dataclasses.replace(self.sampling, max_tokens=max_tokens, seed=seed)


def _choice_seed(seed: int, choice: int) -> int:
    """The first choice has the seed of its request; those of others are hashes, which no neighbouring seed repeats."""
    if not choice:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=4).digest(), "little")


def read_options(
    fields: Fields,
    card: ModelCard,
    *,
    stop_tokens: tuple[int, ...],
    top_logprobs: int = 0,
    prompt_logprobs: bool = False,
    stop_field: str = "stop",
) -> GenerationRequest:
    """Reads the fields that the dialects share.

    Args:
        fields: of the body.
        card: the served model.
        stop_tokens: ids that end a choice.
        top_logprobs: alternatives per token.
        prompt_logprobs: whether prompts are scored.
        stop_field: name of the field with the stop strings.

    Returns:
        A request without prompts, for the dialect to complete.

    Raises:
        ApiError: a field has the wrong type or an invalid value.
        UserError: a sampling parameter is out of range.
    """
    seed = fields.integer("seed", None)
    stream = fields.flag("stream")
    sampling = Sampling(
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        # Some clients write -1 for the whole vocabulary.
        top_k=min(max(0, fields.integer("top_k", 0, -1)), card.vocab),
        min_p=fields.number("min_p", 0.0),
        seed=secrets.randbelow(_SEEDS) if seed is None else seed % _SEEDS,
        stop_tokens=stop_tokens,
        top_logprobs=min(top_logprobs, card.vocab),
        prompt_logprobs=prompt_logprobs,
        presence_penalty=fields.number("presence_penalty", 0.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        logit_bias=_read_biases(fields, card),
    )
    sampling.check()
    return GenerationRequest(
        prompts=(),
        sampling=sampling,
        n=fields.integer("n", 1, 1, MAX_CHOICES),
        stops=_read_stops(fields, stop_field),
        stream=stream,
        include_usage=_read_include_usage(fields, stream),
        token_ids=fields.flag("return_token_ids"),
    )


def check_prompt_length(param: str, length: int, card: ModelCard) -> None:
    """Raises ApiError that names ``param`` if a prompt of ``length`` tokens leaves no room for a response."""
    if length >= card.max_length:
        message = f"this model's longest sequence is {card.max_length} tokens, the prompt has at least {length}"
        raise bad_request(param, message, "context_length_exceeded")


def check_room(param: str, request: GenerationRequest, card: ModelCard) -> GenerationRequest:
    """Returns a request whose limit the client has set; a shorter response than asked for would be a surprise.

    Raises:
        ApiError: a prompt leaves less room than ``max_tokens``; the error names ``param``.
    """
    longest, asked = max(map(len, request.prompts)), request.max_tokens or 0
    if longest + asked > card.max_length:
        raise bad_request(
            param,
            f"this model's longest sequence is {card.max_length} tokens, the request asks for {longest + asked}: "
            f"{longest} of the prompt and {asked} by {param}; leave {param} out for as many as fit",
            "context_length_exceeded",
        )
    return request


@contextlib.contextmanager
def api_errors() -> Iterator[None]:
    """Turns errors of other packages into ApiErrors: sampling parameters out of range, and bodies nested too deeply."""
    try:
        yield
    except UserError as error:
        name = str(error).split()[0]  # a message about a sampling parameter begins with its name
        is_parameter = name in {field.name for field in dataclasses.fields(Sampling)}
        raise bad_request(name if is_parameter else None, str(error)) from None
    except RecursionError:
        raise bad_request(None, "the request body is nested too deeply") from None


def _read_include_usage(fields: Fields, stream: bool) -> bool:
    value = fields.take("stream_options")
    if value is None:
        return False
    if not stream and not fields.lenient:
        raise bad_request("stream_options", "stream_options needs stream: true")
    options = Fields(value, "stream_options", fields.lenient)
    include_usage = options.flag("include_usage")
    options.finish(frozenset({"include_obfuscation"}), {})
    return include_usage


def _read_biases(fields: Fields, card: ModelCard) -> tuple[tuple[int, float], ...]:
    """Reads ``logit_bias``, an object whose names are token ids."""
    value = fields.take("logit_bias", {})
    valid = isinstance(value, dict) and len(value) <= MAX_BIASES
    valid = valid and all(name.isascii() and name.isdigit() and len(name) < 10 for name in value)
    if not (valid and all(type(bias) in (int, float) and -100 <= bias <= 100 for bias in value.values())):
        raise invalid_value("logit_bias", f"up to {MAX_BIASES:,} token ids with numbers from -100 to 100", value)
    biases = {int(name): float(bias) for name, bias in value.items()}
    if outside := [token for token in biases if token >= card.vocab]:
        message = f"logit_bias names token {outside[0]}, outside the vocabulary of {card.vocab:,}"
        raise bad_request("logit_bias", message)
    return tuple((token, bias) for token, bias in sorted(biases.items()) if bias)


def _read_stops(fields: Fields, name: str) -> tuple[str, ...]:
    value = fields.take(name, [])
    stops = [value] if isinstance(value, str) else value
    valid = isinstance(stops, list) and len(stops) <= MAX_STOPS[name]
    if not (valid and all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_LENGTH for stop in stops)):
        raise invalid_value(name, f"up to {MAX_STOPS[name]} strings of 1 to {MAX_STOP_LENGTH} characters", value)
    return tuple(stops)
