"""Polynomials of Newton-Schulz iterations: the coefficients (a, b, c) of a x + b x³ + c x⁵ for every step."""

from __future__ import annotations

from collections.abc import Sequence

Coefficients = Sequence[tuple[float, float, float]]
"""One (a, b, c) for each step."""

MUON = (3.4445, -4.7750, 2.0315)
"""K. Jordan's quintic, the same at every step."""

POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
"""Amsel et al., "The Polar Express" (arXiv:2505.16932), for singular values from 1e-3 to 1.

The polynomial of step k is the best one after the k - 1 before it, so fewer steps use a prefix of the list.
"""

POLAR_EXPRESS_SAFETY = 1.01
"""The paper's margin for singular values that are rounded above 1, on every step but the eighth."""


def coefficients(preset: str, steps: int) -> tuple[tuple[float, float, float], ...]:
    """Coefficients (a, b, c) of every step.

    Args:
        preset: ``muon`` (one quintic repeated, any number of steps) or ``polar_express`` (a different polynomial for
            each step: the first ``steps`` of the eight in the paper, never repeated).
        steps: number of iterations.

    Raises:
        ValueError: if the preset is unknown, ``steps`` is below 1, or the preset has fewer polynomials.
    """
    if steps < 1:
        raise ValueError(f"Newton-Schulz needs at least one step, not {steps}")
    if preset == "muon":
        return (MUON,) * steps
    if preset != "polar_express":
        raise ValueError(f"unknown Newton-Schulz preset {preset!r}; there are muon and polar_express")
    if steps > len(POLAR_EXPRESS):
        raise ValueError(f"polar_express has {len(POLAR_EXPRESS)} steps, not {steps}")
    margin = POLAR_EXPRESS_SAFETY
    with_margin = tuple((a / margin, b / margin**3, c / margin**5) for a, b, c in POLAR_EXPRESS[:-1])
    return (*with_margin, POLAR_EXPRESS[-1])[:steps]
