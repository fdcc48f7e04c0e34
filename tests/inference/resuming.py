"""Resumes requests on fresh engines: a line of JSON in, the tokens and log-probabilities as a line of JSON out.

Each line is [prompt, sampling, generated tokens]; ``test_client.py`` keeps a process of this module.
"""

import json
import sys

from k2jax.client import Sampling
from tests.inference.tiny import engine

SIZES = {"slots": 4, "max_length": 64}

if __name__ == "__main__":
    for line in sys.stdin:
        prompt, sampling, generated = json.loads(line)
        run = engine(**SIZES)
        request = run.submit(prompt, Sampling(**sampling), generated)
        while run.has_work():
            run.step()
        completion = request.completion()
        print(json.dumps([completion.tokens.tolist(), completion.logprobs.tolist(), completion.finish]), flush=True)
