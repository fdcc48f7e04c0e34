"""Equations of traced programs."""

from jax.extend.core import jaxprs_in_params


def equations(jaxpr):
    """Yields the equations of a program and of all programs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)
