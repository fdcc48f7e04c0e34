"""The store of these tests."""

from tests.files.objects.fake_store import store

__all__ = ["store"]
