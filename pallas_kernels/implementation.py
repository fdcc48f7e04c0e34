"""Which implementation of a kernel runs: every public function of this package takes ``impl`` and resolves it here.

``xla`` is plain JAX and runs anywhere; ``pallas`` is the Mosaic kernel, which only a TPU (or its ahead-of-time
compiler) takes; ``interpret`` runs that same kernel step by step in Python, on any machine, to test it.
"""

from typing import Literal

import jax

Impl = Literal["auto", "xla", "pallas", "interpret"]
IMPLEMENTATIONS = ("auto", "xla", "pallas", "interpret")

target_platform = jax.make_user_context()
"""``with target_platform("tpu")``: what is traced within is for such devices, which need not be here."""


def resolve(impl: Impl) -> Literal["xla", "pallas", "interpret"]:
    """``auto`` becomes ``pallas`` for a TPU and ``xla`` for anything else, when a function is traced.

    It is traced for ``target_platform`` where that is set, as for compiling ahead of time, and else for the default
    backend.

    Raises:
        ValueError: an unknown name.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl is one of {', '.join(IMPLEMENTATIONS)}, not {impl!r}")
    if impl == "auto":
        return "pallas" if (target_platform.value or jax.default_backend()) == "tpu" else "xla"
    return impl
