"""``python -m k2jax.data``: what is built is listed, shown and verified, and damage is found."""

import pytest

from k2jax.cli import parse
from k2jax.data import batch_preview, prepare_data
from k2jax.data.__main__ import COMMANDS, define, main
from k2jax.data.batch_preview import pieces_of, use_of
from tests.data.corpora import data_config, text_folder, words
from tests.refusal import refused

RUN = {"batch_size": 3, "seed": 1, "steps": 5}


def asked(capsys, *arguments):
    """The exit code of a command, and what it prints."""
    values, positional = parse(["data", *arguments], define, "", ("COMMAND", "NAME"), 1)
    code = main(values, *positional)
    return code, capsys.readouterr().out


@pytest.fixture
def config_file(tmp_path):
    """A configuration with one source of texts, whose cache is empty."""
    text_folder(tmp_path / "texts", words(40))
    path = tmp_path / "config.py"
    path.write_text(
        f"""
from k2jax.config import defaults, source

def get_config():
    config = defaults("pretrain", model="nano")
    del config.data.sources.stdlib
    config.data.sources.mine = source(kind="text", path="{tmp_path}/texts")
    config.data.cache_dir = "{tmp_path}/cache"
    config.data.tokenizer.kind = "bytes"
    config.data.held_out = 0.2
    config.data.sequence_length = 32
    config.train.batch_size, config.train.steps = 4, 6
    return config
"""
    )
    return path


def test_what_is_built_is_listed_shown_and_verified(config_file, tmp_path, capsys):
    of = f"--config={config_file}"
    cache = f"--cache_dir={tmp_path}/cache"
    assert "has no tokenised sources" in asked(capsys, "list", cache)[1]
    code, built = asked(capsys, "build", of)
    assert code == 0 and built.count("mine: ") == 2
    assert asked(capsys, "build", of)[1].count("\n") == 1, "the second time there is nothing to do"
    [folder] = (tmp_path / "cache/shards").iterdir()
    listed = asked(capsys, "list", of)[1]
    assert folder.name in listed and str(tmp_path / "texts") in listed
    shown = asked(capsys, "show", folder.name, cache)[1]
    assert "held_out: documents" in shown and "skipped records" in shown
    assert asked(capsys, "verify", cache) == (0, f"{folder.name}: as it was written, {_size(folder):,} bytes\n")
    tokens = folder / "train/tokens-00000.bin"
    data = bytearray(tokens.read_bytes())
    data[5] ^= 1
    tokens.write_bytes(data)
    code, said = asked(capsys, "verify", folder.name, cache)
    assert code == 1 and str(tokens) in said and "delete the folder" in said
    (folder / "manifest.json").write_text("{}")
    code, said = asked(capsys, "verify", cache)
    assert code == 1 and "not a manifest" in said
    assert "not a manifest" in asked(capsys, "list", cache)[1]


def _size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_what_computes_takes_a_number_of_processes_or_a_cluster_and_no_other_command_does(config_file, capsys):
    of = f"--config={config_file}"
    for flag in ("--workers=2", "--cluster=auto"):
        with refused("list takes neither --workers nor --cluster, which are of build, duplicates and contamination"):
            asked(capsys, "list", of, flag)
    with refused("give --workers or --cluster, not both"):
        asked(capsys, "build", of, "--workers=2", "--cluster=auto")
    assert asked(capsys, "build", of, "--workers=1")[0] == 0


def test_a_step_is_shown_with_its_sources_boundaries_and_masks(config_file, capsys):
    code, shown = asked(capsys, "show", f"--config={config_file}", "--batch=6")
    assert code == 0 and shown.count("mine") >= 4 and "--rows=0" not in shown
    few = asked(capsys, "show", f"--config={config_file}", "--batch=6", "--rows=2")[1]
    assert "2 of 4 rows; --rows=0 shows all" in few and len(few) < len(shown)
    assert few.strip().splitlines()[-1] == shown.strip().splitlines()[-1]  # all that was seen, whatever is shown
    with refused("--batch 7 is behind the last step, 6"):
        asked(capsys, "show", f"--config={config_file}", "--batch=7")


def test_pieces_are_documents_or_their_parts_in_the_order_of_their_rows(tmp_path):
    texts = words(60, seed=3)
    data = prepare_data(data_config(tmp_path / "cache", {"a": text_folder(tmp_path / "a", texts)}), **RUN)
    for step in range(1, 6):
        batch = data.loader.batch(step - 1)
        pieces = list(pieces_of(data, step))
        assert sorted({piece.row for piece in pieces}) == [0, 1, 2]
        for row in range(3):
            own = [piece for piece in pieces if piece.row == row]
            assert [piece.begin for piece in own[1:]] == [piece.end for piece in own[:-1]] and own[0].begin == 0
            assert sum(piece.trained for piece in own) == (batch.targets["weights"][row] > 0).sum()
            for piece in own:
                assert (batch.exit[row, piece.begin : piece.end] == piece.end).all()
                text = data.tokenizer.decode(batch.tokens[row, piece.begin : piece.end].tolist())
                assert piece.text == text and any(text.strip("\ufffd") in each for each in texts)


def test_what_was_seen_of_each_source_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_preview, "_TOGETHER", 2)
    sources = {name: text_folder(tmp_path / name, words(30, seed)) for name, seed in (("a", 1), ("b", 2))}
    data = prepare_data(data_config(tmp_path / "cache", sources), batch_size=6, seed=1, steps=25)
    used = use_of(data, 25)
    assert [use.source for use in used] == ["a", "b"] and [use.rows for use in used] == [3, 3]
    for use in used:
        size = data.manifests[use.source]["splits"]["train"]["tokens"]
        assert use.passes == data.loader.epochs(25)[use.source] > 1 and use.tokens == round(use.passes * size)
        trained = sum(piece.trained for step in range(1, 26) for piece in pieces_of(data, step)
                      if piece.source == use.source)  # fmt: skip
        targets = size - data.manifests[use.source]["splits"]["train"]["documents"]
        assert trained == pytest.approx(use.passes * targets, rel=0.05)
    some = list(pieces_of(data, 9, [5, 0]))
    assert {piece.row for piece in some} == {0, 5} and some[0].row == 5
    assert [p for p in pieces_of(data, 9) if p.row == 5] == [p for p in some if p.row == 5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bild",), "there is no command 'bild'; did you mean 'build'"),
        (("build",), "--config is required"),
        (("list", "x"), "list takes no name of a corpus"),
        (("show",), "name a corpus of python -m k2jax.data list, or give --config and --batch=STEP"),
        (("show", "text-1", "--cache_dir=/nowhere"), "has no 'text-1'"),
        (("show", "--batch=1"), "--config is required"),
    ],
)
def test_mistakes_are_one_line(arguments, words, capsys):
    with refused(words):
        asked(capsys, *arguments)


def test_all_commands_are_documented():
    from k2jax.data import __main__ as command

    assert all(f"k2jax.data {name}" in command.__doc__ for name in COMMANDS)
