from collections import Counter
import gzip
import lzma
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.data import measure
from k2jax.data.measure import TextMeasure


def measured(texts):
    whole = TextMeasure()
    for text in texts:
        whole.add(text)
    return whole.finish()


@given(st.lists(st.binary(max_size=60), min_size=1).filter(any))
def test_the_figures_are_those_of_the_concatenated_text(texts):
    whole = b"".join(texts)
    figures = measured(texts)
    entropy = -sum(n / len(whole) * math.log2(n / len(whole)) for n in Counter(whole).values())
    assert figures["byte_entropy_bits"] == pytest.approx(entropy, abs=1e-12)
    assert figures["gzip_bits_per_byte"] == 8 * len(gzip.compress(whole, 9)) / len(whole)
    assert figures["xz_bits_per_byte"] == 8 * len(lzma.compress(whole)) / len(whole)
    assert (figures["compressed_bytes"], figures["compression_capped"]) == (len(whole), False)


def test_only_the_first_part_of_a_long_text_is_compressed(monkeypatch):
    monkeypatch.setattr(measure, "COMPRESSED_AT_MOST", 100)
    figures = measured([b"ab" * 30, b"cd" * 30, b"zz"])
    assert figures["gzip_bits_per_byte"] == 8 * len(gzip.compress(b"ab" * 30 + b"cd" * 20, 9)) / 100
    assert (figures["compressed_bytes"], figures["compression_capped"]) == (100, True)
    assert figures["byte_entropy_bits"] > 2  # of the whole text, the z included
