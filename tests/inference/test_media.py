"""Images and video in an engine: tokens and log-probabilities of the full pass, features once, pages by content."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.config.schema import VisionConfig
from k2jax.data.images.patch_packing import PatchChunk, pack_chunks
from k2jax.errors import UserError
from k2jax.inference import programs, shapes
from k2jax.inference.engine import Engine
from k2jax.inference.media import PlacedChunk, content_digest, place_chunks
from k2jax.inference.mesh import make_engine_mesh
from k2jax.inference.tower import FeatureStore, row_length
from k2jax.inference.weights import named_leaves
from k2jax.model import K2
from tests.inference import tiny
from tests.inference.tiny import GQA, MLA, finish, prompts

VISION = VisionConfig(layers=2, width=24, heads=2, ffn=40, patch=2, grid=6)
SEEING = {"mla": dataclasses.replace(MLA, vision=VISION), "gqa": dataclasses.replace(GQA, vision=VISION)}
PAD = 60
GREEDY = Sampling(max_tokens=6, temperature=0.0)
SCORED = dataclasses.replace(GREEDY, prompt_logprobs=True)


def weights(name, seed=0):
    return tiny.weights(SEEING[name], seed)


@pytest.fixture(autouse=True)
def narrow_chunks(monkeypatch):
    """Prompts are computed 16 tokens at a time, which most images exceed; few programs are compiled."""
    monkeypatch.setattr(shapes, "PREFILL_WIDTHS", (16,))


def engine(name="gqa", seed=0, **sizes):
    return Engine(SEEING[name], weights(name, seed), **({"slots": 4, "max_length": 64} | sizes))


def image(*grid, seed=0):
    rng = np.random.default_rng(seed)
    return PatchChunk(rng.uniform(-1, 1, (int(np.prod(grid)), 3 * VISION.patch**2)).astype(np.float32), grid)


def shown(*parts, seed=0):
    """A prompt of texts (numbers of random tokens) and images."""
    rng, tokens, chunks = np.random.default_rng(seed), [], []
    for part in parts:
        if isinstance(part, PatchChunk):
            chunks.append(part)
            tokens += [PAD] * part.features
        else:
            tokens += rng.integers(0, PAD, part).tolist()
    return tokens, place_chunks(tokens, chunks, PAD)


@functools.cache
def full_pass(name):
    network = K2(SEEING[name])
    return jax.jit(lambda params, tokens, **shown: network.apply({"params": params}, tokens, **shown).logits)


def check(request, name="gqa", version=0):
    """Log-probabilities of a version's tokens within 1e-4 of one pass over everything, each the most likely token."""
    ids, width = request.ids, 64
    packed = pack_chunks([placed.chunk for placed in request.media], rows=1, length=256, patch=VISION.patch)
    feature, tokens = np.full((2, 1, width), -1, np.int32)
    tokens[0] = 0
    tokens[0, : len(ids)] = ids
    for placed, groups in zip(request.media, packed.features, strict=True):
        feature[0, placed.start : placed.stop] = groups
    shown = {"media": feature, "patches": packed.batch}
    logits = np.asarray(full_pass(name)(weights(name, version), tokens, **shown), np.float64)[0]
    expected = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    first = len(request.prompt) - 1
    for i, token in enumerate(request.tokens):
        if request.versions[i] == version:
            assert abs(request.logprobs[i] - expected[first + i, token]) <= 1e-4
            assert expected[first + i].max() - expected[first + i, token] <= 1e-4
    if request.sampling.prompt_logprobs:
        wanted = [expected[i, token] for i, token in enumerate(request.prompt[1:])]
        np.testing.assert_allclose(request.prompt_logprobs, wanted, atol=1e-4)


def several():
    """Images of several sizes, a clip of two chunks, an image that begins its prompt and one that ends it, and text."""
    first = shown(3, image(1, 4, 6), 5, image(1, 2, 2, seed=1), 2)
    clip = shown(1, image(4, 4, 4, seed=2), 1, image(3, 4, 4, seed=3), 20)
    return zip(first, clip, shown(image(1, 8, 10, seed=4), 10, image(1, 2, 4, seed=5)), shown(40), strict=True)


@pytest.mark.parametrize(("name", "slots"), [pytest.param("mla", 1, marks=pytest.mark.slow), ("gqa", 4)])
def test_generation_equals_the_full_pass_over_the_same_features(name, slots):
    run = engine(name, slots=slots)
    texts, media = several()
    for request in run.generate(texts, SCORED, media):
        check(request, name)
    assert run.stats().images_computed == 6  # each once, also the one that two chunks of its prompt share


@pytest.mark.slow
@pytest.mark.devices(4)
def test_devices_of_a_mesh_read_images_of_their_own():
    run = engine("mla", mesh=make_engine_mesh(data=2, expert=2))
    texts, media = several()
    for request in run.generate(texts, SCORED, media):
        check(request, "mla")
    assert run.stats().images_computed == 6


def test_an_interrupted_request_reads_its_images_again():
    tokens, media = shown(4, image(1, 8, 8), 3)
    run = engine()
    request = run.submit(tokens, GREEDY, media=media)
    while not request.tokens:
        run.step()
    run.pause(request)
    run.resume(request)
    run.update_params(named_leaves(weights("gqa", 1)), 1)  # recomputes the prompt, by the new tower
    finish(run)
    assert set(request.versions) == {0, 1} and run.stats().images_computed == 2
    check(request, version=0)
    check(request, version=1)


def test_images_with_equal_token_ids_never_share_pages():
    """Two pictures of one size make the same prompt; each is read, whether one after the other or together."""
    first, second = (shown(4, image(1, 8, 10, seed=seed), 30) for seed in (1, 2))
    assert first[0] == second[0]
    run = engine()
    one_by_one = [run.generate([tokens], GREEDY, [media])[0] for tokens, media in (first, second, first)]
    assert [request.cached_tokens for request in one_by_one] == [0, 0, 48]
    together = engine().generate([first[0], second[0], first[0]], GREEDY, [first[1], second[1], first[1]])
    assert [request.cached_tokens for request in together] == [0, 0, 48]
    for request in (*one_by_one, *together):
        check(request)
    assert run.generate([first[0]], GREEDY)[0].cached_tokens == 0  # the same ids as text


def test_a_beginning_before_different_images_is_shared():
    first, second = (shown(33, image(1, 8, 10, seed=seed), 5) for seed in (1, 2))
    run = engine()
    requests = [run.generate([tokens], GREEDY, [media])[0] for tokens, media in (first, second)]
    assert [request.cached_tokens for request in requests] == [0, 32]
    check(requests[1])


def test_text_runs_the_programs_of_a_decoder_alone(ran, monkeypatch):
    """Programs without images get the weights of a decoder and nothing else; beside images, too."""
    structures, decoder_of = set(), programs.Programs._decoder.fget

    def recorded(self):
        structures.add(str(jax.tree.structure(decoder_of(self))))
        return decoder_of(self)

    monkeypatch.setattr(programs.Programs, "_decoder", property(recorded))
    texts = prompts(10, 3)
    decoder = {group: part for group, part in weights("gqa").items() if group != "vision"}
    Engine(SEEING["gqa"], decoder, slots=4, max_length=64).generate(texts, GREEDY)
    tokens, media = shown(2, image(1, 8, 10), 3)
    engine().generate([tokens, *texts], GREEDY, [media, (), ()])
    chunks = [run.given for run in ran if run.name == "run_chunk"]
    assert [int((chunk.count > 0).sum()) for chunk, _, seen in chunks if seen is not None] == [1, 1]  # of two chunks
    assert len(structures) == 1


def test_features_of_the_contents_that_were_used_last_are_kept():
    store = FeatureStore(SEEING["gqa"], None, max_bytes=3 * 32 * 4)  # of three features
    images = {content_digest(chunk): chunk for chunk in (image(1, 2, 2, seed=seed) for seed in range(5))}
    a, b, c, d, _ = images.items()
    tower = weights("gqa")["vision"]
    for asked, computed in ((a, 1), (b, 2), (c, 3), (a, 3), (d, 4), (a, 4), (b, 5)):
        store.features(tower, dict([asked]))
        assert (store.computed, store.bytes <= 3 * 32 * 4) == (computed, True)
    assert set(store.features(tower, images)) == set(images)  # more than are kept, in one call


def test_rows_have_few_lengths():
    assert [row_length(sizes, 1) for sizes in ([4], [200, 100], [3000] * 3, [16640])] == [256, 512, 4096, 32768]
    assert row_length([1000] * 4, 4) == 1024


def test_media_that_cannot_be_read_are_refused_in_one_line():
    tokens, media = shown(3, image(1, 4, 4))
    decoder = {group: part for group, part in weights("gqa").items() if group != "vision"}
    text_only = Engine(SEEING["gqa"], decoder, max_length=64)
    with pytest.raises(UserError, match="no weights of a tower"):
        text_only.submit(tokens, GREEDY, media=media)
    [placed], run = media, engine()
    wrong = PatchChunk(placed.chunk.pixels[:, :5], placed.chunk.grid)
    for bad in (placed._replace(start=4), placed._replace(start=-1), placed._replace(chunk=wrong)):
        with pytest.raises(UserError, match="image or chunk of video 1"):
            run.submit(tokens, GREEDY, media=[bad])
    long = PlacedChunk(0, image(5, 2, 2), b"")
    for bad, message in (([placed, placed], "video 2 stands for tokens"), ([long], "at most 4")):
        with pytest.raises(UserError, match=message):
            run.submit(tokens, GREEDY, media=bad)
    with pytest.raises(UserError, match="1 has 9 features for 4 pads"):
        place_chunks(tokens, [image(1, 6, 6)], PAD)
