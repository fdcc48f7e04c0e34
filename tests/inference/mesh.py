"""Engines on meshes for the tests: what they are asked, and how far they are from one pass on one device.

``python -m tests.inference.mesh`` is one of the processes of a mesh; it prints what it generated.
"""

import json

import jax
import numpy as np

from k2jax.client import Sampling
from k2jax.inference.engine import Engine
from k2jax.inference.mesh import make_engine_mesh
from k2jax.processes import start
from k2jax.processes.termination import run_and_exit
from tests.inference.tiny import SHORT, ids_of, oracle, prompts, weights

PROMPTS = prompts(1, 3, 40, 17, 33, 2, 21, 7, 30, 16, 38, 15, seed=3)
GREEDY = Sampling(max_tokens=6, temperature=0.0, prompt_logprobs=True)


def mesh_engine(model, mesh=None, pages=None):
    """An engine with two slots on each of 8 devices."""
    return Engine(model, weights(model), mesh=mesh, slots=16, pages=pages, max_length=64)


def largest_error(model, requests, temperature=1.0, seeds=(0,)):
    """Largest difference of a log-probability from one pass over all ids on one device.

    Version ``v`` of the weights is drawn with ``seeds[v]``.
    """
    differences = []
    for request in requests:
        expected = [oracle(model, request.ids, temperature, seed) for seed in seeds]
        first = len(request.prompt) - 1
        differences += [p - expected[0][i, request.prompt[i + 1]] for i, p in enumerate(request.prompt_logprobs)]
        rows = [expected[version][first + i] for i, version in enumerate(request.versions)]
        differences += [p - row[t] for p, row, t in zip(request.logprobs, rows, request.tokens, strict=True)]
        if request.sampling.temperature == 0.0:
            assert [int(row.argmax()) for row in rows] == list(request.tokens)
    return float(np.abs(differences).max())


def _main() -> int:
    """Two processes with a device each hold the experts together; each makes the same calls."""
    assert len(jax.devices()) == 2 == 2 * len(jax.local_devices())
    requests = mesh_engine(SHORT, make_engine_mesh(expert=2)).generate(PROMPTS, GREEDY)
    print(json.dumps({"error": largest_error(SHORT, requests), "ids": ids_of(requests)}), flush=True)
    return 0


if __name__ == "__main__":
    start()
    run_and_exit(_main)  # as commands do: a process that is done waits for the others
