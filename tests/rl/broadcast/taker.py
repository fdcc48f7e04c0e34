"""A receiver in a process of its own: ``python -m tests.rl.broadcast.taker PORT SECONDS``, the time of each array.

It prints ``loading``, the names of the arrays as they come, and the sum of all.
"""

import sys
import time

import numpy as np

from k2jax.rl.broadcast.received_weights import ReceivedWeights
from tests.rl.broadcast.sources import KEY, drawn

if __name__ == "__main__":
    weights = drawn(9, count=24)
    receiver = ReceivedWeights([("127.0.0.1", int(sys.argv[1]))], KEY, weights, print)
    receiver.current()
    print("loading", flush=True)
    total = 0.0
    for name, array in receiver.load()[1]:
        print(name, flush=True)
        total += float(np.sum(array, dtype=np.float64))
        time.sleep(float(sys.argv[2]))
    print(repr(total), flush=True)
