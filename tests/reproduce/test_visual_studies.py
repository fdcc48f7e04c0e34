"""The studies of images and clips: their data against other means, and their summaries of known measurements."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest

from k2jax.config import resolve
from k2jax.data.images.conversations import ConversationRenderer, read_conversation
from k2jax.data.images.places import NOWHERE
from k2jax.data.images.reading import ReadLimits
from k2jax.data.vocabulary import MEDIA_TOKENS
from k2jax.reproduce import RunResult
from k2jax.reproduce.study import check_held_out, run_configs
from k2jax.reproduce.study_file import load_study_file
from k2jax.reproduce.visual import rewards_of
from k2jax.text import byte_tokenizer, configured_chat
from k2jax.trajectory import Reward

STUDIES = ("fusion", "video", "zero_vision", "visual_rl", "joint_rl")
fusion, video, zero_vision, visual_rl, joint_rl = map(load_study_file, STUDIES)
TOKENIZER = byte_tokenizer(MEDIA_TOKENS)


def rendered(config, record):
    chat = configured_chat(TOKENIZER, config.data.chat_format)
    renderer = ConversationRenderer(chat, TOKENIZER, config.model.vision, config.data.images)
    return renderer.render(read_conversation(record, NOWHERE, ReadLimits()))


def test_the_three_ways_of_fusion_have_equal_shares_of_images_over_the_run():
    for run, config in run_configs(fusion.STUDY, "runs").items():
        images = config.data.images
        lengths = np.diff([*images.share_from, 1.0])
        assert np.dot(lengths, images.share) == pytest.approx(0.1), run


@pytest.mark.parametrize(
    ("losses", "start", "rise"),
    [
        ([2.0, 1.5, 1.6, 1.9, 1.4, 1.3], 0.5, 0.3),
        ([2.0, 1.5, 1.4, 1.2, 1.9, 1.0], 0.5, -0.2),  # 1.9 is too late
        ([2.0, 1.5, 1.4, 1.2, 1.9, 1.0], 2 / 3, 0.7),
    ],
)
def test_a_rise_is_what_text_loses_soon_after_a_moment(monkeypatch, losses, start, rise):
    monkeypatch.setattr(fusion, "AFTER", 0.17)
    config = fusion.get_config()
    config.train.steps = 60
    records = [{"step": 10 * place, fusion.TEXT: loss} for place, loss in enumerate(losses, 1)]
    assert fusion.rise(RunResult(resolve(config), records, 0), start) == pytest.approx(rise)


def test_a_picture_may_have_the_right_colour_under_the_wrong_name():
    wanted = ["red circle", "blue square", "red circle", "red circle"]
    shares = fusion.shares_named(wanted, ["red circle", "blue circle", "red square", ""])
    assert shares == {"named": 1 / 4, "colour": 3 / 4}


def test_the_summary_of_fusion_says_who_is_ahead_on_how_many_seeds():
    made = {}
    for run, config in run_configs(fusion.STUDY, "runs").items():
        name, seed = run.partition("_")[2], config.train.seed
        text = {"early": 1.0, "mid": 1.1, "late": 1.3 if seed else 0.9}[name]
        common = {fusion.IMAGES: 0.5, "tokens": 1000}
        records = [{"step": t, fusion.TEXT: text + (t == 330) / 10} | common for t in (1, 200, 330, 400)]
        made[run] = RunResult(config, records, 0, {"named": 0.25, "colour": 0.5})
    text = fusion.summarize(made).markdown
    assert "The loss of text is lowest with early on 2, mid on 0, late on 1 of 3 seeds" in text
    assert "late less early fusion is 0.167 (-0.100 to 0.300)" in text
    rows = {line.split("|")[1].strip(): line.split("|") for line in text.splitlines() if line.startswith("| ")}
    assert "none" in rows[fusion.LABELS["late"]][6]  # no validation within 24 steps after 200
    assert "0.100 (0.100 to 0.100)" in rows[fusion.LABELS["late"]][7]


def test_the_three_ways_of_video_spend_equal_tokens_on_a_clip_and_show_what_they_say(monkeypatch):
    monkeypatch.setattr(video, "CLIPS", 6)
    ways = {}
    for run, config in list(run_configs(video.STUDY, "runs").items())[: len(video.LABELS)]:
        name = run.partition("_")[2]
        ways[name] = [rendered(config, record) for record in video._conversations(name)]
    asked = {name: [int((~each.trained).sum()) for each in own] for name, own in ways.items()}
    assert asked["short"] == asked["pooled"] == asked["sampled"]  # clip and question
    shapes = {name: [chunk.grid for chunk in own[0].chunks] for name, own in ways.items()}
    assert shapes == {"short": [(1, 2, 2)] * 4, "pooled": [(4, 2, 2)] * 4, "sampled": [(1, 2, 2)] * 4}
    for long, sampled in zip(ways["pooled"], ways["sampled"], strict=True):
        assert (long.ids == sampled.ids).all()  # times, question and answer
        for chunk, frame in zip(long.chunks, sampled.chunks, strict=True):
            assert (chunk.pixels[:4] == frame.pixels).all()


@pytest.mark.parametrize("name", video.LABELS)
def test_an_answer_about_a_clip_says_first_what_each_chunk_shows(name):
    for index in range(40):
        sample, _ = video.clip_of(name, index)
        seen, _, answer = video.worked_answer(sample).partition(": ")
        chunks = seen.split(",")
        assert answer == sample.answer and len(chunks) == video.CHUNKS
        if sample.kind == "way":
            first, last = sample.shown[0], sample.shown[-1]
            assert chunks[-1] == "{} {}".format(*next(iter(last.values()))[:2])
            assert (chunks[0] == chunks[-1]) == (sample.shown[len(sample.shown) // video.CHUNKS - 1] == last != first)
        else:
            colours = [colour for chunk in chunks if chunk != "-" for colour in chunk.split("+")]
            assert colours[0] == answer and sorted(colours) == sorted(sample.question.split()[:3:2])


def test_two_clips_fill_a_row_under_both_budgets(monkeypatch):
    monkeypatch.setattr(video, "CLIPS", 8)
    for run, config in list(run_configs(video.STUDY, "runs").items())[: len(video.LABELS)]:
        for record in video._conversations(run.partition("_")[2]):
            each = rendered(config, record)
            assert 2 * len(each.ids) <= config.data.sequence_length
            assert 2 * each.patches == config.data.images.patches


def test_video_is_compared_seed_by_seed():
    shares = {"short": 0.9, "pooled": 0.8, "sampled": 0.5}
    made = {}
    for run, config in run_configs(video.STUDY, "runs").items():
        share = shares[run.partition("_")[2]] + 0.01 * config.train.seed
        made[run] = RunResult(config, [{"step": 1, "val_loss": 0.5}], 0, {"way": share, "first": share - 0.1})
    text = video.summarize(made).markdown
    assert "*which way*: " in text and text.count("gain -10.0 (-10.0 to -10.0) points over the short ones") == 2
    assert text.count("and +30.0 (+30.0 to +30.0) over every 4th frame") == 2


def test_every_run_of_zero_vision_learns_from_a_file_of_the_study_and_starts_from_the_joint_one(tmp_path, monkeypatch):
    for name in ("SAMPLES", "QUESTIONS"):
        monkeypatch.setattr(zero_vision, name, 8)
    zero_vision.prepare(tmp_path)
    for run, config in run_configs(zero_vision.STUDY, tmp_path).items():
        seed, _, name = run.partition("_")
        assert config.init_from == (None if name == "joint" else str(tmp_path / f"{seed}_joint"))
        path = tmp_path / f"{name}.jsonl"
        assert config.data.sources["samples"].path == str(path)
        records = [json.loads(line) for line in path.read_text().splitlines()]
        pictures = [isinstance(record["messages"][0]["content"], list) for record in records]
        assert pictures == {"joint": [True, False] * 8, "zero_vision": [False] * 8}.get(name, [True] * 8)
        for record in records:
            assert len(rendered(config, record).ids) <= config.data.sequence_length


def test_calls_return_what_is_there():
    """Counted from the words of the transcript."""
    for record in itertools.islice(zero_vision.questions(tuple(zero_vision.KINDS), pictures=False), 200):
        asked, said = (message["content"] for message in record["messages"])
        form = zero_vision.FORM.fullmatch(said)
        key = asked.partition("\nHow many ")[2].removesuffix("?")
        things = form["seen"].split(",")
        assert asked.partition("\n")[0] == form["seen"] and f"count({key})" in said
        words = [thing if " " in key else thing.split() for thing in things]
        assert int(form["answer"]) == (len(things) if key == "thing" else sum(key in word for word in words))


def test_an_answer_is_right_by_its_number_and_seen_by_its_form():
    scene = zero_vision.draw_scene(0, 0)._replace(things=("red circle", "blue square"))
    answers = ["see():red circle,blue square\ncount(red):1", "see():red circle\ncount(red):1", "1", "red"]
    scores = zero_vision.scores([(scene, "red")] * 4, answers)
    assert (scores["right"], scores["formed"], scores["seen"]) == (0.75, 0.5, 0.25)
    assert [scores[kind] for kind in zero_vision.KINDS] == [1, 1, 1, 0]


def test_zero_vision_is_compared_seed_by_seed():
    made = {}
    for run, config in run_configs(zero_vision.STUDY, "runs").items():
        name = run.partition("_")[2]
        share = {"joint": 0.0, "zero_vision": 0.5, "visual_narrow": 0.25, "visual": 0.75}[name]
        share += config.train.seed / 100
        keys = [*(f"picture/{kind}" for kind in zero_vision.KINDS), "picture/right", "picture/formed", "picture/seen"]
        records = [{"step": step, "loss": 1.0} for step in (1, 2)]
        made[run] = RunResult(config, records, 0, dict.fromkeys([*keys, "text/right"], share))
    text = zero_vision.summarize(made).markdown
    assert "+50.0 (+50.0 to +50.0) points over the start" in text
    assert "-25.0 (-25.0 to -25.0) over pictures with questions of all kinds" in text


def test_rewards_are_means_by_kind_and_way():
    """One greedy and two sampled answers of each task; an answer without a verdict does not count."""

    def group(kind, *rewards):
        trajectories = [SimpleNamespace(reward=value if value is None else Reward(value)) for value in rewards]
        return SimpleNamespace(prompt=SimpleNamespace(task=SimpleNamespace(domain=kind)), trajectories=trajectories)

    groups = [group("pictures/count", 1.0, 0.5, 0.0), group("pictures/count", 0.0, None, 1.0), group("add2", 1.0, 1.0)]
    expected = {"pictures/count/greedy": 0.5, "pictures/count/sampled": 0.5, "add2/greedy": 1.0, "add2/sampled": 1.0}
    assert rewards_of(groups) == expected


def test_visual_rewards_are_compared_with_the_one_start_and_text_beside_them():
    made = {}
    for run, config in run_configs(visual_rl.STUDY, "runs").items():
        gain = 0.0 if run in ("described", "start") else 0.2 + 0.1 * config.train.seed
        shares = {"pictures/count": 0.4 + gain, "pictures/read": 0.2 + gain / 2, "add2": 0.9 - gain / 10}
        evaluation = {f"{kind}/{way}": share for kind, share in shares.items() for way in ("greedy", "sampled")}
        made[run] = RunResult(config, [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.6}], 0, evaluation)
    text = visual_rl.summarize(made).markdown
    assert "adds +22.5 (+15.0 to +30.0) points of the mean reward of held-out pictures, greedily" in text
    assert "never shows, change by -3.0 (-4.0 to -2.0)" in text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["count", "read", "pictures, mean of kinds", "text: add2"]
    assert rows[3][1:4] == ["0.200", "0.350 (0.300 to 0.400)", "+15.0 (+10.0 to +20.0)"]


def test_visual_rewards_start_from_the_run_with_text_and_see_the_same_pictures():
    runs = run_configs(visual_rl.STUDY, "runs")
    described, start = runs.pop("described"), runs.pop("start")
    assert described.init_from is None and start.init_from == "runs/described"
    asked = [{kind for each in config.data.sources.values() for kind in each.pictures} for config in (described, start)]
    assert asked == [{"describe", "read"}, {"describe", "locate", "count", "read"}]
    assert {each.kind for each in start.data.sources.values()} == {"synthetic_images", "chat"}
    sizes = {(each.side, each.height) for each in start.data.sources.values() if each.kind == "synthetic_images"}
    for config in runs.values():
        assert config.init_from == "runs/start" and config.stage == "rl"
        options = [dict(option.split("=") for option in each.options) for each in config.rl.tasks.values()]
        assert {(int(each["side"]), int(each.get("height", 0))) for each in options} == sizes
    check_held_out("visual_rl", visual_rl.STUDY)


def test_joint_rewards_are_of_the_same_problems_of_text_with_pictures_and_without():
    runs = run_configs(joint_rl.STUDY, "runs")
    described, start = runs.pop("described"), runs.pop("start")
    assert described.init_from is None and start.init_from == "runs/described"
    sizes = {(each.side, each.height) for each in start.data.sources.values() if each.kind == "synthetic_images"}
    for seed in joint_rl.SEEDS:
        alone, joint = (runs.pop(f"seed{seed}_{name}") for name in ("text", "joint"))
        assert alone.init_from == joint.init_from == "runs/start" and alone.train == joint.train
        assert alone.optimizer == joint.optimizer and alone.rl.updates == joint.rl.updates
        assert joint.rl.tasks["text"] == alone.rl.tasks["text"] and list(alone.rl.tasks) == ["text"]
        weights = {name: each.weight for name, each in joint.rl.tasks.items()}
        assert weights.pop("text") == sum(weights.values())  # half of the prompts
        assert joint.rl.rollout.prompts == 2 * alone.rl.rollout.prompts
        options = [dict(option.split("=") for option in joint.rl.tasks[name].options) for name in weights]
        assert {(int(each["side"]), int(each.get("height", 0))) for each in options} == sizes
    assert not runs
    check_held_out("joint_rl", joint_rl.STUDY)


@pytest.mark.parametrize(
    ("joint", "words"),
    [
        (0.5, "not lower by more than the spread (-1.0 points, where the seeds of text alone span 2.0)"),
        (0.4, "lower by more than the spread (-11.0 points, where the seeds of text alone span 2.0)"),
        (0.6, "not lower by more than the spread (+9.0 points, where the seeds of text alone span 2.0)"),
    ],
)
def test_text_beside_pictures_is_compared_with_the_spread_of_the_seeds_without(joint, words):
    made = {}
    for run, config in run_configs(joint_rl.STUDY, "runs").items():
        seed, name = config.train.seed, run.partition("_")[2]
        text = {"text": 0.5 + 0.01 * seed, "joint": joint}.get(name, 0.2)
        shares = {"sum6": text, "sort6": text, "pictures/count": 0.7 if name == "joint" else 0.6, "pictures/read": 0.3}
        evaluation = {f"{kind}/{way}": share for kind, share in shares.items() for way in ("greedy", "sampled")}
        records = [dict.fromkeys(("reward", "reward/text", "reward/shapes", "reward/words"), 0.5) | {"step": 1}]
        made[run] = RunResult(config, [each | {"seconds": 60.0} for each in records], 0, evaluation)
    text = joint_rl.summarize(made).markdown
    assert text.startswith(f"With pictures in the run, text ends greedy, {words}; sampled, {words}.")
    assert "pictures +5.0 (+5.0 to +5.0) and +5.0 (+5.0 to +5.0)." in text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2::2]] == [
        "sort6, greedy", "sum6, greedy", "text, mean of kinds, greedy",
        "pictures: count, greedy", "pictures: read, greedy", "pictures, mean of kinds, greedy",
    ]  # fmt: skip
    assert rows[6][1:3] == ["0.200", "0.510 (0.500 to 0.520)"]
