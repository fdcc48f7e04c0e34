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
from tests.inference.tiny import (
    GQA,
    MLA,
    MODELS,
    check_against_oracle,
    check_alternatives,
    engine,
    finish,
    ids_of,
    oracle,
    prompts,
    weights,
    with_few_pages,
)

GREEDY = Sampling(max_tokens=12, temperature=0.0)
SAMPLED = Sampling(max_tokens=12, temperature=0.8, seed=5)


def check_lengths(model, lengths, **sizes):
    """Requests with prompts of these lengths together, greedy and drawn, with and without scores of the prompt."""
    asked = [dataclasses.replace(SAMPLED if i % 2 else GREEDY, prompt_logprobs=i % 3 != 0) for i in range(len(lengths))]
    for request, length in zip(engine(model, **sizes).generate(prompts(*lengths), asked), lengths, strict=True):
        assert len(request.tokens) == 12 and request.finish_reason == "length"
        if request.sampling.prompt_logprobs:
            assert len(request.prompt_logprobs) == length - 1
        check_against_oracle(model, request)


@pytest.mark.parametrize(
    ("name", "longest"),
    [("gqa-bias-llama3", 200), *(pytest.param(name, 3000, marks=pytest.mark.slow) for name in MODELS)],
)
def test_cached_decode_equals_the_full_forward_pass(name, longest):
    """Prompts of 1 to 200 or 3,000 tokens together; page and chunk borders among them; every position is compared.

    The longest is beyond the positions that YaRN and Llama 3's frequencies stretch to (128 and 64), and each program's
    number of pages, from none to the most, occurs.
    """
    lengths = (1, 2, 15, 16, 17, 31, 33, 127, 129, 511, 513, longest)
    check_lengths(MODELS[name], [n for n in lengths if n <= longest], max_length=3072 if longest == 3000 else 256)


@pytest.mark.parametrize(
    "name", ["mla-yarn", "mla-no-q-lora-groups", pytest.param("gqa-qk-norm", marks=pytest.mark.slow)]
)
def test_few_programs_of_every_kind_of_attention_equal_the_full_forward_pass(name, monkeypatch):
    """Chunks of 16 tokens of one sequence after the other: three programs cross the borders of chunks and pages."""
    monkeypatch.setattr(shapes, "PREFILL_WIDTHS", (16,))
    check_lengths(MODELS[name], (1, 16, 39, 40, 41, 140), slots=1, page_size=40, max_length=160)


@pytest.mark.parametrize("model", [pytest.param(MLA, marks=pytest.mark.slow), GQA], ids=["mla", "gqa"])
def test_neighbours_do_not_matter(model):
    mine, *others = prompts(40, 3, 50, 45, 20, 49)
    alone = ids_of(engine(model).generate([mine], SAMPLED))
    crowd = engine(model).generate([*others, mine], [GREEDY, SAMPLED, SAMPLED, GREEDY, GREEDY, SAMPLED])
    assert ids_of(crowd[-1:]) == alone


def test_each_token_has_random_numbers_of_its_own():
    """Token i of a request is the Gumbel-max draw with its seed folded with i: a contract that replays can rely on."""
    [prompt] = prompts(30)
    run = engine()
    [request] = run.generate([prompt], dataclasses.replace(SAMPLED, max_tokens=30))
    expected = oracle(GQA, request.ids, 0.8)
    for i, token in enumerate(request.tokens):
        noise = jax.random.gumbel(jax.random.fold_in(jax.random.key(5), i), (GQA.vocab,))
        assert token == (expected[29 + i] + np.asarray(noise)).argmax()
    [other], [again] = (run.generate([prompt], dataclasses.replace(SAMPLED, seed=seed)) for seed in (1, 5))
    assert ids_of([again]) == [list(request.tokens)[:12]] != ids_of([other])


def test_a_prompt_interrupted_midway_is_scored_once(monkeypatch):
    [prompt] = prompts(50)
    run = engine()
    request = run.submit(prompt, dataclasses.replace(GREEDY, prompt_logprobs=True))
    monkeypatch.setattr(shapes, "PREFILL_WIDTHS", (16,))
    for _ in range(2):
        run.step()
    assert 0 < len(request.prompt_logprobs) < 49
    run.pause(request)
    run.resume(request)
    finish(run)
    assert len(request.prompt_logprobs) == 49
    check_against_oracle(GQA, request)


def test_samples_of_one_prompt_share_its_pages():
    """Of 4 requests that come together one computes the prompt; the others wait for its pages and use them."""
    [prompt] = prompts(50)
    run = engine()
    asked = [dataclasses.replace(SAMPLED, seed=seed) for seed in range(4)]
    shared = run.generate([prompt] * 4, asked)
    assert [request.cached_tokens for request in shared] == [0, 48, 48, 48]
    assert run.stats().prompt_tokens == 200 and run.stats().prompt_tokens_cached == 144
    assert ids_of(shared) == [ids_of(engine().generate([prompt], one))[0] for one in asked]
    for request in shared:
        check_against_oracle(GQA, request)


def test_continuations_of_a_prompt_are_scored_without_computing_it_again():
    """Of 48 ids before the first that is scored, pages of 16 are reused, but for the id that it follows."""
    [prompt], run = prompts(49), engine()
    asked = dataclasses.replace(GREEDY, max_tokens=1, prompt_logprobs=True, scored_from=49, top_logprobs=2)
    requests = run.generate([[*prompt, *more] for more in ([1, 2], [3, 4, 5], [1, 2, 6])], asked)
    again = run.generate([requests[0].prompt], dataclasses.replace(asked, scored_from=48))
    assert [request.cached_tokens for request in (*requests, *again)] == [0, 48, 48, 32]
    for request in (*requests, *again):
        plain, scored = oracle(GQA, request.ids, 1.0), request.sampling.scored_from
        wanted = [plain[i - 1, request.prompt[i]] for i in range(scored, len(request.prompt))]
        assert len(request.prompt_logprobs) == len(request.prompt_top_logprobs) == len(request.prompt) - 1
        np.testing.assert_allclose(request.prompt_logprobs[scored - 1 :], wanted, atol=1e-4)
        for row, top in zip(plain[scored - 1 :], request.prompt_top_logprobs[scored - 1 :], strict=False):
            check_alternatives(row, top, 2)


def test_prefixes_are_reused():
    """A conversation's own pages, prefixes that grow, and a prompt that was computed whole."""
    [prompt] = prompts(20)
    run = engine()
    [first] = run.generate([prompt], dataclasses.replace(GREEDY, max_tokens=20))
    [second] = run.generate([[*first.ids, 1, 2, 3]], GREEDY)
    assert second.cached_tokens == 32  # two full pages of the 39 ids that were computed
    check_against_oracle(GQA, second)
    [whole] = prompts(60, seed=3)
    asked = Sampling(max_tokens=1)
    seen = [run.generate([whole[:length]], asked)[0].cached_tokens for length in (20, 40, 60)]
    assert seen == [0, 16, 32]  # whole pages of 16
    [other] = prompts(60, seed=4)
    assert run.generate([[*other[:16], *whole[16:]]], asked)[0].cached_tokens == 0
    # All but the last token may come from the cache: the logits after it have to be computed.
    [prompt] = prompts(48, seed=5)
    first, second = (run.generate([prompt], GREEDY)[0] for _ in range(2))
    assert second.cached_tokens == 32 and ids_of([first]) == ids_of([second])


def test_too_few_pages_cost_time_not_tokens():
    """Four requests that need 4 pages each on 9 pages: some start over, none differs."""
    asked = prompts(30, 31, 32, 33)
    sampling = dataclasses.replace(SAMPLED, max_tokens=30)
    crowded = with_few_pages(engine(), 9)
    got = crowded.generate(asked, sampling)
    assert ids_of(got) == ids_of(engine().generate(asked, sampling))
    assert crowded.stats().pages_in_use == 16 - 9 and crowded.stats().preemptions > 0
    for request in got:
        check_against_oracle(GQA, request)


def test_paused_and_resumed_a_request_goes_on():
    mine, other = prompts(25, 20)
    sampling = dataclasses.replace(SAMPLED, max_tokens=30)
    expected = ids_of(engine().generate([mine], sampling))
    run = engine()
    request = run.submit(mine, sampling)
    for _ in range(5):
        run.step()
    run.pause(request)
    held = len(request.tokens)
    stats = run.stats()
    assert 0 < held < 30 and (stats.running, stats.waiting, stats.paused, stats.pages_in_use) == (0, 0, 1, 0)
    run.generate([other], GREEDY)
    assert len(request.tokens) == held and request.state == State.PAUSED
    run.resume(request)
    finish(run)
    assert ids_of([request]) == expected


def test_new_weights_take_over_between_two_tokens():
    """Each token has its version, and the log-probability that those weights give it after all tokens before."""
    run = engine(version=7)
    requests = [run.submit(prompt, dataclasses.replace(SAMPLED, max_tokens=20)) for prompt in prompts(40, 33)]
    for _ in range(3):
        run.step()
    run.update_params(named_leaves(weights(GQA, 3)), version=8)
    finish(run)
    for request in requests:
        versions = list(request.versions)
        assert versions == sorted(versions) and set(versions) == {7, 8}
        old, new = (oracle(GQA, request.ids, 0.8, seed) for seed in (0, 3))
        for i, token in enumerate(request.tokens):
            expected = (old if versions[i] == 7 else new)[len(request.prompt) - 1 + i, token]
            assert abs(request.logprobs[i] - expected) <= 1e-4
    [again] = run.generate([requests[0].prompt], GREEDY)
    check_against_oracle(GQA, again, seed=3)
    assert run.stats().pages_cached > 0
    run.update_params(named_leaves(weights(GQA)), version=9)
    assert run.stats().pages_cached == 0
    [again] = run.generate([requests[0].prompt], GREEDY)
    assert again.cached_tokens == 0  # pages of other weights are not used
    check_against_oracle(GQA, again)


def test_stop_tokens_lengths_and_callbacks_end_a_request():
    [prompt] = prompts(40)
    run = engine()
    [free] = run.generate([prompt], dataclasses.replace(GREEDY, max_tokens=100))
    assert free.finish_reason == "length" and len(free.ids) == 64
    drawn = list(free.tokens)
    [stopped] = run.generate([prompt], dataclasses.replace(GREEDY, stop_tokens=(drawn[3],)))
    first = drawn.index(drawn[3])
    assert stopped.finish_reason == "stop" and ids_of([stopped]) == [drawn[: first + 1]]
    calls = []
    request = run.submit(prompt, GREEDY, on_token=lambda request: calls.append(len(request.tokens)) or len(calls) == 4)
    finish(run)
    assert (request.finish_reason, calls) == ("stop", [1, 2, 3, 4])
    assert run.stats().running == run.stats().pages_in_use == 0


def test_cancelled_requests_free_everything():
    run = engine()
    requests = [run.submit(prompt, GREEDY) for prompt in prompts(50, 30, 40, 45, 20, 35)]
    run.step()
    run.pause(requests[1])
    running, paused, waiting = requests[0], requests[1], requests[-1]
    assert [request.state for request in (running, paused, waiting)] == [State.RUNNING, State.PAUSED, State.WAITING]
    for request in (running, paused, waiting):
        run.cancel(request)
        run.cancel(request)  # a second time does nothing
    finish(run)
    assert [request.finish_reason for request in requests] == ["cancelled"] * 2 + ["length"] * 3 + ["cancelled"]
    stats = run.stats()
    assert (stats.running, stats.waiting, stats.paused, stats.pages_in_use) == (0, 0, 0, 0)
    check_against_oracle(GQA, requests[3])


@pytest.mark.parametrize("model", [pytest.param(MLA, marks=pytest.mark.slow), GQA], ids=["mla", "gqa"])
def test_alternatives_are_the_best_of_the_oracle(model, monkeypatch):
    """Of prompts over several chunks and of what is generated, of neighbours that ask for other numbers or for none."""
    monkeypatch.setattr(shapes, "PREFILL_WIDTHS", (16,))
    asked = [1, 0, 5, 1]
    sampling = [dataclasses.replace(SAMPLED, prompt_logprobs=True, top_logprobs=top) for top in asked]
    for request, wanted in zip(engine(model).generate(prompts(50, 20, 40, 2), sampling), asked, strict=True):
        first, own = len(request.prompt) - 1, oracle(model, request.ids, 0.8)
        assert len(request.prompt_top_logprobs) == (first if wanted else 0)
        for row, top in zip(oracle(model, request.ids, 1.0), request.prompt_top_logprobs, strict=False):
            check_alternatives(row, top, wanted)
        assert len(request.top_logprobs) == (len(request.tokens) if wanted else 0)
        for row, top in zip(own[first:], request.top_logprobs, strict=False):
            check_alternatives(row, top, wanted)


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([], Sampling(), "empty"),
        ([0] * 64, Sampling(), "longest sequence"),
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
        engine(pages=3)


@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(st.data())
def test_whatever_happens_tokens_stay_right_and_pages_come_back(data):
    """Random requests with shared beginnings, pauses, resumes and cancellations on an engine with few pages."""
    run = with_few_pages(engine(), 9)
    [base] = prompts(40, seed=9)
    live = []
    for _ in range(data.draw(st.integers(5, 25))):
        action = data.draw(st.sampled_from(["submit", "submit", "step", "step", "step", "pause", "resume", "cancel"]))
        if action == "submit":
            cut, own = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 9))
            prompt = [*base[:cut], *range(own)]
            sampling = Sampling(max_tokens=data.draw(st.integers(1, 14)), temperature=0.8, seed=len(live))
            live.append(run.submit(prompt, sampling))
        elif action == "step":
            run.step()
        elif live:
            getattr(run, action)(data.draw(st.sampled_from(live)))
        held = sum(len(sequence.pages) for sequence in run._scheduler.running)
        assert run.stats().pages_in_use <= held + 16 - 9
    for request in live:
        run.resume(request)
    for _ in range(2000):
        if not run.has_work():
            break
        run.step()
    assert all(request.state == State.FINISHED for request in live)
    assert run.stats().running == run.stats().waiting == run.stats().paused == run.stats().pages_in_use - (16 - 9) == 0
    for request in live[:4]:
        check_against_oracle(GQA, request)


def test_a_long_life_compiles_few_programs(monkeypatch, through_jit):
    """Any mixture of lengths and loads uses the same short list of shapes, which no part of the model decides."""
    one_layer = dataclasses.replace(GQA, layers=1, dense_layers=1)
    run, sizes = engine(one_layer, slots=3), {run_chunk: set(), decode: set()}
    compiled = {program: program._cache_size() for program in sizes}
    for program in sizes:

        def recorded(*args, program=program, **options):
            sizes[program].add(str(jax.tree.map(np.shape, (args, options))))
            return program(*args, **options)

        monkeypatch.setattr(programs_module, program.__name__, recorded)
    rng = np.random.default_rng(0)
    for round_ in range(12):
        lengths = rng.integers(1, 56, rng.integers(1, 15))
        run.generate(prompts(*lengths, seed=round_), [Sampling(max_tokens=int(rng.integers(1, 9)))] * len(lengths))
    rows, contexts = len(run.programs.row_sizes), len(run.programs.context_sizes)
    assert (rows, contexts) == (2, 2)
    for program, widths in ((run_chunk, 2), (decode, 1)):
        assert 1 < len(sizes[program]) <= rows * contexts * widths
        assert program._cache_size() - compiled[program] <= len(sizes[program])  # nothing but shapes makes a program
