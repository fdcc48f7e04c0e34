"""Request bodies: wrong fields are named, neutral fields are accepted, and values keep their meaning."""

import pytest

from k2jax.agents.api import ApiError, anthropic, chat_completions
from k2jax.agents.api import responses as responses_dialect
from k2jax.agents.api.completions import parse_completion
from k2jax.agents.api.encoding import parse_json
from tests.agents.api.sample import CARD, NAME, TOKENIZER, USER

TOOL = {"type": "function", "function": {"name": "f"}}


def completion(**fields):
    return parse_completion({"model": NAME, "prompt": "a", **fields}, CARD)


def chat(**fields):
    return chat_completions.DIALECT.parse({"model": NAME, "messages": USER, **fields}, CARD)


def responses(**fields):
    return responses_dialect.DIALECT.parse({"model": NAME, "input": "Hi", **fields}, CARD)


def messages(**fields):
    return anthropic.DIALECT.parse({"model": NAME, "messages": USER, "max_tokens": 9, **fields}, CARD)


# Bad values by the field that is to be named.
COMMON = {
    "temperature": [-1, "hot", 10**400, True],
    "top_p": [0, 1.5],
    "min_p": [2, -0.5],
    "top_k": [-2, 1.5],
    "n": [0, 129, True],
    "seed": ["x", 0.5],
    "stop": [["a"] * 5, [""], "", [1], "a" * 1001, {}],
    "stream": [1, "yes"],
    "max_tokens": [-1, 0, 1.5, "many"],
    "stream_options": [{}, {"include_usage": True}],  # without stream
    "logit_bias": [{"x": 1}, {"5": 101}, {"5": True}, {"-1": 1}, {str(TOKENIZER.vocab_size): 1}, {"²": 1}, [5]],
    "presence_penalty": [2.5, "x"],
    "frequency_penalty": [-3],
    "repetition_penalty": [0, -1, 10**400],
    "return_token_ids": ["yes"],
    "colour": ["red"],
}
COMPLETIONS = COMMON | {
    "prompt": [
        *(None, [], [[]], 5, [1, "a"], ["a", 1], [True], [1.0], {"a": 1}, [-1], [TOKENIZER.vocab_size]),
        *([[1], [10**30]], [1] * 256, "a b " * 500, ["a", "a b " * 500]),
    ],
    "logprobs": [21, -1, True],
    "suffix": ["x"],
    "best_of": [2],
    "echo": ["yes"],
    "add_special_tokens": [1],
    "messages": [USER],
}
CHATS = COMMON | {
    "messages": [None, [], {}, [{"role": "user", "content": "a b " * 500}]],
    "messages[0]": [
        ["hi"],
        [{"role": [], "content": ""}],
        [{"role": "user", "content": 5}],
        [{"role": "assistant", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "assistant", "function_call": {"name": "f"}}],
    ],
    "messages[1]": [[*USER, {"role": "boss", "content": ""}]],
    "logprobs": [1],
    "top_logprobs": [2],
    "max_completion_tokens": [0],
    "tools": [{}, [5], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}]],
    "tool_choice": ["required", TOOL, "many"],
    "response_format": [{"type": "json_schema", "json_schema": {}}, {"type": "grammar"}, 5],
    "structured_outputs": [{"grammar": "x"}, 5],
    "guided_regex": ["(", "(?=a)", 5],
    "guided_json": [5, {"not": {}}, {"type": "array", "minItems": "x"}],
    "guided_choice": [[], "a", [1]],
    "audio": [{"voice": "x"}],
    "modalities": [["text", "audio"]],
    "functions": [[]],
    "reasoning_effort": ["low"],
    "parallel_tool_calls": ["no"],
    "prediction": [{}],
    "echo": [True],
}


def item(**fields):
    return [{"role": "user", "content": "Hi"} | fields]


RESPONSES = {
    "input": [[], 5],
    "input[0]": [
        *([{"type": "web_search_call"}], [{"type": "function_call", "call_id": "x"}], item(role="boss")),
        *(item(content=[{"type": "input_file"}]), item(content=5), [{"type": "reasoning", "summary": 5}]),
        [{"type": "function_call_output", "output": "x"}],
    ],
    "tools": [{}, [{"type": "web_search"}], [{"type": "function"}]],
    "tool_choice": ["required"],
    "previous_response_id": ["resp_1"],
    "text": [5],
    "background": [True],
    "reasoning": [1],
    "instructions": [5],
    "n": [2],
    "max_output_tokens": [0],
    "colour": ["red"],
}
MESSAGES = {
    "messages": [[], {}],
    "messages[0]": [
        *(["hi"], item(role="boss"), item(content=5), item(content=[{"type": "video"}])),
        *(item(content=[{"type": "tool_result", "content": "x"}]), item(role="assistant", content=[{"type": "x"}])),
        item(content=[{"type": "tool_result", "tool_use_id": "x", "content": 5}]),
    ],
    "tools": [{}, [{"type": "web_search_20250305", "name": "web_search"}], [{"name": ""}]],
    "tool_choice": [{"type": "any"}],
    "stop_sequences": [[""], ["a"] * 65],
    "thinking": [{"type": "much"}, 5],
    "system": [5, [{"type": "image"}]],
    "output_config": [5],
    "max_tokens": [0, "many"],
    "n": [2],
    "colour": ["red"],
}
EACH = {"completions": (completion, COMPLETIONS), "chat": (chat, CHATS)}
EACH |= {"responses": (responses, RESPONSES), "messages": (messages, MESSAGES)}


@pytest.mark.parametrize(("parse", "cases"), EACH.values(), ids=EACH)
def test_a_wrong_field_is_named(parse, cases):
    for param, values in cases.items():
        for value in values:
            with pytest.raises(ApiError) as caught:
                parse(**{param.split("[")[0]: value})
            assert (caught.value.status, caught.value.param) == (400, param), value
            assert "\n" not in caught.value.message and len(caught.value.message) < 300
    for options, param in (({"include_usage": 1}, "include_usage"), ({"x": 1}, "x"), ([], None)):
        with pytest.raises(ApiError) as caught:
            parse(stream=True, stream_options=options)
        assert (caught.value.status, caught.value.param) == (400, param)


def test_only_openais_interfaces_limit_the_number_of_stop_strings():
    assert len(messages(stop_sequences=list("abcdefgh")).stops) == 8


def test_fields_without_effect_are_accepted():
    neutral = {"user": "me", "metadata": {"a": "b"}, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}}
    neutral |= {"stop": None, "seed": 1, "repetition_penalty": 1}
    assert completion(best_of=1, suffix=None, **neutral) == completion(seed=1)
    neutral |= {"response_format": {"type": "text"}, "modalities": ["text"], "parallel_tool_calls": True}
    assert chat(store=False, audio=None, **neutral) == chat(store=True, **neutral) == chat(seed=1)


def test_choices_of_one_seed_are_not_those_of_another():
    seeds = [chat(n=8, seed=seed).choice_sampling(choice, 256).seed for seed in range(200) for choice in range(8)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**32 for seed in seeds)
    assert seeds[::8] == list(range(200))


@pytest.mark.parametrize("body", [None, [], 5, "a"])
def test_a_body_that_is_no_object_is_rejected(body):
    for parse in (parse_completion, chat_completions.DIALECT.parse):
        with pytest.raises(ApiError, match="the request body must be a JSON object"):
            parse(body, CARD)


def test_another_model_is_not_found():
    for parse in (completion, chat):
        with pytest.raises(ApiError, match="does not exist; this server has tiny") as caught:
            parse(model="gpt-4")
        assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_choices_have_their_own_prompts_and_seeds():
    request = completion(prompt=[[5, 6], [7, 8, 9]], n=2, seed=2**32 - 1, max_tokens=253, add_special_tokens=False)
    assert request.choices == 4
    assert [request.choice_prompt(i) for i in range(4)] == [(5, 6), (5, 6), (7, 8, 9), (7, 8, 9)]
    sampling = [request.choice_sampling(i, 256) for i in range(4)]
    first, second = sampling[0].seed, sampling[1].seed
    assert [choice.seed for choice in sampling] == [2**32 - 1, second, 2**32 - 1, second] and second != first
    assert [choice.max_tokens for choice in sampling] == [253, 253, 253, 253]


@pytest.mark.parametrize(
    ("parse", "name"),
    [
        (completion, "max_tokens"), (chat, "max_tokens"), (chat, "max_completion_tokens"),
        (responses, "max_output_tokens"), (messages, "max_tokens"),
    ],
)  # fmt: skip
def test_no_more_tokens_can_be_asked_for_than_the_prompt_leaves(parse, name):
    prompt = len(parse().prompts[0])
    room = CARD.max_length - prompt
    if parse in (chat, responses):
        assert parse().choice_sampling(0, CARD.max_length).max_tokens == room
    assert parse(**{name: room}).choice_sampling(0, CARD.max_length).max_tokens == room
    with pytest.raises(ApiError) as caught:
        parse(**{name: room + 1})
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, name, "context_length_exceeded")
    numbers = f"is 256 tokens, the request asks for 257: {prompt} of the prompt and {room + 1} by {name}"
    assert numbers in str(caught.value)


def test_the_longest_of_several_prompts_counts_and_a_default_is_cut_to_what_fits():
    long = {"prompt": [[5], [5] * 250], "add_special_tokens": False}
    with pytest.raises(ApiError, match="asks for 257: 250 of the prompt and 7"):
        completion(**long, max_tokens=7)
    assert completion(**long).choice_sampling(1, CARD.max_length).max_tokens == 6
    assert completion(prompt=[5] * 255, add_special_tokens=False, max_tokens=0, echo=True, logprobs=0)


@pytest.mark.parametrize("parse", [completion, chat])
def test_sampling_parameters_keep_their_values(parse):
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": 9, "max_tokens": 3}
    sampling = parse(**fields).choice_sampling(0, CARD.max_length)
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert len({parse(seed=None).sampling.seed for _ in range(3)}) == 3
    for top_k, meaning in ((-1, 0), (10**18, CARD.vocab)):  # what fits no integer of the engine means the same
        assert parse(top_k=top_k).sampling.top_k == meaning


def test_completions_end_at_the_end_of_the_document():
    request = completion()
    assert request.prompts == (tuple(TOKENIZER.encode_document("a")),)
    assert request.sampling.stop_tokens == (TOKENIZER.eos,) and request.max_tokens == 16
    assert completion(add_special_tokens=False).prompts == (tuple(TOKENIZER.encode("a")),)
    assert completion(ignore_eos=True, stop_token_ids=[7]).sampling.stop_tokens == (7,)
    texts = completion(prompt=["a", "b c"]).prompts
    assert texts == tuple(tuple(TOKENIZER.encode_document(text)) for text in ("a", "b c"))


def test_a_chat_ends_at_the_end_of_its_message():
    request = chat(messages=[{"role": "developer", "content": "Be brief."}, *USER], max_completion_tokens=3)
    assert TOKENIZER.decode(request.prompts[0]) == "systemBe brief.userHiassistant"
    assert set(request.sampling.stop_tokens) == {TOKENIZER.special_id("<|im_end|>"), TOKENIZER.eos}
    assert request.choice_sampling(0, 256).max_tokens == 3
    assert chat(tools=[TOOL]).prompts != chat(tools=[TOOL], tool_choice="none").prompts == chat().prompts


NOT_JSON = [b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 50000, b'"\\ud800"', b'{"n": ' + b"9" * 5000 + b"}"]


@pytest.mark.parametrize("body", NOT_JSON, ids=lambda body: repr(body[:24]))
def test_json_is_strict(body):
    with pytest.raises(ApiError) as caught:
        parse_json(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_lists_in_lists_are_no_prompt():
    with pytest.raises(ApiError) as caught:
        completion(prompt=parse_json(b"[" * 900 + b"]" * 900))
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_json_keeps_text():
    assert parse_json('{"a": "月 \\ud83e\\uddd1"}'.encode()) == {"a": "月 🧑"}
