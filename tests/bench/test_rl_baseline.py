"""The baseline of rollouts: whole groups share a batch, and each response ends where its end token is."""

import asyncio

import numpy as np

from k2jax.bench.rl_baseline import GenerateClient, until_end
from k2jax.client import Sampling

END = 0


def test_a_batch_has_at_most_as_many_rows_as_slots_and_all_samples_of_its_prompts():
    calls = []

    def generate(prompts, samples, sampling):
        calls.append((prompts, samples))
        return [[*prompt, END] for prompt in prompts for _ in range(samples)]

    client = GenerateClient(generate, slots=6)

    async def respond(prompt):
        completion = await client.generate([prompt], Sampling(max_tokens=4, stop_tokens=(END,)))
        return prompt, completion.tokens.tolist(), completion.finish

    results = asyncio.run(client.gather(*(respond(prompt) for prompt in (1, 2, 3, 4) for _ in range(3))))
    assert calls == [([(1,), (2,)], 3), ([(3,), (4,)], 3)]
    assert results == [(prompt, [prompt, END], "stop") for prompt in (1, 2, 3, 4) for _ in range(3)]


def test_tokens_after_the_end_do_not_count():
    rows = np.array([[5, END, 7, 7], [END, 5, 5, 5], [5, 6, 7, 8]])
    assert list(until_end(rows, [END])) == [[5, END], [END], [5, 6, 7, 8]]
