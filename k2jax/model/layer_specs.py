"""Declarations of weights that every layer of a run has, stacked over the axis ``layers``."""

from __future__ import annotations

from k2jax.params import ParamSpec


class LayerSpecs:
    """Makes specs stacked over a run of layers, whose Hugging Face names begin with ``prefix`` and a number."""

    def __init__(self, count: int, first: int, prefix: str = "model.layers"):
        self.count, self.first, self.prefix = count, first, prefix

    def _name(self, suffix: str) -> str:
        return self.prefix + ".{layers}." + suffix

    def weight(self, axes: dict[str, int], inputs: str, outputs: str, hf: str, **more) -> ParamSpec:
        """A matrix per layer; ``axes`` maps logical names to sizes, ``inputs`` and ``outputs`` name its two sides.

        Without ``inputs`` it is a vector over several axes.
        """
        return ParamSpec(
            (self.count, *axes.values()),
            ("layers", *axes),
            more.pop("role", "matrix"),
            tuple(outputs.split()),
            hf=self._name(hf),
            inputs=tuple(inputs.split()),
            first_layer=self.first,
            **more,
        )

    def vector(self, axis: str, size: int, hf: str, role: str = "norm", init: str = "ones") -> ParamSpec:
        """A vector per layer."""
        return ParamSpec(
            (self.count, size), ("layers", axis), role, (axis,), hf=self._name(hf), init=init, first_layer=self.first
        )
