"""Engines that read a checkpoint as they are filled."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest

import k2jax
from k2jax.client import Sampling
from k2jax.convert.loading import Opened
from k2jax.errors import UserError
from k2jax.inference.loading import load_engine, open_engine
from tests.inference.tiny import layer_by_layer
from tests.serve.folder import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama"))


def assert_equal(ours, expected):
    assert ours.keys() == expected.keys()
    for name, mine in ours.items():
        assert mine.dtype == expected[name].dtype
        np.testing.assert_array_equal(np.asarray(mine, np.float32), np.asarray(expected[name], np.float32))


def check_loaded(folder, dtype, mesh=None):
    """An engine reads the weights that ``from_pretrained`` gives."""
    _, params = k2jax.from_pretrained(folder, dtype=dtype)
    engine = load_engine(folder, dtype, mesh, slots=8, max_length=32)
    assert_equal(dict(engine.weights.leaves()), dict(layer_by_layer(params)))
    assert engine.version == 0


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_an_engine_reads_the_weights_that_from_pretrained_gives(folder, dtype):
    check_loaded(folder, dtype)


def test_an_engine_that_is_opened_has_its_weights_when_the_context_ends(folder, monkeypatch):
    read, may_read = Opened.host_leaves, threading.Event()

    def waiting(*arguments):
        assert may_read.wait(60)
        yield from read(*arguments)

    monkeypatch.setattr(Opened, "host_leaves", waiting)
    with open_engine(folder, slots=2, max_length=32) as engine:
        assert not engine.weights.complete
        may_read.set()
    assert engine.weights.complete
    asked = Sampling(max_tokens=4, temperature=0.0)
    engines = engine, load_engine(folder, slots=2, max_length=32)
    [request], [expected] = (each.generate([[1, 2, 3]], asked) for each in engines)
    assert request.tokens == expected.tokens


def test_what_fails_meanwhile_ends_the_reading_after_one_weight(folder, monkeypatch):
    read, reads = Opened.host_leaves, []
    failing = threading.Event()

    def counted(*arguments):
        for leaf in read(*arguments):
            reads.append(leaf[0])
            yield leaf
            assert failing.wait(60)

    monkeypatch.setattr(Opened, "host_leaves", counted)
    with pytest.raises(KeyError, match="tokenizer"), open_engine(folder, slots=2, max_length=32):
        threading.Timer(0.2, failing.set).start()
        raise KeyError("tokenizer")
    assert len(reads) <= 2


def test_what_fails_while_weights_are_read_is_raised(folder, monkeypatch):
    def broken(*arguments):
        raise UserError("a shard is cut off")
        yield

    monkeypatch.setattr(Opened, "host_leaves", broken)
    with pytest.raises(UserError, match="cut off"), open_engine(folder, slots=2, max_length=32):
        pass
