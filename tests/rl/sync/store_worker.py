"""An engine in a process of its own that has its weights from a store alone, for the tests.

``python -m tests.rl.sync.store_worker FOLDER`` takes commands on standard input, a line each, and prints a line of JSON
for each: ``update``, ``slow`` (an update of which every array takes long), ``generate``, ``endless`` (a generation that
does not end). ``python -m tests.rl.sync.store_worker FOLDER VERSION`` is a writer that publishes slowly.
"""

import json
from pathlib import Path
import sys
import time

import jax

from k2jax.client import Sampling
from k2jax.inference.engine import Engine
from k2jax.inference.weights import named_leaves
from k2jax.model import model_specs
from k2jax.params import abstract
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine
from k2jax.rl.sync.stored_weights import load_current
from tests.inference.tiny import MLA, weights

PROMPT = [5, 9, 2, 33, 7]


def tell(**values):
    """One line for the test."""
    print(json.dumps(values), flush=True)


def slowly(leaves, seconds):
    """The same leaves; the test hears of each."""
    for name, leaf in leaves:
        tell(at=str(name))
        time.sleep(seconds)
        yield name, leaf


def update(engine, folder, seconds=0.0):
    """Loads the current version."""
    version, leaves = load_current(folder)
    engine.update_params(slowly(leaves, seconds) if seconds else leaves, version)
    tell(version=engine.version)


def generate(engine):
    """Greedy tokens with their log-probabilities and versions."""
    [request] = engine.generate([PROMPT], Sampling(max_tokens=6, temperature=0.0))
    tell(tokens=list(request.tokens), logprobs=list(request.logprobs), versions=list(request.versions))


def endless(engine):
    """Request after request."""
    while True:
        request = engine.submit(PROMPT, Sampling(max_tokens=50))
        while engine.has_work():
            engine.step()
            tell(at="generating", tokens=len(request.tokens))


def _main(folder: Path) -> None:
    engine = Engine(MLA, abstract(model_specs(MLA)), slots=2, max_length=64, version=-1)
    for line in sys.stdin:
        command = line.strip()
        if command in ("update", "slow"):
            update(engine, folder, 0.2 if command == "slow" else 0.0)
        else:
            {"generate": generate, "endless": endless}[command](engine)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    if len(sys.argv) > 2:
        CheckpointEngine(Path(sys.argv[1])).publish(slowly(named_leaves(weights(MLA, int(sys.argv[2]))), 0.2), 0)
    else:
        _main(Path(sys.argv[1]))
