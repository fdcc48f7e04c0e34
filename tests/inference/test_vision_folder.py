"""A K2.5 folder in an engine and in ``generate``: the tower is loaded where it is wanted, and reads files."""

import json

from absl import flags
import numpy as np
from PIL import Image
import pytest

import k2jax
from k2jax import generate
from k2jax.client import Sampling
from k2jax.convert.image_limits import IMAGES_FILE
from k2jax.data.images.places import MediaPlaces
from k2jax.data.images.processor import ImageProcessor
from k2jax.errors import UserError
from k2jax.inference.engine import Engine
from k2jax.inference.loading import load_engine
from k2jax.inference.media_prompt import chat_prompt
from k2jax.inference.weights import named_leaves
from k2jax.text.media import MEDIA_PAD
from tests.model.vision import oracle
from tests.serve.folder import write
from tests.text.kimi import thinking_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What transformers writes of a random model, a vocabulary and a picture beside it."""
    root, tokenizer = tmp_path_factory.mktemp("kimi_k25"), thinking_tokenizer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(oracle.TEXT, "vocab_size", tokenizer.vocab_size)
        oracle.network().save_pretrained(root)
    tokenizer.save(root)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(pixels).save(root / "photo.png")
    return root


def values(*arguments):
    given = flags.FlagValues()
    generate.define(given)
    given(["generate", *arguments])
    return given


def test_an_engine_loads_the_tower_where_it_is_wanted(folder):
    _, params = k2jax.from_pretrained(folder)
    engine = load_engine(folder, vision=True, slots=1, max_length=64)
    for (name, mine), (_, other) in zip(
        named_leaves(engine.weights.params["vision"]), named_leaves(params["vision"]), strict=True
    ):
        np.testing.assert_array_equal(mine, other, err_msg=name)
    assert "vision" not in load_engine(folder, slots=1, max_length=64).weights.params


def test_generate_answers_with_images_as_an_engine_does(folder, capsys):
    model, params = k2jax.from_pretrained(folder)
    tokenizer = k2jax.load_tokenizer(folder)
    content = [{"type": "image", "image": str(folder / "photo.png")}, {"type": "text", "text": "What is this?"}]
    processor = ImageProcessor(model.config.vision, places=MediaPlaces(str(folder)))
    prompt = chat_prompt([{"role": "user", "content": content}], tokenizer, processor)
    assert prompt.tokens.count(tokenizer.special_id(MEDIA_PAD)) == 3 * 4
    sampling = Sampling(max_tokens=8, temperature=0.0, stop_tokens=(tokenizer.eos, tokenizer.special_id("<|im_end|>")))
    [request] = Engine(model.config, params, max_length=256).generate([prompt.tokens], sampling, [prompt.media])
    options = (f"--checkpoint={folder}", "--prompt=What is this?", "--max_tokens=8", "--temperature=0")
    generate.main(values(*options, f"--image={folder / 'photo.png'}", "--chat"))
    wanted = [token for token in request.tokens if token not in sampling.stop_tokens]
    assert capsys.readouterr().out.strip() == tokenizer.decode(wanted).strip()
    generate.main(values(*options, f"--image={folder / 'photo.png'}"))  # a document, without a chat
    tokens = (
        len(tokenizer.encode_document(""))
        + 12
        + 3
        + len(tokenizer.encode("image"))
        + len(tokenizer.encode("\nWhat is this?"))
    )
    assert f"{tokens} prompt tokens" in capsys.readouterr().err


def test_generate_reduces_images_as_the_folder_says(folder, capsys):
    limits = {"patch_size": oracle.PATCH, "in_patch_limit": 4}
    (folder / IMAGES_FILE).write_text(json.dumps({"media_proc_cfg": limits}))
    try:
        options = ("--prompt=", "--max_tokens=1", f"--image={folder / 'photo.png'}")
        generate.main(values(f"--checkpoint={folder}", *options))
    finally:
        (folder / IMAGES_FILE).unlink()
    tokenizer = k2jax.load_tokenizer(folder)
    texts = (tokenizer.encode_document(""), tokenizer.encode("image"), tokenizer.encode("\n"))
    pads = 1 * 2  # 5 x 7 whole patches of 4 pixels shrink to 6 x 10 pixels, which are padded to 8 x 16
    assert f"{sum(map(len, texts)) + 3 + pads} prompt tokens" in capsys.readouterr().err


def test_generate_refuses_images_of_a_model_of_text_and_damaged_files(folder, tmp_path):
    text = write(tmp_path / "llama")
    with pytest.raises(UserError, match="reads text alone"):
        generate.main(values(f"--checkpoint={text}", "--prompt=a", f"--image={folder / 'photo.png'}"))
    (tmp_path / "damaged.png").write_bytes(b"\x89PNG")
    with pytest.raises(UserError, match="image 1 cannot be decoded"):
        generate.main(values(f"--checkpoint={folder}", "--prompt=a", f"--image={tmp_path / 'damaged.png'}"))
