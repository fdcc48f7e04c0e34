"""Arrays as NumPy saves them, and a full disk that is always an error with its number."""

import errno
import io

import numpy as np
import pytest

from k2jax.files.array_file import write_array, write_numbers
from tests.checkpoint.test_full_disk import files_end_at

RECORDS = np.zeros(3, [("a", "<i8"), ("b", "u1")])
ARRAYS = [np.arange(5), np.ones((2, 3), ">f4"), np.float64(2.0), np.zeros((0, 3), np.int32), RECORDS, np.ones(0, "?")]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_a_file_is_that_of_numpy(array):
    ours, theirs, numbers = io.BytesIO(), io.BytesIO(), io.BytesIO()
    write_array(ours, array)
    np.save(theirs, array)
    write_numbers(numbers, array)
    assert ours.getvalue() == theirs.getvalue() and numbers.getvalue() == array.tobytes()
    turned = io.BytesIO()
    write_array(turned, np.asfortranarray(array))
    turned.seek(0)
    np.testing.assert_array_equal(np.load(turned), array)


@pytest.mark.parametrize("count", [20, 1000, 100_000])
def test_a_full_disk_is_an_error_with_its_number(count, tmp_path):
    for write in (write_array, write_numbers):
        with files_end_at(150), pytest.raises(OSError) as caught, (tmp_path / "array").open("wb") as file:
            write(file, np.zeros(count, np.int64))
        assert caught.value.errno == errno.EFBIG
