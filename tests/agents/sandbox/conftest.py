"""Fixtures of the sandboxes' tests."""

import pytest

from k2jax.agents.sandbox.hostile import Outside
from tests.agents.sandbox.backends import backend, survivors


@pytest.fixture
def witness():
    """Things of the host; a test fails after which they are not what they were."""
    with Outside() as outside:
        yield outside
        assert outside.harm() == ""


@pytest.fixture
def name(request):
    """A backend; nothing that it started may be left when a test ends."""
    backend(request.param)
    yield request.param
    assert not survivors(request.param)
