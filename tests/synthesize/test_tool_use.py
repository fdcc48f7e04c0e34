"""The parts of the pipeline of tool use: near-duplicates, and who is blamed for what."""

import asyncio
import dataclasses
import itertools
import json
import random

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from k2jax.agents.environment import OUTCOME
from k2jax.agents.scaffolds.scripted import called, play, said
from k2jax.errors import UserError
from k2jax.synthesize.sentence_vectors import SentenceEncoder
from k2jax.synthesize.tool_use.trajectory_judge import blamed, exact_report, transcript
from k2jax.synthesize.tools.near_duplicates import distinct_worlds, duplicate_tools
from k2jax.synthesize.tools.tool_forms import form_of
from k2jax.tasks.worlds.dataset import solve, world_task
from k2jax.tasks.worlds.dialogue import USER, WorldEnvironment
from k2jax.tasks.worlds.failures import FailureRates
from k2jax.tasks.worlds.goals import EXPECTED
from k2jax.tasks.worlds.grammar import SETTINGS, draw_task, generated_world


def test_near_duplicates_are_found_and_others_are_kept():
    places = [(category, setting) for category, settings in SETTINGS.items() for setting in settings]
    worlds = [generated_world(*place, number).spec.to_json() for place in places[:8] for number in range(2)]
    tools = {json.dumps(tool): tool for world in worlds for tool in world["tools"]}.values()
    tools = list({tool["name"]: tool for tool in tools}.values())
    assert len(tools) > 50
    alone = duplicate_tools(tools, 0.9)
    copies = [reworded(tool) for tool in tools]
    found = duplicate_tools(tools + copies, 0.7)[len(tools) :]
    assert alone.count(-1) >= 0.9 * len(tools)
    assert sum(one == number for number, one in enumerate(found)) >= 0.95 * len(tools)
    copies = [{"world": {**world, "name": f"copy{number}"}} for number, world in enumerate(worlds[:3])]
    records = [{"world": world} for world in worlds]
    kept, dropped = distinct_worlds(0.92)(records + copies)
    assert {record["world"]["name"] for _, record in dropped} >= {"copy0", "copy1", "copy2"}
    assert len(kept) >= 0.7 * len(records)


def reworded(tool):
    """The same tool with another way to write it, and with other names of its arguments."""
    text = json.dumps(tool).replace('"arg": "', '"arg": "the_').replace('"given": "', '"given": "the_')
    renamed = json.loads(text)
    renamed["parameters"] = {f"the_{name}": field for name, field in renamed["parameters"].items()}
    return renamed | {"description": f"{tool['description'].upper()} Please!"}


def test_what_does_something_else_is_no_duplicate_however_it_is_worded():
    spec = generated_world("culture", "museum", 1).spec
    tools = [dict(tool) for tool in spec.tools]
    for tool in tools:
        tool["description"], tool["name"] = "Does it.", "do_it"
    forms = [form_of(tool) for tool in tools]
    for one, other in itertools.combinations(range(len(tools)), 2):
        same = forms[one] == forms[other]
        assert (duplicate_tools([tools[one], tools[other]], 0.0)[1] == 0) == same
    by_name = {tool["name"]: form for tool, form in zip(spec.tools, forms, strict=True)}
    verbs = [name for name in by_name if name.startswith(("freeze", "unfreeze"))]
    assert len({by_name[name] for name in verbs}) == len(verbs)


def test_sentence_vectors_are_those_of_transformers(tmp_path):
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        max_position_embeddings=16, hidden_act="gelu",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(tmp_path)
    words = ["[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = ["a b c", "z", "", "q w e r t y u i o p a s d f g h j k l"]
    found = SentenceEncoder(tmp_path).vectors(texts)
    for text, vector in zip(texts, found, strict=True):
        ids = [*tokenizer.encode(text).ids[:15], 2] if len(text) > 30 else tokenizer.encode(text).ids
        with torch.no_grad():
            mean = model(torch.tensor([ids])).last_hidden_state[0].double().mean(0)
        np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=2e-6)


def test_what_is_no_encoder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.json"):
        SentenceEncoder(tmp_path)


def drawn(number, rates=None, patience=None, wishes=1):
    rng = random.Random(number)
    world = generated_world("culture", "museum", number)
    while (draft := draw_task(world, rng, wishes)) is None or not draft.user.facts:
        pass
    if patience is not None:
        draft = draft._replace(user=dataclasses.replace(draft.user, patience=patience))
    return world_task(f"t{number}", world.spec, draft, rates or FailureRates(), 30)


def verdict(task, policy, seed=0):
    trajectory = asyncio.run(play(task, WorldEnvironment(), policy, seed))
    messages = [dict(node.message) for node in trajectory.nodes if node.message]
    dialogue = {"messages": messages, "status": trajectory.status, "left": trajectory.metadata.get(OUTCOME, {})}
    return blamed(task, dialogue, exact_report(task, dialogue))


def asks_first(task, messages):
    """Asks for everything before it acts: what the user does not tell it cannot do."""
    ours = messages[len(task.instruction) :]
    facts = [fact["text"] for fact in task.metadata[USER]["facts"]]
    told = " ".join(str(message["content"]) for message in ours if message["role"] == "user")
    if all(fact in told for fact in facts):
        asked = next(place for place, message in enumerate(ours) if message.get("tool_calls") or place == len(ours) - 1)
        acted = [message for message in ours[asked:] if message["role"] != "user"]
        return solve(task, [*messages[: len(task.instruction)], *acted])
    return said("Which one, for whom, when and how many, please?")


@pytest.mark.parametrize("number", range(6))
def test_who_is_blamed_for_a_planted_fault(number):
    task = drawn(number)
    assert verdict(task, solve) == "nobody"
    assert verdict(task, asks_first) == "nobody"
    assert verdict(task, lambda task, messages: said("There is nothing that I could do.")) in ("agent", "user")
    assert verdict(drawn(number, patience=1, wishes=3), asks_first) in ("user", "nobody")

    def tells_nothing(task, messages):
        message = solve(task, messages)
        return message if message.get("tool_calls") else said("Done.")

    if any(len(str(told)) for told in task.metadata[EXPECTED]["told"]):
        assert verdict(task, tells_nothing) == "agent"


def test_a_lost_answer_is_a_tools_fault():
    lost = FailureRates(timeout=1.0)
    task = drawn(1, lost)
    calls = task.metadata[EXPECTED]["calls"]

    def once(task, messages):
        ours = sum(message["role"] == "assistant" for message in messages)
        return called(calls[ours][0], **calls[ours][1]) if ours < len(calls) else said("I could not see the answer.")

    assert {verdict(task, once, seed) for seed in range(6)} <= {"tool", "user"}


def test_a_transcript_numbers_its_turns():
    messages = [{"role": "user", "content": "Hi."}, called("show", account="a1"), {"role": "tool", "content": "[]"}]
    assert transcript(messages) == '[0] user: Hi.\n[1] assistant: show({"account": "a1"})\n[2] tool: []'
    assert json.dumps(messages)
