"""What runs of these tests share in a process, beside which each is a whole run of the command."""

import functools
from unittest import mock

import pytest

from k2jax.train.record import peak_flops
from tests.train.programs import shared_program


@pytest.fixture(scope="package", autouse=True)
def _quick_runs():
    """Runs share programs and one measurement of the machine; only the run that is about plots draws them."""
    with (
        mock.patch("k2jax.rl.setup.Program", shared_program),
        mock.patch("k2jax.train.record.peak_flops", functools.cache(peak_flops)),
        mock.patch("k2jax.train.report.draw_plots"),
    ):
        yield
