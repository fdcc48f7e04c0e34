"""A checkpoint as a model of lm-eval 0.4: log-likelihoods, rolling ones, and texts up to a stop string.

Importing this module makes the model known to lm-eval as ``k2jax``:

    import k2jax.evaluate.harnesses.lm_eval_model
    lm_eval.simple_evaluate(model="k2jax", model_args="checkpoint=runs/pretrain,max_length=2048", tasks=["local"])
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import itertools
import re
import secrets
from typing import Any, TypeVar

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from k2jax.client import PromptTooLongError, Sampling
from k2jax.errors import UserError
from k2jax.inference.request_client import RequestClient
from k2jax.text.chat import ChatBuilder, ChatFormat
from k2jax.text.tokenizer import Tokenizer

_Result = TypeVar("_Result")
_SAMPLED = ("temperature", "top_p", "top_k", "min_p", "seed")
_READ = {"max_gen_toks", "until", "do_sample", *_SAMPLED}


@register_model("k2jax")
class K2JaxLM(TemplateLM):
    """A model of lm-eval over an engine.

    Texts begin with the vocabulary's token of beginnings, as documents do in training. With a chat format, lm-eval's
    ``apply_chat_template`` stands for the conversation's own token ids, in which no text can forge a special token.

    Args:
        client: the engine's.
        tokenizer: its vocabulary.
        longest: the engine's longest sequence [tokens]; longer contexts lose their beginning, as in lm-eval.
        chat: format of conversations, or None.
        at_once: requests under way.
    """

    backend = "causal"

    def __init__(
        self,
        client: RequestClient,
        tokenizer: Tokenizer,
        longest: int,
        *,
        chat: ChatFormat | None = None,
        at_once: int = 32,
    ):
        super().__init__()
        self._client, self._vocabulary, self._longest = client, tokenizer, longest
        self._chat, self._at_once = chat, at_once
        self._conversations: list[tuple[list[int], str]] = []
        self._mark = re.compile(f"\ue000{secrets.token_hex(8)}:(\\d+)\ue001")

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict, additional_config: dict | None = None) -> K2JaxLM:
        """Opens ``checkpoint`` with an engine of ``max_length``, which ends with the process; see lm-eval's LM."""
        from k2jax.evaluate.models import ModelChoice, open_engine_client

        try:
            choice = ModelChoice(model=str(arg_dict["checkpoint"]), max_length=int(arg_dict["max_length"]))
        except KeyError as missing:
            raise UserError(f"model_args have no {missing.args[0]}: checkpoint=FOLDER,max_length=TOKENS") from None
        client, tokenizer = contextlib.ExitStack().enter_context(open_engine_client(choice))
        return cls(client, tokenizer, choice.max_length)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict | None = None) -> K2JaxLM:
        """``create_from_arg_obj`` of ``checkpoint=FOLDER,max_length=TOKENS``."""
        return cls.create_from_arg_obj(dict(part.split("=", 1) for part in arg_string.split(",") if "=" in part))

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends documents."""
        return self._vocabulary.eos

    @property
    def prefix_token_id(self) -> int:
        """Id of the token that stands before a text without a context."""
        return self._vocabulary.bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Token ids of a text or conversation; ``add_special_tokens`` False leaves the document's beginning out."""
        if (found := self._mark.match(string)) is not None:
            return [*self._conversations[int(found[1])][0], *self._vocabulary.encode(string[found.end() :])]
        encode = self._vocabulary.encode if add_special_tokens is False else self._vocabulary.encode_document
        return encode(string)

    def shown(self, string: str) -> str:
        """A prompt as a reader may see it: conversations with their markup."""
        return self._mark.sub(lambda found: self._conversations[int(found[1])][1], string)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """What stands for a conversation in lm-eval's prompts; see ``tok_encode``."""
        if self._chat is None:
            raise UserError("this model has no chat format; give --chat_format")
        builder = ChatBuilder(self._chat)
        continued = not add_generation_prompt and chat_history[-1]["role"] == "assistant"
        for message in chat_history[: len(chat_history) - continued]:
            builder.add(message)
        builder.open_assistant(False)
        ids = [*builder.tokens, *(self._vocabulary.encode(chat_history[-1]["content"]) if continued else ())]
        self._conversations.append((ids, self._text(ids)))
        return self._mark.pattern.replace(r"(\d+)", str(len(self._conversations) - 1))

    @property
    def tokenizer_name(self) -> str:
        """Part of the key of lm-eval's caches, which these prompts do not enter."""
        return "k2jax"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """lm-eval's record of the template, of which this project has none in Jinja."""
        return ""

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, in windows where they are longer than the engine; see lm-eval's LM."""
        sums = []
        for (text,) in (request.args for request in requests):
            ids = self.tok_encode(text, add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self._longest - 2, 1)
            scored = self._loglikelihood_tokens([((text, ""), *make_disjoint_window(each)) for each in windows])
            sums.append(sum(logprob for logprob, _ in scored))
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts up to a stop string, which they do not hold; see lm-eval's LM."""
        return self._gather([request.args for request in requests], self._generate)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        return self._gather(requests, self._score)

    def _gather(self, requests: Sequence[Any], ask: Callable[[Any], Awaitable[_Result]]) -> list[_Result]:
        """The results of all requests in order, so many at a time that the engine's slots are used."""
        places = asyncio.Semaphore(self._at_once)

        async def one(request: Any) -> _Result:
            async with places:
                return await ask(request)

        async def every() -> list[_Result]:
            return await asyncio.gather(*map(one, requests))

        return asyncio.run(every())

    async def _score(self, request: tuple[Any, list[int], list[int]]) -> tuple[float, bool]:
        """The log-likelihood of a continuation, and whether each of its tokens is the most likely one."""
        _, context, continuation = request
        if not continuation:
            return 0.0, True
        ids = [*context, *continuation][-(self._longest - 1) :]
        start = max(1, len(ids) - len(continuation))
        asked = Sampling(max_tokens=1, temperature=0.0, prompt_logprobs=True, top_logprobs=1)
        scored, _ = await self._client.run_request(ids, asked)
        best = [pairs[0][0] for pairs in scored.prompt_top_logprobs[start - 1 :]]
        return float(sum(scored.prompt_logprobs[start - 1 :])), best == ids[start:]

    async def _generate(self, request: tuple[str, Mapping[str, Any]]) -> str:
        prompt, options = request
        fields = dict(normalize_gen_kwargs(dict(options)))
        if unread := sorted(set(fields) - _READ):
            raise UserError(f"generation_kwargs: {', '.join(unread)} cannot be asked of this engine; leave it out")
        stops = [stop.encode() for stop in fields["until"] if stop]
        room = self._longest - fields["max_gen_toks"]
        if room < 1:
            raise PromptTooLongError(f"max_gen_toks {fields['max_gen_toks']} leaves no room in {self._longest} tokens")
        written = bytearray()

        def add(token: int, logprob: float) -> bool:
            """Whether the text holds a stop string; of the new part only, so that time grows with its length."""
            piece = self._vocabulary.token_bytes(token)
            written.extend(piece)
            return any(stop in written[-(len(piece) + len(stop)) :] for stop in stops)

        ends = {self.eot_token_id} | ({self._chat.end} if self._chat is not None else set())
        completion = await self._client.generate(
            self.tok_encode(prompt)[-room:],
            Sampling(
                max_tokens=fields["max_gen_toks"],
                **{name: fields[name] for name in _SAMPLED if name in fields},
                stop_tokens=tuple(sorted(ends)),
            ),
            on_token=add if stops else None,
        )
        tokens = completion.tokens.tolist()
        text = self._vocabulary.decode(tokens[:-1] if tokens and tokens[-1] in ends else tokens)
        places = [text.find(stop.decode()) for stop in stops]
        return text[: min((place for place in places if place >= 0), default=len(text))]

    def _text(self, ids: Sequence[int]) -> str:
        """The text of token ids with the names of special tokens."""
        runs = itertools.groupby(ids, self._vocabulary.special_name)
        return "".join((name or "") * len(run) or self._vocabulary.decode(run) for name, run in _listed(runs))


def _listed(runs: Iterable[tuple[str | None, Iterable[int]]]) -> Iterator[tuple[str | None, list[int]]]:
    return ((name, list(run)) for name, run in runs)
