"""The engine's tokens and log-probabilities are those of the full forward pass, whatever else it is doing."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from k2jax.client import PromptTooLongError, Sampling
from k2jax.errors import UserError
from k2jax.inference import programs as programs_module
from k2jax.inference import shapes
from k2jax.inference.decode import decode
from k2jax.inference.forward import run_chunk
from k2jax.inference.request import State
from k2jax.inference.weights import named_leaves
from tests.inference.tiny import GQA, MLA, MODELS, engine, oracle, prompts, weights

GREEDY = Sampling(max_tokens=12, temperature=0.0)
SAMPLED = Sampling(max_tokens=12, temperature=0.8, seed=5)
FEW_PAGES = {"pages": 14, "max_length": 128}
"""Sizes of an engine whose pages are not enough for four long requests; tests share them, and so its programs."""


def ids_of(requests):
    return [list(request.tokens) for request in requests]


def check_against_oracle(model, request, seed=0):
    """Every log-probability that the request reports, prompt included, within 1e-4."""
    temperature = request.sampling.temperature
    expected = oracle(model, request.ids, temperature, seed)
    at = len(request.prompt) - 1
    for i, token in enumerate(request.tokens):
        assert abs(request.logprobs[i] - expected[at + i, token]) <= 1e-4
        if temperature == 0.0:
            assert expected[at + i].max() - expected[at + i, token] <= 1e-4
    if request.prompt_logprobs:
        plain = oracle(model, request.ids, 1.0, seed)
        wanted = [plain[i, token] for i, token in enumerate(request.prompt[1:])]
        np.testing.assert_allclose(request.prompt_logprobs, wanted, atol=1e-4)


@pytest.mark.parametrize("longest", [1000, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_cached_decode_equals_the_full_forward_pass(name, longest):
    """Prompts of 1 to 1,000 or 3,000 tokens together; page and chunk borders among them; every position is compared.

    The longest is beyond the positions that YaRN and Llama 3's frequencies stretch to (512 and 256), has four chunks,
    and each program's number of pages, from none to 64, occurs.
    """
    model = MODELS[name]
    lengths = (1, 2, 15, 16, 17, 31, 33, 127, 129, 511, 513, longest) if model in (MLA, GQA) else (1, 17, 33, 200)
    asked = [dataclasses.replace(SAMPLED if i % 2 else GREEDY, prompt_logprobs=i % 3 != 0) for i in range(len(lengths))]
    run = engine(model, max_length=longest // 1000 * 1024)
    for request, length in zip(run.generate(prompts(*lengths), asked), lengths, strict=True):
        assert len(request.tokens) == 12 and request.finish_reason == "length"
        if request.sampling.prompt_logprobs:
            assert len(request.prompt_logprobs) == length - 1
        check_against_oracle(model, request)


@pytest.mark.parametrize("model", [MLA, GQA], ids=["mla", "gqa"])
def test_neighbours_do_not_matter(model):
    mine, *others = prompts(40, 3, 70, 111, 20, 90)
    alone = ids_of(engine(model).generate([mine], SAMPLED))
    crowd = engine(model).generate([*others, mine], [GREEDY, SAMPLED, SAMPLED, GREEDY, GREEDY, SAMPLED])
    assert ids_of(crowd[-1:]) == alone


def test_seeds_decide():
    [prompt] = prompts(30)
    run = engine()
    draws = [ids_of(run.generate([prompt], dataclasses.replace(SAMPLED, seed=seed)))[0] for seed in (1, 2, 1)]
    assert draws[0] == draws[2] != draws[1]


def test_each_token_has_random_numbers_of_its_own():
    """Token i of a request is the Gumbel-max draw with its seed folded with i: a contract that replays can rely on."""
    [prompt] = prompts(30)
    [request] = engine().generate([prompt], dataclasses.replace(SAMPLED, max_tokens=30))
    expected = oracle(MLA, request.ids, 0.8)
    for i, token in enumerate(request.tokens):
        noise = jax.random.gumbel(jax.random.fold_in(jax.random.key(5), i), (MLA.vocab,))
        assert token == (expected[29 + i] + np.asarray(noise)).argmax()


def test_a_prompt_interrupted_midway_is_scored_once():
    [prompt] = prompts(200)
    run = engine()
    request = run.submit(prompt, dataclasses.replace(GREEDY, prompt_logprobs=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "PREFILL_WIDTHS", (32,))
        for _ in range(3):
            run.step()
        assert 0 < len(request.prompt_logprobs) < 199
        run.pause(request)
        run.resume(request)
        while run.has_work():
            run.step()
    assert len(request.prompt_logprobs) == 199
    check_against_oracle(MLA, request)


def test_samples_of_one_prompt_share_its_pages():
    """Of 4 requests that come together one computes the prompt; the others wait for its pages and use them."""
    [prompt] = prompts(100)
    run = engine()
    asked = [dataclasses.replace(SAMPLED, seed=seed) for seed in range(4)]
    shared = run.generate([prompt] * 4, asked)
    assert [request.cached_tokens for request in shared] == [0, 96, 96, 96]
    assert run.stats().prompt_tokens == 400 and run.stats().prompt_tokens_cached == 288
    assert ids_of(shared) == [ids_of(engine().generate([prompt], one))[0] for one in asked]
    for request in shared:
        check_against_oracle(MLA, request)


def test_a_conversation_goes_on_from_its_own_pages():
    [prompt] = prompts(20)
    run = engine()
    [first] = run.generate([prompt], dataclasses.replace(GREEDY, max_tokens=40))
    [second] = run.generate([[*first.ids, 1, 2, 3]], GREEDY)
    assert second.cached_tokens == 48  # three full pages of the 59 ids that were computed
    check_against_oracle(MLA, second)


def test_a_prefix_grows_from_conversation_to_conversation():
    """What follows a reused prefix is known as well as what follows a prompt that was computed whole."""
    run = engine(max_length=256)
    [whole] = prompts(120, seed=3)
    lengths = (40, 80, 120)
    seen = [run.generate([whole[:length]], Sampling(max_tokens=1))[0].cached_tokens for length in lengths]
    assert seen == [0, 32, 80]  # whole pages of 16
    [other] = prompts(120, seed=4)
    assert run.generate([[*other[:32], *whole[32:]]], Sampling(max_tokens=1))[0].cached_tokens == 0


def test_a_prompt_that_was_computed_whole_still_gives_its_last_logits():
    """All but the last token may come from the cache: the logits after it have to be computed."""
    [prompt] = prompts(64)
    run = engine()
    first, second = (run.generate([prompt], GREEDY)[0] for _ in range(2))
    assert second.cached_tokens == 48 and ids_of([first]) == ids_of([second])


def test_too_few_pages_cost_time_not_tokens():
    """Four requests that need 7 pages each on 14 pages: some start over, none differs."""
    asked = prompts(60, 61, 62, 63)
    sampling = dataclasses.replace(SAMPLED, max_tokens=40)
    crowded = engine(**FEW_PAGES)
    got = crowded.generate(asked, sampling)
    assert ids_of(got) == ids_of(engine().generate(asked, sampling))
    assert crowded.stats().pages_in_use == 0
    for request in got:
        check_against_oracle(MLA, request)


def test_paused_and_resumed_a_request_goes_on():
    mine, other = prompts(50, 20)
    sampling = dataclasses.replace(SAMPLED, max_tokens=30)
    expected = ids_of(engine().generate([mine], sampling))
    run = engine()
    request = run.submit(mine, sampling)
    for _ in range(5):
        run.step()
    run.pause(request)
    held = len(request.tokens)
    assert 0 < held < 30 and run.stats()[1:6] == (0, 0, 1, run.stats().pages, 0)
    run.generate([other], GREEDY)
    assert len(request.tokens) == held and request.state == State.PAUSED
    run.resume(request)
    while run.has_work():
        run.step()
    assert ids_of([request]) == expected


def test_new_weights_take_over_between_two_tokens():
    """Each token has its version, and the log-probability that those weights give it after all tokens before."""
    run = engine(version=7)
    requests = [run.submit(prompt, dataclasses.replace(SAMPLED, max_tokens=20)) for prompt in prompts(40, 33)]
    for _ in range(3):
        run.step()
    run.update_params(named_leaves(weights(MLA, 3)), version=8)
    while run.has_work():
        run.step()
    for request in requests:
        versions = list(request.versions)
        assert versions == sorted(versions) and set(versions) == {7, 8}
        old, new = (oracle(MLA, request.ids, 0.8, seed) for seed in (0, 3))
        for i, token in enumerate(request.tokens):
            expected = (old if versions[i] == 7 else new)[len(request.prompt) - 1 + i, token]
            assert abs(request.logprobs[i] - expected) <= 1e-4
    [again] = run.generate([requests[0].prompt], GREEDY)
    check_against_oracle(MLA, again, seed=3)


def test_old_weights_pages_are_not_used():
    [prompt] = prompts(80)
    run = engine()
    run.generate([prompt], GREEDY)
    assert run.stats().pages_cached > 0
    run.update_params(named_leaves(weights(MLA, 3)), version=1)
    assert run.stats().pages_cached == 0
    [request] = run.generate([prompt], GREEDY)
    assert request.cached_tokens == 0
    check_against_oracle(MLA, request, seed=3)


def test_stop_tokens_lengths_and_callbacks_end_a_request():
    [prompt] = prompts(200)
    run = engine()
    [free] = run.generate([prompt], dataclasses.replace(GREEDY, max_tokens=100))
    assert free.finish_reason == "length" and len(free.ids) == 256
    drawn = list(free.tokens)
    [stopped] = run.generate([prompt], dataclasses.replace(GREEDY, stop_tokens=(drawn[3],)))
    first = drawn.index(drawn[3])
    assert stopped.finish_reason == "stop" and ids_of([stopped]) == [drawn[: first + 1]]
    calls = []
    request = run.submit(prompt, GREEDY, on_token=lambda request: calls.append(len(request.tokens)) or len(calls) == 4)
    while run.has_work():
        run.step()
    assert (request.finish_reason, calls) == ("stop", [1, 2, 3, 4])
    assert run.stats().running == run.stats().pages_in_use == 0


def test_cancelled_requests_free_everything():
    run = engine()
    requests = [run.submit(prompt, GREEDY) for prompt in prompts(200, 30, 40, 50, 60, 70)]
    run.step()
    run.pause(requests[1])
    running, paused, waiting = requests[0], requests[1], requests[-1]
    assert [request.state for request in (running, paused, waiting)] == [State.RUNNING, State.PAUSED, State.WAITING]
    for request in (running, paused, waiting):
        run.cancel(request)
        run.cancel(request)  # a second time does nothing
    while run.has_work():
        run.step()
    assert [request.finish_reason for request in requests] == ["cancelled"] * 2 + ["length"] * 3 + ["cancelled"]
    stats = run.stats()
    assert (stats.running, stats.waiting, stats.paused, stats.pages_in_use) == (0, 0, 0, 0)
    check_against_oracle(MLA, requests[3])


def test_alternatives_are_the_best_of_the_oracle():
    [prompt] = prompts(25)
    [request] = engine().generate([prompt], dataclasses.replace(SAMPLED, top_logprobs=5))
    expected = oracle(MLA, request.ids, 0.8)
    assert len(request.top_logprobs) == len(request.tokens)
    for i, top in enumerate(request.top_logprobs):
        row = expected[24 + i]
        assert len(top) == 5
        np.testing.assert_allclose([p for _, p in top], np.sort(row)[::-1][:5], atol=1e-4)
        np.testing.assert_allclose([row[t] for t, _ in top], [p for _, p in top], atol=1e-4)


@pytest.mark.parametrize("model", [MLA, GQA], ids=["mla", "gqa"])
def test_alternatives_of_a_prompt_are_the_best_of_the_oracle(model):
    """Over several chunks, and of neighbours that ask for other numbers of them, or for none."""
    asked = [1, 0, 5, 1]
    sampling = [dataclasses.replace(GREEDY, prompt_logprobs=True, top_logprobs=top) for top in asked]
    requests = engine(model).generate(prompts(150, 20, 90, 2), sampling)
    for request, wanted in zip(requests, asked, strict=True):
        expected = oracle(model, request.ids, 1.0)
        assert len(request.prompt_top_logprobs) == (len(request.prompt) - 1 if wanted else 0)
        for row, top in zip(expected, request.prompt_top_logprobs, strict=False):
            assert len(top) == wanted
            np.testing.assert_allclose([p for _, p in top], np.sort(row)[::-1][:wanted], atol=1e-4)
            np.testing.assert_allclose([row[t] for t, _ in top], [p for _, p in top], atol=1e-4)


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([], Sampling(), "empty"),
        ([0] * 256, Sampling(), "longest sequence"),
        ([61], Sampling(), "outside the vocabulary"),
        ([-1], Sampling(), "outside the vocabulary"),
        ([1], Sampling(max_tokens=0), "max_tokens"),
        ([1], Sampling(temperature=-0.1), "temperature"),
        ([1], Sampling(temperature=float("nan")), "temperature"),
        ([1], Sampling(top_p=0.0), "top_p"),
        ([1], Sampling(top_logprobs=21), "top_logprobs"),
        ([1], Sampling(seed=2**32), "seed"),
        ([1], Sampling(top_k=2**31), "top_k"),
    ],
)
def test_what_cannot_be_run_is_refused_and_holds_nothing(prompt, sampling, words):
    run = engine()
    with pytest.raises(UserError, match=words) as caught:
        run.submit(prompt, sampling)
    assert isinstance(caught.value, PromptTooLongError) == (words == "longest sequence")
    assert not run.has_work()


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="pages for one sequence"):
        engine(pages=3, max_length=64)


@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(st.data())
def test_whatever_happens_tokens_stay_right_and_pages_come_back(data):
    """Random requests with shared beginnings, pauses, resumes and cancellations on an engine with few pages."""
    run = engine(**FEW_PAGES)
    [base] = prompts(70, seed=9)
    live = []
    for _ in range(data.draw(st.integers(5, 25))):
        action = data.draw(st.sampled_from(["submit", "submit", "step", "step", "step", "pause", "resume", "cancel"]))
        if action == "submit":
            cut, own = data.draw(st.integers(1, 70)), data.draw(st.integers(0, 9))
            prompt = [*base[:cut], *range(own)]
            sampling = Sampling(max_tokens=data.draw(st.integers(1, 20)), temperature=0.8, seed=len(live))
            live.append(run.submit(prompt, sampling))
        elif action == "step":
            run.step()
        elif live:
            getattr(run, action)(data.draw(st.sampled_from(live)))
        held = sum(len(sequence.pages) for sequence in run._scheduler.running)
        assert run.stats().pages_in_use <= held
    for request in live:
        run.resume(request)
    for _ in range(2000):
        if not run.has_work():
            break
        run.step()
    assert all(request.state == State.FINISHED for request in live)
    assert run.stats().pages_in_use == run.stats().running == run.stats().waiting == run.stats().paused == 0
    for request in live[:4]:
        check_against_oracle(MLA, request)


def test_a_long_life_compiles_few_programs(monkeypatch, through_jit):
    """Any mixture of lengths and loads uses the same short list of shapes, which no part of the model decides.

    Programs of grouped queries compile in a third of the time of latent attention's.
    """
    run, sizes = engine(GQA, max_length=128), {run_chunk: set(), decode: set()}
    compiled = {program: program._cache_size() for program in sizes}
    for program in sizes:

        def recorded(*args, program=program, **options):
            sizes[program].add(str(jax.tree.map(np.shape, (args, options))))
            return program(*args, **options)

        monkeypatch.setattr(programs_module, program.__name__, recorded)
    rng = np.random.default_rng(0)
    for round_ in range(20):
        lengths = rng.integers(1, 112, rng.integers(1, 20))
        run.generate(prompts(*lengths, seed=round_), [Sampling(max_tokens=int(rng.integers(1, 9)))] * len(lengths))
    rows, contexts = len(run._programs.row_sizes), len(run._programs.context_sizes)
    assert (rows, contexts) == (2, 3)
    for program, widths in ((run_chunk, 3), (decode, 1)):
        assert 2 < len(sizes[program]) <= rows * contexts * widths
        assert program._cache_size() - compiled[program] <= len(sizes[program])  # nothing but shapes makes a program
