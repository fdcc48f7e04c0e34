"""Choice of a kernel's implementation. Every public function of this package takes ``impl`` and resolves it here.

``xla`` is plain JAX and runs on any backend. ``pallas`` is the Mosaic kernel, which needs a TPU or its ahead-of-time
compiler. ``interpret`` runs the same kernel step by step in Python on any machine, for tests.
"""

from typing import Literal, get_args

import jax

Impl = Literal["auto", "xla", "pallas", "interpret"]
IMPLEMENTATIONS = get_args(Impl)

target_platform = jax.make_user_context()
"""Context manager: ``with target_platform("tpu")`` traces functions for that platform, which may be absent."""


def check_implementation(impl: str) -> None:
    """Checks the name of an implementation.

    Raises:
        ValueError: if the name is unknown.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl is one of {', '.join(IMPLEMENTATIONS)}, not {impl!r}")


def resolve(impl: Impl) -> Literal["xla", "pallas", "interpret"]:
    """Resolves ``auto`` when a function is traced: ``pallas`` for a TPU, ``xla`` for any other platform.

    The platform is ``target_platform`` where it is set, as in ahead-of-time compilation, else the default backend.

    Raises:
        ValueError: if the name is unknown.
    """
    check_implementation(impl)
    if impl == "auto":
        return "pallas" if (target_platform.value or jax.default_backend()) == "tpu" else "xla"
    return impl
