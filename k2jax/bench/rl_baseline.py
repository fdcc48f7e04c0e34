"""Baseline of rollouts: transformers' ``generate`` behind the client of the loop, and weights that both sides share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from k2jax.bench.baseline import torch_model
from k2jax.bench.pretrain import EXPERT_IMPLEMENTATIONS
from k2jax.bench.timing import fastest
from k2jax.client import Client, Completion, OnToken, Sampling, new_completion, refuse_media
from k2jax.config import ModelConfig
from k2jax.convert.importing import import_folder

END_SCALE = 8.0
"""Factor of the end token's row of the head."""
Generate = Callable[[list[tuple[int, ...]], int, Sampling], list[list[int]]]
"""Maps distinct prompts, samples of each and how to sample to the new ids of each sample, the end included."""


class GenerateClient(Client):
    """What rollouts need of a ``LockstepClient``, over a batched ``generate``.

    Once every coroutine waits, the requests run in batches of as many rows as the engine has slots, in the order in
    which they came: all samples of a prompt are next to each other. A batch ends with its longest response.
    Log-probabilities, which a loop would have to compute in a pass of their own, are left out: all are 0.

    Args:
        generate: the model.
        slots: rows of a batch.
    """

    def __init__(self, generate: Generate, slots: int):
        self._generate, self._slots = generate, slots
        self._busy = 0  # coroutines that have not ended and do not wait
        self._waiting: list[tuple[tuple[int, ...], Sampling, asyncio.Future[Completion]]] = []

    async def call_each(self, function: Callable[[Any], Any]) -> None:
        """Nothing: ``generate`` keeps no cache from call to call."""

    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        """Runs coroutines to their ends, and their requests whenever all of them wait."""
        self._busy += len(coroutines)
        tasks = asyncio.gather(*(self._counted(coroutine) for coroutine in coroutines))
        while not tasks.done():
            await asyncio.sleep(0)
            if self._waiting and not self._busy:
                await self._run_batch()
        return await tasks

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[Any] = (),
    ) -> Completion:
        """Generates after a prompt, in a batch with others."""
        refuse_media(self, media)
        done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((tuple(prompt), sampling, done))
        self._busy -= 1
        return await done

    async def _counted(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await coroutine
        finally:
            self._busy -= 1

    async def _run_batch(self) -> None:
        """Generates for the oldest requests while the event loop judges what was generated before."""
        batch, self._waiting = self._waiting[: self._slots], self._waiting[self._slots :]
        prompts = list(dict.fromkeys(prompt for prompt, _, _ in batch))
        samples, sampling = len(batch) // len(prompts), batch[0][1]
        rows = await asyncio.to_thread(self._generate, prompts, samples, sampling)
        for ids, (_, _, done) in zip(rows, batch, strict=True):
            finish = "stop" if ids[-1] in sampling.stop_tokens else "length"
            self._busy += 1
            done.set_result(new_completion(ids, [0.0] * len(ids), [0] * len(ids), finish))


def start_weights(model: ModelConfig, end: int, folder: Path) -> Path:
    """Random weights as a folder of transformers, ``folder/transformers``, and as a checkpoint of k2jax.

    The end token's row of the head is scaled, so that its logit is spread wider than others': a response ends by chance
    after some dozens of tokens, and not after as many as there are words.

    Args:
        model: the architecture.
        end: id of the token that ends a response.
        folder: where both are written.

    Returns:
        The checkpoint.
    """
    torch, network = torch_model(model, EXPERT_IMPLEMENTATIONS[0])
    with torch.no_grad():
        network.lm_head.weight[end] *= END_SCALE
    network.save_pretrained(folder / "transformers")
    import_folder(folder / "transformers", folder / "start")
    return folder / "start"


def fastest_generate(folder: Path, prompts: Sequence[tuple[int, ...]], samples: int) -> tuple[str, Generate]:
    """Name of transformers' fastest experts implementation in a short generation, and ``generate`` with it.

    Args:
        folder: of ``start_weights``.
        prompts: of a batch, all of one length.
        samples: of each prompt.
    """
    candidates = {name: _generate(folder / "transformers", name) for name in EXPERT_IMPLEMENTATIONS}
    trial = Sampling(max_tokens=8, temperature=1.0)
    runs = {name: lambda run=run: run(list(prompts), samples, trial) for name, run in candidates.items()}
    best = fastest(runs)
    return f"experts {best}", candidates[best]


def _generate(folder: Path, experts: str) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    options = {"dtype": torch.float32, "attn_implementation": "sdpa", "experts_implementation": experts}
    network = AutoModelForCausalLM.from_pretrained(folder, **options).eval()

    def generate(prompts: list[tuple[int, ...]], samples: int, sampling: Sampling) -> list[list[int]]:
        ids = torch.tensor(prompts)
        ends = list(sampling.stop_tokens) or None
        with torch.inference_mode():
            rows = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=sampling.temperature,
                top_k=0,
                max_new_tokens=sampling.max_tokens,
                num_return_sequences=samples,
                eos_token_id=ends,
                pad_token_id=0,
            )
        return list(until_end(rows[:, ids.shape[1] :].numpy(), sampling.stop_tokens))

    return generate


def until_end(rows: np.ndarray, ends: Sequence[int]) -> Iterator[list[int]]:
    """The ids of each row ``[N, T]`` up to its first end, which is the last of them."""
    for row in rows:
        stops = np.flatnonzero(np.isin(row, ends))
        yield row[: stops[0] + 1 if len(stops) else len(row)].tolist()
