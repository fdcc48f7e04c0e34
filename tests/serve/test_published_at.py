"""A server starts with the weights that another one has, which alone has read the checkpoint."""

import numpy as np
import pytest

from k2jax import cli
from k2jax.client import Sampling
from k2jax.convert.loading import Opened, tokenizer_of
from k2jax.errors import UserError
from k2jax.inference.loading import load_engine, open_engine
from k2jax.inference.worker import Worker
from k2jax.rl.broadcast import rounds
from k2jax.serve.__main__ import _give, _open_model, define, main
from tests.serve import folder


@pytest.fixture
def checkpoint(tmp_path):
    return folder.write(tmp_path / "tiny")


def flags(*given):
    values, _ = cli.parse(["serve", *given], define, "")
    return values


def test_an_engine_is_filled_in_the_place_of_its_checkpoint(checkpoint, monkeypatch):
    expected = dict(load_engine(checkpoint, slots=1, max_length=64).weights.leaves())
    monkeypatch.setattr(Opened, "host_leaves", None)
    filled = lambda engine: engine.update_params(expected, 3)  # noqa: E731
    with open_engine(checkpoint, slots=1, max_length=64, fill=filled) as engine:
        pass
    assert engine.version == 3
    for name, array in engine.weights.leaves():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.slow
def test_a_server_starts_from_another_and_reads_no_weights(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rounds, "GATHER_SECONDS", 0.0)
    engine = load_engine(checkpoint, slots=1, max_length=512)
    weights = {name: np.asarray(array) for name, array in engine.weights.leaves()}
    weights["embed"] = weights["embed"][::-1].copy()
    engine.update_params(weights, 7)
    key = f"--published_key={tmp_path / 'key'}"
    first = Worker(engine)
    giving = _give(first, flags(f"--checkpoint={checkpoint}", "--publish_listen=127.0.0.1:0", key))
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(Opened, "leaves", None)
    monkeypatch.setattr(Opened, "host_leaves", None)
    at = f"--published_at=127.0.0.1:{giving.address[1]}"
    worker, _, source = _open_model(flags(f"--checkpoint={checkpoint}", "--slots=1", "--max_length=512", at, key), ())
    prompt, options = [tokenizer_of(checkpoint).encode_document("a")], Sampling(max_tokens=5, temperature=0.0)
    answers = [each.call(lambda engine: engine.generate(prompt, options)) for each in (first, worker)]
    assert [list(answer[0].tokens) for answer in answers] == [list(answers[0][0].tokens)] * 2
    assert worker.engine.version == 7 and "version 7" in capsys.readouterr().err
    for each in (source, giving):
        each.close()
    for each in (first, worker):
        each.stop()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--published", "--published_at=a:1", "--published_key=k"], "give one of them"),
        (["--published_at=a:1"], "--published_key is the key for --published_at and --publish_listen"),
        (["--published_key=k"], "--published_key is the key for --published_at and --publish_listen"),
        (["--published", "--publish_listen=a:1", "--published_key=k"], "rl.rollout.publish_listen of the run"),
        (["--follow"], "give --published or --published_at, too"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(given, message):
    with pytest.raises(UserError, match=message):
        main(flags("--checkpoint=x", *given))
