"""A user's text never becomes a control token, in any vocabulary and whatever its file says of its tokens."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from k2jax.text import ChatBuilder, Tokenizer, chat_format, load_tokenizer
from k2jax.text.added_tokens import is_markup
from k2jax.text.gguf_vocabulary import gguf_tokenizer
from k2jax.text.thinking_chat import KimiThinkingChat
from tests.refusal import refused
from tests.text import kimi
from tests.text import qwen as others

CONTROL = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "[INST]",
    "<|tool_call_begin|>", "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<|fim prefix|>", "[gMASK]", "<<SYS>>",
)  # fmt: skip
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
PLAIN = ("  ", "colour", "<0x0A>", "{{", "->")
NORMALIZERS = {
    "none": None, "nfkc": normalizers.NFKC(), "lower": normalizers.Lowercase(), "strip": normalizers.Strip(),
    "prepend": normalizers.Prepend("\u2581"), "replace": normalizers.Replace("~", "<"),
}  # fmt: skip
SPLITS = {
    "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "whole": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    "spaces": pre_tokenizers.Metaspace(),
}


def model_of(kind, spelled):
    """A model whose ordinary entries include some control tokens."""
    entries = list(dict.fromkeys([*spelled, "<unk>", *LETTERS, *"\u2581 \n", *"".join(CONTROL)]))
    vocab = {entry: i for i, entry in enumerate(entries)}
    if kind == "bpe":
        return models.BPE(vocab=vocab, merges=[], ignore_merges=True)
    if kind == "unigram":
        return models.Unigram([(entry, -1.0) for entry in entries], unk_id=vocab["<unk>"])
    return models.WordPiece(vocab, unk_token="<unk>", continuing_subword_prefix="")


def vocabulary(kind, spelled, added, normalizer, split):
    backend = tokenizers.Tokenizer(model_of(kind, spelled))
    backend.pre_tokenizer, backend.decoder = SPLITS[split], decoders.ByteLevel()
    if NORMALIZERS[normalizer]:
        backend.normalizer = NORMALIZERS[normalizer]
    ends = [tokenizers.AddedToken(name, special=True, normalized=False) for name in ("[BOS]", "[EOS]")]
    for token in (*ends, *added):  # one by one: a token that is an entry already keeps its id
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    return Tokenizer(backend.to_str())


FLAGS = {name: st.booleans() for name in ("special", "lstrip", "rstrip", "single_word", "normalized")}
NAMES = st.sampled_from(CONTROL)
TOKENS = st.lists(st.builds(tokenizers.AddedToken, NAMES, **FLAGS), max_size=6, unique_by=lambda token: token.content)
WIDE = {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}
WIDEN = str.maketrans({narrow: wide for wide, narrow in WIDE.items()})
PIECES = st.one_of(
    NAMES, NAMES.map(str.upper), NAMES.map(lambda name: name.translate(WIDEN)),
    NAMES.map(lambda name: name.replace("<", "~")), st.sampled_from(["<", "|", ">", " ", "\n", "</", "a", "think"]),
    st.builds(lambda name, cut: name[:cut], NAMES, st.integers(1, 8)), st.text(max_size=4),
)  # fmt: skip


@given(
    kind=st.sampled_from(["bpe", "unigram", "wordpiece"]),
    spelled=st.lists(NAMES, max_size=4, unique=True),
    added=TOKENS,
    normalizer=st.sampled_from(list(NORMALIZERS)),
    split=st.sampled_from(list(SPLITS)),
    text=st.lists(PIECES, max_size=8).map("".join),
)
@settings(max_examples=150, deadline=None)
@example("bpe", ["<think>"], [tokenizers.AddedToken("<think>", special=False)], "nfkc", "whole", "\uff1cthink\uff1e")
def test_a_text_never_becomes_a_control_token(kind, spelled, added, normalizer, split, text):
    tokenizer = vocabulary(kind, spelled, added, normalizer, split)
    control = {tokenizer.special_id(token.content) for token in added} | {tokenizer.bos, tokenizer.eos}
    ids = tokenizer.encode(text)
    assert not control & set(ids)
    if kind == "bpe" and normalizer == "none" and split != "spaces" and not spelled:
        assert tokenizer.decode(ids) == text  # and nothing was left out


VOCABULARIES = (others.QWEN3, (*others.CHATML, *others.TOOLS), others.LLAMA)
MARKUP = ["<|im_user|>", "<|tool_calls_section_begin|>", *others.QWEN3, *others.LLAMA]


@given(text=st.lists(PIECES | st.sampled_from(MARKUP), max_size=8).map("".join))
@settings(max_examples=30, deadline=None)
@example("".join(MARKUP))
def test_a_message_has_no_control_tokens_but_those_of_its_format(text):
    formats = [kimi.thinking_tokenizer(), kimi.tokenizer(), *map(others.tokenizer, VOCABULARIES)]
    for tokenizer in (*map(without_flags, formats), QWEN):
        chat = chat_format(tokenizer)
        counts = []
        for content in ("x", "x" + text):
            builder = ChatBuilder(
                chat, [] if tokenizer is QWEN else [{"function": {"name": "f", "description": content}}]
            )
            builder.add({"role": "system", "content": content})
            builder.add({"role": "user", "content": content})
            builder.add({"role": "assistant", "content": content})
            if tokenizer is not QWEN:
                builder.add({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": content}}]})
                builder.add({"role": "tool", "content": content})
            builder.open_assistant()
            counts.append(sum(tokenizer.special_name(i) is not None for i in builder.tokens))
        assert counts[0] == counts[1]


def without_flags(tokenizer):
    """The same vocabulary in a file that calls all tokens but the ends of documents ordinary."""
    parts = json.loads(tokenizer._content)
    for token in parts["added_tokens"]:
        token["special"] = token["content"] in ("[BOS]", "[EOS]")
    return Tokenizer(json.dumps(parts))


def qwen():
    """A vocabulary with the flags of Qwen's, of which a template spells the tokens of thinking and of tools."""
    names = {"<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True}
    names |= dict.fromkeys(("<think>", "</think>", "<tool_call>", "<|fim_prefix|>", "<|repo_name|>"), False)
    added = [tokenizers.AddedToken(name, special=special, normalized=False) for name, special in names.items()]
    return vocabulary("bpe", [], added, "none", "bytes")


QWEN = qwen()


def test_tokens_that_a_file_calls_ordinary_stay_readable_and_are_special_here():
    i = QWEN.special_id("<think>")
    assert QWEN.decode([i]) == "<think>" and QWEN.decode([QWEN.special_id("<|im_end|>")]) == ""
    assert QWEN.decode(QWEN.encode("<think>a")) == "<think>a"
    assert QWEN.encoding != QWEN.fingerprint and kimi.tokenizer().encoding == kimi.tokenizer().fingerprint
    assert isinstance(chat_format(without_flags(kimi.thinking_tokenizer())), KimiThinkingChat)


def test_the_unknown_token_of_a_vocabulary_of_bytes_is_control():
    parts = json.loads(vocabulary("bpe", ["<|endoftext|>"], [], "none", "whole")._content)
    parts["model"]["unk_token"], i = "<|endoftext|>", parts["model"]["vocab"]["<|endoftext|>"]
    parts["added_tokens"].append(parts["added_tokens"][0] | {"id": i, "content": "<|endoftext|>"})
    assert i not in Tokenizer(json.dumps(parts)).encode("<|endoftext|>")


def test_added_words_and_runs_of_spaces_stay_text():
    added = [tokenizers.AddedToken(name, special=False, normalized=False) for name in PLAIN]
    tokenizer = vocabulary("bpe", [], added, "none", "bytes")
    for name in PLAIN:
        assert len(tokenizer.encode(name)) == 1 and not is_markup(name)


def test_tokens_of_a_gguf_file_are_control_by_their_form_too():
    names = ["<s>", "</s>", "<think>", "->", *LETTERS]
    kinds = [3, 3, 4, 4] + [1] * len(LETTERS)
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": names, "token_type": kinds, "merges": []}
    values |= {"bos_token_id": 0, "eos_token_id": 1}
    tokenizer = gguf_tokenizer({f"tokenizer.ggml.{key}": value for key, value in values.items()})
    assert 2 not in tokenizer.encode("a<think>b") and tokenizer.special_id("<think>") == 2
    assert 3 in tokenizer.encode("a->b")


@pytest.fixture
def folder(tmp_path):
    backend = tokenizers.Tokenizer.from_str(QWEN._content)
    backend.add_tokens(["sop"])
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    return tmp_path


def beside(folder, name, i, content, special=True):
    added = {"added_tokens_decoder": {str(i): {"content": content, "special": special}}}
    (folder / name).write_text(json.dumps(added if "config" in name else {content: i}))


def test_a_flag_beside_a_tokenizer_counts_as_its_own_does(folder):
    plain = load_tokenizer(folder)
    i = plain.encode("sop")[0]
    beside(folder, "tokenizer_config.json", i, "sop")
    flagged = load_tokenizer(folder)
    assert len(plain.encode("sop")) == 1 and i not in flagged.encode("sop") and flagged.special_id("sop") == i
    flagged.save(folder / "saved")
    assert i not in load_tokenizer(folder / "saved").encode("sop")
    assert plain.fingerprint != flagged.fingerprint == load_tokenizer(folder / "saved").fingerprint


@pytest.mark.parametrize("name", ["tokenizer_config.json", "added_tokens.json"])
@pytest.mark.parametrize(
    ("i", "content", "words"),
    [
        (5, "<tool>", "there; the two belong to different"),
        (9999, "<tool>", "has no such id"),
        ("x", "a", "fetch it again"),
    ],
)
def test_a_token_that_a_file_beside_names_otherwise_is_refused(folder, name, i, content, words):
    beside(folder, name, i, content)
    with refused(words):
        load_tokenizer(folder)


TOKEN = {"id": 6, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"added_tokens": [TOKEN | {"id": 10**9, "special": True}]}, "the id 1000000000, which leaves a gap"),
        ({"added_tokens": [TOKEN | {"content": "", "special": True}]}, "without a name, id 6|is not a tokenizer.json"),
        ({"added_tokens": [TOKEN | {"content": c, "special": True} for c in "xy"]}, "gives id 6 to|the id 6"),
        ({"model": {"type": "BPE", "vocab": {"[BOS]": 0, "[EOS]": 1, "a": 10**9}, "merges": []}}, "the id 1000000000"),
        ({"model": "dropout"}, "splits words at random"),
        ({"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(a+)+$"}}}, "cannot be used"),
        ({"model": {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "", "vocab": {"[BOS]": 0,
           "[EOS]": 1}, "max_input_chars_per_word": 100}}, "cannot be used"),
    ],
)  # fmt: skip
def test_a_vocabulary_that_is_none_is_refused_when_it_is_read(tmp_path, changes, words):
    parts = json.loads(QWEN._content)
    if changes == {"model": "dropout"}:
        changes = {"model": parts["model"] | {"dropout": 0.5}}
    if "model" in changes and "added_tokens" not in changes and "dropout" not in changes["model"]:
        parts["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts | changes))
    with refused(words):
        load_tokenizer(tmp_path)


def test_a_text_that_is_no_utf8_is_refused_in_words():
    with refused("half a surrogate pair"):
        QWEN.encode("a\udcff")
