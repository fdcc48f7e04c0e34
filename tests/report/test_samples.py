"""Samples come back exactly as the model wrote them."""

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from k2jax.report.samples import Sample, read_samples, write_sample

texts = st.one_of(st.text(max_size=30), st.text(alphabet="`\n\r #textPromContinuation:", max_size=60))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(texts, texts, min_size=1, max_size=3))
def test_samples_round_trip(samples):
    with tempfile.TemporaryDirectory() as workdir:
        for prompt, text in samples.items():
            write_sample(workdir, 10, prompt, text)
        assert read_samples(workdir) == {10: [Sample(*item) for item in samples.items()]}


def test_steps_are_in_order_and_a_repeated_prompt_replaces(tmp_path):
    for step, text in ((100, "late"), (20, "old"), (20, "new")):
        path = write_sample(tmp_path, step, "p", text)
    assert path == tmp_path / "samples" / "20.md"
    assert list(read_samples(tmp_path).items()) == [(20, [Sample("p", "new")]), (100, [Sample("p", "late")])]
    assert sorted(p.name for p in path.parent.iterdir()) == ["100.md", "20.md"]


def test_text_that_is_not_unicode_is_still_written(tmp_path):
    write_sample(tmp_path, 1, "p", "a\ud800b")
    assert read_samples(tmp_path) == {1: [Sample("p", "a?b")]}


def test_no_samples(tmp_path):
    assert read_samples(tmp_path) == {}
