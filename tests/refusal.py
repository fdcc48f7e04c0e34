"""What a user's mistake comes to: an error of one line."""

from collections.abc import Iterator
import contextlib

import pytest

from k2jax.errors import UserError


@contextlib.contextmanager
def refused(words: str, kind: type[Exception] = UserError) -> Iterator[pytest.ExceptionInfo]:
    """Expects an error of one line in which a pattern is found; gives what ``pytest.raises`` does."""
    with pytest.raises(kind, match=words) as error:
        yield error
    assert "\n" not in str(error.value)
