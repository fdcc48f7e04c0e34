from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.data.split import adjusted_threshold, document_hash, threshold_for


@pytest.mark.parametrize("fraction", [0.02, 0.5, 0.9])
def test_the_wanted_fraction_of_documents_is_held_out(fraction):
    threshold = threshold_for(fraction)
    held_out = sum(document_hash(f"document {i}".encode()) < threshold for i in range(20_000))
    assert abs(held_out / 20_000 - fraction) < 5 * (fraction * (1 - fraction) / 20_000) ** 0.5


@given(st.sets(st.integers(0, 2**64 - 1), min_size=2), st.integers(0, 2**64))
def test_either_side_gets_a_document_and_the_threshold_moves_no_further_than_it_must(hashes, threshold):
    adjusted = adjusted_threshold(threshold, min(hashes), max(hashes))
    held_out = {code for code in hashes if code < adjusted}
    assert held_out and held_out != hashes
    wanted = {code for code in hashes if code < threshold}
    if wanted and wanted != hashes:
        assert adjusted == threshold
    assert len(held_out ^ wanted) <= 1


def test_hashes_are_pinned():
    """Another hash would move documents between training and validation of runs in progress."""
    assert document_hash("né".encode()).to_bytes(8, "little").hex() == "26da5a7febb511e3"  # printf né | b2sum -l 64
