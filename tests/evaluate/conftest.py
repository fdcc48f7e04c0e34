"""Processes of verifiers that the tests of a file share."""

import contextlib
from unittest import mock

import pytest

from k2jax.agents.verifier_pool.pool import VerifierPool


@pytest.fixture(scope="module")
def shared_verifiers():
    """Evaluations share the processes of verifiers, which take longest to start."""
    with VerifierPool(workers=2, timeout=60.0, retries=1) as pool:

        @contextlib.contextmanager
        def shared(**options):
            yield pool

        with mock.patch("k2jax.evaluate.evaluation.VerifierPool", shared):
            yield
