"""The server that counts requests, for the tests of what is opened."""

import pytest

from tests.data.images.counting import HITS, counting_server


@pytest.fixture(scope="session")
def counting_port():
    """The port of one server for all tests."""
    with counting_server() as port:
        yield port


@pytest.fixture
def port(counting_port):
    """The port of the server, which nobody has asked yet."""
    HITS.clear()
    return counting_port
