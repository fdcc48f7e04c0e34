"""Which implementation of a kernel runs: every public function of this package takes ``impl`` and resolves it here.

``xla`` is plain JAX and runs anywhere; ``pallas`` is the Mosaic kernel, which only a TPU (or its ahead-of-time
compiler) takes; ``interpret`` runs that same kernel step by step in Python, on any machine, to test it.
"""

from typing import Literal

import jax

Impl = Literal["auto", "xla", "pallas", "interpret"]
IMPLEMENTATIONS = ("auto", "xla", "pallas", "interpret")


def resolve(impl: Impl) -> Literal["xla", "pallas", "interpret"]:
    """``auto`` becomes ``pallas`` where the default backend is a TPU and ``xla`` elsewhere, when a function is traced.

    Compiling ahead of time for a TPU on a machine without one has to ask for ``pallas``.

    Raises:
        ValueError: an unknown name.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl is one of {', '.join(IMPLEMENTATIONS)}, not {impl!r}")
    if impl == "auto":
        return "pallas" if jax.default_backend() == "tpu" else "xla"
    return impl
