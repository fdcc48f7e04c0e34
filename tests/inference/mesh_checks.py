"""An engine on 8 emulated devices; `test_mesh.py` runs this file in a process of its own and reads what it prints."""

import json
import sys

import jax
import numpy as np

from k2jax.inference.engine import Engine
from k2jax.inference.mesh import make_mesh
from k2jax.inference.request import Sampling
from k2jax.processes import start
from tests.inference.tiny import GQA, MLA, oracle, prompts, weights

LENGTH = 64
PROMPTS = prompts(1, 3, 40, 17, 33, 2, 21, 7, 30, 16, 38, 15, seed=3)
GREEDY = Sampling(max_tokens=6, temperature=0.0, prompt_logprobs=True)


def engine(model, mesh=None, pages=None):
    """Two slots on each of 8 devices."""
    return Engine(model, weights(model), mesh=mesh, slots=16, pages=pages, max_length=LENGTH)


def errors(model, requests, temperature=1.0, seeds=(0,)):
    """Differences of all log-probabilities from one pass over all ids on one device; ``seeds`` of the weights."""
    found = []
    for request in requests:
        expected = [oracle(model, request.ids, temperature, seed) for seed in seeds]
        first = len(request.prompt) - 1
        found += [p - expected[0][i, request.prompt[i + 1]] for i, p in enumerate(request.prompt_logprobs)]
        found += [t.logprob - expected[t.version][first + i, t.id] for i, t in enumerate(request.tokens)]
        if request.sampling.temperature == 0.0:
            likely = [int(expected[t.version][first + i].argmax()) for i, t in enumerate(request.tokens)]
            assert likely == [t.id for t in request.tokens]
    return float(np.abs(found).max())


def _ids(requests):
    return [[token.id for token in request.tokens] for request in requests]


def cached_decode(model, **axes):
    """Prompts of many lengths, greedy, all positions; then samples of one prompt, twice, with few pages."""
    run = engine(model, make_mesh(**axes), pages=8 * 6)
    pages = {shard.data.shape[1] for shard in run._cache.addressable_shards}
    moe = run._params.get("moe")
    experts = {shard.data.shape[0] for shard in moe[0]["experts"]["w13"].addressable_shards} if moe else {0}
    greedy = run.generate(PROMPTS, GREEDY)
    sampling = [Sampling(max_tokens=20, temperature=0.8, seed=i) for i in range(24)]
    first, second = (run.generate([PROMPTS[2]] * 24, sampling) for _ in range(2))
    return {
        "error": errors(model, greedy),
        "drawn error": errors(model, first + second, 0.8),
        "compared": sum(len(request.ids) - 1 for request in greedy),
        "same twice": _ids(first) == _ids(second),
        "cached": [request.cached_tokens for request in second],
        "left": run.stats().pages_in_use,
        "pages": sorted(pages),
        "experts": sorted(experts),
    }


def like_one_device():
    """The tokens that are drawn, with top_p."""
    sampling = [Sampling(max_tokens=20, temperature=0.8, top_p=0.9, seed=i) for i in range(32)]
    asked = [PROMPTS[i % len(PROMPTS)] for i in range(32)]
    one, mesh = (engine(MLA, mesh).generate(asked, sampling) for mesh in (None, make_mesh(data=2, expert=4)))
    return {"same": _ids(one) == _ids(mesh)}


def new_weights():
    """Weights change on the mesh while requests run."""
    run = engine(MLA, make_mesh(expert=8))
    requests = [run.submit(prompt, Sampling(max_tokens=8, temperature=0.0)) for prompt in PROMPTS[:6]]
    for _ in range(6):
        run.step()
    run.update_params(weights(MLA, 1), 1)
    while run.has_work():
        run.step()
    versions = {token.version for request in requests for token in request.tokens}
    return {"error": errors(MLA, requests, seeds=(0, 1)), "versions": sorted(versions)}


def processes():
    """The experts in two processes, each of which makes the same calls."""
    run = engine(MLA, make_mesh(expert=2))
    requests = run.generate(PROMPTS, GREEDY)
    return {"error": errors(MLA, requests), "ids": _ids(requests)}


CHECKS = {
    "data 2 x expert 4": lambda: cached_decode(MLA, data=2, expert=4),
    "expert 8": lambda: cached_decode(MLA, expert=8),
    "data 8, grouped-query attention": lambda: cached_decode(GQA, data=8),
    "like one device": like_one_device,
    "new weights": new_weights,
}

if __name__ == "__main__":
    if sys.argv[1:] == ["processes"]:
        start()
        assert len(jax.devices()) == 2 == 2 * len(jax.local_devices())
        print(json.dumps(processes()), flush=True)
    else:
        assert len(jax.devices()) == 8
        print(json.dumps({name: CHECKS[name]() for name in sys.argv[1:]}))
