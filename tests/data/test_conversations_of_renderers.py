"""Training data in OpenAI's format against the package renderers, which is given the same in each format's own form.

The oracle renders ids of calls as they come, and knows one name for reasoning: a generated conversation is written for
it with ``functions.NAME:INDEX``, and for us with the ids and the names that other tools write. It divides an answer at
a literal ``</think>`` wherever that stands, and trains blank arguments as nothing; there it is wrong, and has no part.
The tags of reasoning that a prompt gives count as written by the model to it; here they are not trained.
"""

import json
import random

import pytest
from renderers.configs import Qwen3RendererConfig
from renderers.llama_3 import Llama3Renderer
from renderers.qwen3 import Qwen3Renderer

from k2jax.data.chat_records import messages_and_tools
from k2jax.data.chat_rendering import branches
from k2jax.text import render_history
from tests.text import kimi, qwen, test_chat, test_thinking_chat

TEXTS = [
    "Hi",
    "天气怎么样\uff1f",
    "a\n\nb",
    "<|im_end|>",
    "x = {'a': 1}",
    "[EOS] no",
    "12345 jumps;",
    "Привет",
    "don't",
]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {}}} for name in ("f", "a.b")
]
KIMI, THINKING = test_chat.KIMI, test_thinking_chat.CHAT


def text(draw, least=1):
    return " ".join(draw.choice(TEXTS) for _ in range(draw.randint(least, 3)))


def calls_and_results(draw, count, most):
    """Calls with their results in both forms; ``count`` calls came before."""
    kimis, others, results = [], [], []
    for index in range(count, count + draw.randint(1, most)):
        name, arguments = draw.choice(["f", "a.b"]), {"q": text(draw), "n": draw.randint(0, 9)}
        function = {"name": name, "arguments": draw.choice([arguments, json.dumps(arguments, ensure_ascii=False)])}
        own, other = f"functions.{name}:{index}", draw.choice([f"call_{draw.random()}", f"toolu_{index}"])
        kimis.append({"id": own, "type": "function", "function": function})
        others.append({"id": other, "type": "function", "function": function, "index": index, "extra": None})
        result = {"role": "tool", "content": text(draw)} | ({"name": name} if draw.random() < 0.5 else {})
        results.append((result | {"tool_call_id": own}, result | {"tool_call_id": other}))
    if draw.random() < 0.3:  # in order, without ids
        results = [(own, {key: other[key] for key in other if key != "tool_call_id"}) for own, other in results]
    else:
        draw.shuffle(results)
    return kimis, others, results


def named(draw, writes_names):
    """A name, which Kimi K2.5's format writes in place of a role; the others have none."""
    return {"name": "Ann"} if writes_names and draw.random() < 0.2 else {}


def reasoning_of(draw, thought):
    """The same reasoning as other tools write it."""
    return draw.choice(
        [
            {"reasoning_content": thought},
            {"reasoning": thought},
            {"thinking": thought},
            {"reasoning": thought, "reasoning_content": thought},
            {"reasoning_details": [{"type": "reasoning.text", "text": thought}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": thought, "signature": "s"}]},
        ]
    )


def conversation(seed, thinks, writes_names=False, most_calls=3):
    """The messages of a conversation in Kimi's form and in another one; a single call is an answer of its own."""
    draw, kimis, others, count = random.Random(seed), [], [], 0
    if draw.random() < 0.6 or not thinks:
        content = text(draw)
        kimis.append({"role": "system", "content": content})
        others.append({"role": draw.choice(["system", "developer"]), "content": content})
    for _ in range(draw.randint(1, 3)):
        content = text(draw)
        asking = {"role": "user", "content": content} | named(draw, writes_names)
        kimis.append(asking)
        others.append(asking | {"content": draw.choice([content, [{"type": "text", "text": content}]])})
        for turn in range(draw.randint(1, 3)):
            last, content = turn == 2, text(draw)
            own = other = {"role": "assistant", "content": content} | named(draw, writes_names)
            if thinks and draw.random() < 0.7:
                thought = text(draw)
                own, other = own | {"reasoning_content": thought}, other | reasoning_of(draw, thought)
            if last or draw.random() < 0.3:
                kimis.append(own)
                others.append(other | {"refusal": None, "annotations": []})
                break
            calls, foreign, results = calls_and_results(draw, count, most_calls)
            count += len(calls)
            if most_calls == 1:
                own, other = own | {"content": ""}, other | {"content": ""}
            kimis += [own | {"tool_calls": calls}, *(result for result, _ in results)]
            others += [other | {"tool_calls": foreign}, *(result for _, result in results)]
    return kimis, others, draw.choice([None, TOOLS])


def expected(renderer, messages, tools):
    rendered = renderer.render(messages, tools=tools, add_generation_prompt=False)
    return list(rendered.token_ids), list(rendered.sampled_mask)


def check_kimi_k2(seed):
    kimis, others, tools = conversation(seed, thinks=False)
    [builder] = branches(*messages_and_tools({"messages": others, "tools": tools}), KIMI)
    renderer = test_chat.KimiK2Renderer(test_chat.OracleTokenizer())
    assert (builder.tokens, builder.by_assistant) == expected(renderer, kimis, tools)


def check_kimi_k2_5(seed):
    kimis, others, tools = conversation(seed, thinks=True, writes_names=True)
    messages, _ = messages_and_tools({"messages": others, "tools": tools})
    tokens, marks = expected(test_thinking_chat.renderer(), kimis, tools)
    builder = render_history(THINKING, messages, tools)
    assert builder.tokens == tokens
    # The oracle counts the tags of the generation prompt as written by the model, which is given them.
    tags = [kimi.thinking_tokenizer().special_id(tag) for tag in ("<think>", "</think>")]
    for token, ours, theirs in zip(tokens, builder.by_assistant, marks, strict=True):
        assert ours == theirs or (token in tags and theirs)
    check_branches(kimis, branches(messages, tools, THINKING), tools)


def check_branches(kimis, parts, tools):
    """Each cycle is one sequence: the oracle's history without old reasoning, then the answer with its own."""
    if len(parts) == 1:
        return
    ends = [i + 1 for i, m in enumerate(kimis) if m["role"] == "assistant" and not m.get("tool_calls")]
    ends += [len(kimis)] * any(m["role"] == "assistant" for m in kimis[ends[-1] :])
    encode, special = kimi.thinking_tokenizer().encode, kimi.thinking_tokenizer().special_id
    for end, part in zip(ends, parts, strict=True):
        answer = kimis[end - 1]
        is_answer = answer["role"] == "assistant" and not answer.get("tool_calls")
        tokens, _ = expected(test_thinking_chat.renderer(), kimis[: end - is_answer], tools)
        if is_answer:
            tokens += [special("<|im_assistant|>"), *encode(answer.get("name", "assistant")), special("<|im_middle|>")]
            tokens += [special("<think>"), *encode(answer.get("reasoning_content", "")), special("</think>")]
            tokens += [*encode(answer["content"]), THINKING.end]
        assert part.tokens == tokens


def check_qwen3(seed):
    """Histories before an answer with reasoning and without, and each cycle as a sequence to train on."""
    kimis, others, tools = conversation(seed, thinks=True)
    messages, _ = messages_and_tools({"messages": others, "tools": tools})
    for thinking in (True, False):
        renderer = Qwen3Renderer(qwen.OracleTokenizer(), Qwen3RendererConfig(enable_thinking=thinking))
        builder = render_history(qwen.QWEN, qwen.QWEN.as_history(messages, thinking), tools, strip=False)
        builder.open_assistant(thinking)
        assert builder.tokens == renderer.render(kimis, tools=tools, add_generation_prompt=True).token_ids
    parts, questions = branches(messages, tools, qwen.QWEN), [i for i, m in enumerate(kimis) if m["role"] == "user"]
    cycles = [*zip(questions, [*questions[1:], len(kimis)], strict=True)] if len(parts) > 1 else [(0, len(kimis))]
    for (begin, end), part in zip(cycles, parts, strict=True):
        oracle = renderer.render(kimis[:end], tools=tools)
        marks = [
            mark and index >= begin for mark, index in zip(oracle.sampled_mask, oracle.message_indices, strict=True)
        ]
        without_prompts(oracle.token_ids, marks, qwen.QWEN.direct_prompt)
        whole = len(marks) - len(qwen.QWEN.joint([kimis[end - 1]["role"]], "user"))  # results are left open
        assert (part.tokens, part.by_assistant) == (oracle.token_ids[:whole], marks[:whole])


def without_prompts(tokens, marks, prompt):
    """Takes the marks off a prompt wherever it stands."""
    for at in range(len(tokens) - len(prompt) + 1):
        if tokens[at : at + len(prompt)] == prompt:
            marks[at : at + len(prompt)] = [False] * len(prompt)


def check_llama_3(seed):
    kimis, others, tools = conversation(seed, thinks=False, most_calls=1)
    [builder] = branches(*messages_and_tools({"messages": others, "tools": tools}), qwen.LLAMA_3)
    renderer = Llama3Renderer(qwen.OracleTokenizer(qwen.LLAMA))
    assert (builder.tokens, builder.by_assistant) == expected(renderer, kimis, tools)
    builder.open_assistant()
    assert builder.tokens == renderer.render(kimis, tools=tools, add_generation_prompt=True).token_ids


CHECKS = [check_kimi_k2, check_kimi_k2_5, check_qwen3, check_llama_3]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 2000), marks=pytest.mark.slow)], ids=["", "all"])
def test_ids_and_marks_are_those_of_renderers_whatever_tool_wrote_the_record(check, seeds):
    for seed in seeds:
        check(seed)
