"""Reinforcement learning of a model that sees: it samples after images, and trains on the same ones."""

import asyncio
import base64
import dataclasses
import io
import json
import re
import shutil

import jax
import numpy as np
from PIL import Image
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import Environment, Observation, Services, Step
from k2jax.agents.environments.files import FilesEnvironment, NamedFilesEnvironment
from k2jax.agents.environments.single_turn import SingleTurn
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.registry import verifiers
from k2jax.agents.task import Task
from k2jax.client import Sampling, ScriptedClient
from k2jax.config import resolve, source, task
from k2jax.config.schema import PackingConfig
from k2jax.convert.loading import load_pretrained
from k2jax.data.images.processor import ImageProcessor
from k2jax.data.vocabulary import MEDIA_TOKENS
from k2jax.drawings.canvas import COLOURS
from k2jax.drawings.synthetic import synthetic_sample
from k2jax.errors import UserError
from k2jax.inference import Engine, LockstepClient
from k2jax.inference.media import content_digest
from k2jax.inference.media_reader import ImageReader, MediaLimits
from k2jax.report.metrics import read_metrics
from k2jax.rl.evaluation import evaluate_checkpoint
from k2jax.rl.loop import train
from k2jax.rl.methods.scoring_pass import ScoringPass
from k2jax.rl.packing.images import batch_of, image_batches
from k2jax.rl.packing.rows import ImageSource, pack, padding_like
from k2jax.rl.packing.training_paths import TrainingSample, training_responses
from k2jax.tasks.pictures.dataset import data_url
from k2jax.text.chat import configured_chat
from k2jax.text.media import MEDIA_PAD
from k2jax.text.tokenizer import byte_tokenizer
from k2jax.train.program import Program
from k2jax.trajectory import verify
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.gateway.repository import SMALL_AGENT, small_agent, write_agent
from tests.agents.gateway.repository import task as repository_task
from tests.agents.sandbox.backends import backend
from tests.rl.runs import assert_equal_runs
from tests.rl.tiny import register, tiny_config

TOWER = {"layers": 2, "width": 16, "heads": 2, "ffn": 24, "grid": 4}
TOKENIZER = byte_tokenizer(MEDIA_TOKENS)
PAD = TOKENIZER.special_id(MEDIA_PAD)
CHAT = configured_chat(TOKENIZER, "plain")


def seeing(**overrides):
    """The config of a run that is asked about pictures of 64 pixels, 4 features each, beside tasks of text."""
    register()
    config = tiny_config()
    config.model.layers = 1  # a dense one
    config.model.vocab = TOKENIZER.vocab_size
    config.model.vision.update(TOWER)
    config.data.tokenizer.media = True
    config.data.images.patches = 8 * 36
    config.data.sequence_length = 160
    pictures = task(dataset="pictures", options=("count=12", "side=64"), max_tokens=24, verifier="share_of_low_bytes")
    config.rl.tasks.pictures = pictures
    config.rl.rollout.max_length = 120
    config.train.steps = 2
    config.checkpoint.every = 1
    config.rl.update({"eval_prompts": 2, "eval_samples": 1})
    config.update_from_flattened_dict(overrides)
    return resolve(config)


def picture(number, kind="count"):
    return synthetic_sample(3, number, kind=kind, size=(64, 64)).image


def asked(image, text="How many?"):
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": data_url(image)}}, {"type": "text", "text": text}],
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The workdir of a run of two iterations."""
    workdir = tmp_path_factory.mktemp("seeing") / "run"
    assert train(seeing(), workdir) == 0
    return workdir


def test_the_trainer_sees_what_the_engine_saw_also_after_the_tower_has_learnt(finished):
    records = read_metrics(finished)
    assert [record["step"] for record in records] == [0, 1, 2]
    for record in records[1:]:
        assert record["updates"] and record["tokens/mismatch_max"] < 1e-4, record
        assert {"reward/low", "reward/pictures"} <= record.keys()
        layers, heads = TOWER["layers"], TOWER["heads"]
        assert np.shape(record["vision_max_logit_heads"]) == (layers, heads)
        assert record["vision_max_logit"] == np.max(record["vision_max_logit_heads"]) > 0
    trajectories = list(TrajectoryStore(finished / "trajectories").read(2))
    assert all(not verify(trajectory, TOKENIZER.vocab_size) for trajectory in trajectories)
    shown = [each for each in trajectories if each.domain.startswith("pictures/")]
    assert shown and all((each.nodes[0].tokens == PAD).sum() == 9 for each in shown)
    before, after = (params_of(finished, step) for step in (1, 2))
    same = [name for name in before if np.array_equal(before[name], after[name])]
    assert not [name for name in same if "vision" in name], "parts of the tower and of the projector do not learn"


def params_of(workdir, step):
    params = load_pretrained(workdir / "checkpoints" / str(step), vision=True).params
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(params)}


@pytest.mark.slow
def test_an_iteration_that_is_repeated_after_a_resume_is_the_same_to_the_bit(tmp_path):
    """With the marks of what its updates leave out."""
    config, whole, resumed = seeing(**{"rl.record_masks": True}), tmp_path / "whole", tmp_path / "resumed"
    assert train(config, whole) == 0
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints" / "2")
    assert train(config, resumed) == 0
    assert_equal_runs(resumed, whole)


def test_a_checkpoint_is_evaluated_on_held_out_pictures(finished):
    held_out, groups = evaluate_checkpoint(seeing(**{"rl.eval_prompts": 3, "rl.eval_samples": 1}), str(finished))
    assert {group.prompt.kind for group in groups} == {"low", "pictures"}
    assert "eval/greedy" in held_out.record(groups)


class TwoPictures(Environment):
    """Shows a second picture after the first answer, and ends with the next one."""

    async def reset(self, task, seed):
        self._second = asked(picture(task.metadata["second"]), "And here?")
        return Observation(task.instruction)

    async def step(self, action):
        second, self._second = self._second, None
        return Step(Observation((second,)) if second else Observation(), terminated=second is None)

    async def close(self):
        pass


def data_url_image(about):
    """The picture that a task shows first."""
    url = about.instruction[0]["content"][0]["image_url"]["url"]
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def two_pictures(first, second):
    return Task("t", "d", (asked(picture(first)),), "", metadata={"second": second})


def processor():
    return ImageProcessor(seeing().model.vision)


def reader(**limits):
    return ImageReader(processor(), TOKENIZER, MediaLimits(**limits))


def digest_of(number):
    return content_digest(processor().image(picture(number)))


def options_of(media, tokens=8, first=0, sample=0):
    """What an episode needs besides its task."""
    key = EpisodeKey("train", 1, first, sample)
    return {"key": key, "seed": 0, "sampling": Sampling(tokens), "media": media}


class Watching(ScriptedClient):
    """Keeps what it was shown."""

    def __init__(self, reply):
        super().__init__(reply)
        self.shown = []

    async def generate(self, prompt, sampling, *, resume=None, on_token=None, media=()):
        self.shown.append((list(prompt), media))
        return await super().generate(prompt, sampling, resume=resume, on_token=on_token)


def episode(first, second, sample=0, answer=(PAD, 70, PAD)):
    """An episode with two pictures, whose policy also writes pads, and what its client was shown."""
    client = Watching(lambda prompt, sampling: [*answer, 80 + sample, CHAT.end])
    media = reader()
    options = options_of(media, first=first, sample=sample)
    ran = run_episode(two_pictures(first, second), client, CHAT, TOKENIZER, TwoPictures(), **options)
    return asyncio.run(ran), client.shown, media


def test_each_turn_is_shown_all_pictures_before_it_and_pads_that_the_policy_wrote_stand_for_none():
    trajectory, shown, _ = episode(0, 1)
    assert trajectory.status == "finished", trajectory.error
    digests = [digest_of(number) for number in (0, 1)]
    assert [[placed.digest for placed in media] for _, media in shown] == [digests[:1], digests]
    for prompt, media in shown:
        places = [place for placed in media for place in range(placed.start, placed.stop)]
        assert all(prompt[place] == PAD for place in places) and len(places) == 9 * len(media)
    assert sum(token == PAD for token in shown[1][0]) == 18 + 2


def test_a_policy_that_sees_the_picture_of_a_sandbox_may_also_compute_with_it():
    [about] = load_tasks("picture_tools", ("count=1", "kinds=crop", "side=64", "show=true"))
    question, chat = about.instruction[0]["content"][1]["text"], configured_chat(TOKENIZER, "compact")
    [colour], box = re.findall(r"are (\w+) in", question), re.findall(r"(?:column|row) (\d+)", question)
    part = f"np.asarray(Image.open('picture_1.png').crop(({','.join(box)})))"
    cell = f"import numpy as np;from PIL import Image;int(({part}=={COLOURS[colour]}).all(-1).sum())"

    def say(prompt, sampling):
        said = TOKENIZER.decode([token for token in prompt[-40:] if token < 256])
        called = "!python" in TOKENIZER.decode(prompt)
        return [*TOKENIZER.encode(re.search(r"\d+$", said)[0] if called else f"!python {cell}"), chat.end]

    client = Watching(say)
    environment = NamedFilesEnvironment(Services(lambda: backend("bubblewrap")))
    ran = asyncio.run(run_episode(about, client, chat, TOKENIZER, environment, **options_of(reader(), 400)))
    assert (ran.status, verify(ran)) == ("finished", []), ran.error
    assert verifiers.get(about.verifier)(about, ran.answer).value == 1
    digest = content_digest(processor().image(data_url_image(about)))
    assert [[placed.digest for placed in media] for _, media in client.shown] == [[digest]] * 2


def test_an_episode_ends_where_its_pictures_fill_a_row_and_equal_ones_count_once():
    def run(second, most):
        client, options = Watching(lambda prompt, sampling: [80, CHAT.end]), options_of(reader(patches=most))
        return asyncio.run(run_episode(two_pictures(0, second), client, CHAT, TOKENIZER, TwoPictures(), **options))

    assert run(0, 36).status == run(1, 72).status == "finished"
    short = run(1, 71)
    assert short.status == "truncated" and len(short.leaves()) == 1
    with pytest.raises(UserError, match=r"images of 36 patches, more than the 35 of config\.data\.images\.patches"):
        run(0, 35)


def episode_of_agent(tmp_path, messages, media):
    """An episode of an agent whose requests show these contents, and what its client was shown."""
    script = SMALL_AGENT.replace('"content": task}', f'"content": json.loads({json.dumps(messages[0])!r})}}')
    if len(messages) > 1:
        shown = 'done.stdout[-200:] + done.stderr[-200:] + "[%d]" % done.returncode'
        script = script.replace(shown, f"json.loads({json.dumps(messages[1])!r})")
    agent = small_agent(files={"${home}/agent.py": script.replace("$", "$$")})
    chat, replies = configured_chat(TOKENIZER, "compact"), iter(["$pwd", "ok"])  # plain ones have no system message
    client = Watching(lambda prompt, sampling: [*TOKENIZER.encode(next(replies)), chat.end])
    path = write_agent(tmp_path / "agent.json", agent)
    about = dataclasses.replace(repository_task(), scaffold=f"black_box agent={path}")
    environment = FilesEnvironment(Services(lambda: backend("bubblewrap")))
    ran = run_episode(about, client, chat, TOKENIZER, environment, **options_of(media, 40))
    return asyncio.run(ran), client.shown


def test_what_an_agent_behind_the_gateway_shows_is_seen_and_trained_on(tmp_path):
    trajectory, shown = episode_of_agent(tmp_path, [asked(picture(2))["content"]], reader())
    assert trajectory.status == "finished" and len(shown) == 2, trajectory.error
    (response,) = training_responses(TrainingSample(trajectory, 1.0), "unique", None, reader())
    for media in (*(media for _, media in shown), response.paths[0].media):
        assert [placed.digest for placed in media] == [digest_of(2)] and media[0].start == shown[0][1][0].start


def test_an_agent_that_shows_more_than_a_row_is_truncated_unless_its_task_alone_is_more(tmp_path):
    contents = [asked(picture(number))["content"] for number in (0, 1)]
    whole, cut = (episode_of_agent(tmp_path, contents, reader(patches=most))[0] for most in (72, 71))
    assert (whole.status, len(whole.leaves())) == ("finished", 1) and whole.sampled_tokens > cut.sampled_tokens > 0
    assert cut.status == "truncated" and cut.metadata["agent"]["ended_by"] == "context"
    with pytest.raises(UserError, match="first request of the agent small is refused: images of 36 patches, more than"):
        episode_of_agent(tmp_path, contents, reader(patches=35))


def test_a_model_of_text_is_shown_no_picture():
    about = Task("t", "d", (asked(picture(0)),), "")
    client = ScriptedClient(lambda prompt, sampling: [CHAT.end])
    ran = run_episode(about, client, CHAT, TOKENIZER, SingleTurn(), **options_of(None))
    with pytest.raises(UserError, match="reads text alone"):
        asyncio.run(ran)


@pytest.mark.parametrize("layout", ["paths", "tree"])
def test_rows_hold_every_picture_once_and_every_pad_stands_for_its_own(layout):
    samples, pictures = [], {}
    for first, seconds in ((0, (1, 2, 1)), (3, (4, 4, 5))):
        for sample, second in enumerate(seconds):
            trajectory, _, media = episode(first, second, sample)
            samples.append(TrainingSample(trajectory, 1.0 - sample))
            pictures[id(trajectory)] = first, second
    packed, seen = pack(samples, 256, PackingConfig(layout), images=ImageSource(media, 5 * 36)), 0
    for row in packed.rows:
        contents = [content_digest(chunk) for chunk in row.patches]
        assert len(set(contents)) == len(contents) and sum(chunk.patches for chunk in row.patches) <= 5 * 36
    for place in packed.places:
        row, tokens = packed.rows[place.row], place.path.tokens_T
        owner_of = np.repeat(np.arange(len(row.patches)), [chunk.features for chunk in row.patches])
        feature_T = row.media[place.index_T]
        observed_T = np.flatnonzero(feature_T >= 0)
        assert (tokens[observed_T] == PAD).all() and len(observed_T) == 18
        for number, name in enumerate(pictures[id(place.response.trajectory)]):
            part = feature_T[observed_T[9 * number : 9 * number + 9]]
            owner = owner_of[part]
            assert (owner == owner[0]).all() and (np.diff(part) == 1).all()
            assert content_digest(row.patches[owner[0]]) == digest_of(name)
            seen += 1
    assert seen == 12
    if layout == "tree":  # pictures of one size have the same pads, and are different branches
        assert packed.stored_tokens < packed.path_tokens


@pytest.mark.parametrize("layout", ["paths", "tree"])
def test_log_probabilities_of_rows_are_those_of_the_engine_and_others_without_their_pictures(layout):
    config = seeing(**{"data.sequence_length": 256, "data.images.patches": 5 * 36, "train.compute_dtype": "float32"})
    program, media = Program(config), reader()
    # Larger weights, so that pictures matter to a model that has not learnt.
    params = jax.tree.map(lambda leaf: 4 * leaf, program.init().params)
    client = LockstepClient(Engine(config.model, params, slots=4, max_length=256))

    def sampled_episode(place, first, second):
        options = options_of(media, first=first, sample=place) | {"sampling": Sampling(12, temperature=0.8)}
        return run_episode(two_pictures(first, second), client, CHAT, TOKENIZER, TwoPictures(), **options)

    async def sample_all():
        pairs = [(0, 1), (0, 2), (0, 1), (3, 4), (3, 4), (3, 5)]
        return await client.gather(*(sampled_episode(place, *pair) for place, pair in enumerate(pairs)))

    samples = [TrainingSample(trajectory, 1.0) for trajectory in asyncio.run(sample_all())]
    rows = pack(samples, 256, PackingConfig(layout), images=ImageSource(media, 5 * 36)).rows
    score = ScoringPass(config, program.mesh).score_rows
    sampled = np.stack([row.targets.mask > 0 for row in rows])
    recorded = np.stack([row.targets.behavior_logprob for row in rows])[sampled]
    np.testing.assert_allclose(score(params, rows)[sampled], recorded, atol=1e-4)

    turned = [row.replace(media=_turned(row.media)) for row in rows]
    blind = [row.replace(media=None, patches=None) for row in rows]
    for others in (turned, blind):
        assert np.abs(score(params, others)[sampled] - recorded).max() > 0.05


def _turned(feature_S):
    """The features of each picture in the reversed order."""
    pad = feature_S >= 0
    return np.where(pad, feature_S // 9 * 9 + 8 - feature_S % 9, -1).astype(np.int32)


def test_a_batch_has_the_patches_of_all_its_rows_and_padding_has_none():
    trajectory, _, media = episode(0, 1)
    config = seeing()
    packed = pack([TrainingSample(trajectory, 1.0)], 160, PackingConfig(), images=ImageSource(media, 288))
    sharding = Program(config).batch_sharding()
    images = image_batches(sharding, config.model.vision)
    batch = batch_of(packed.rows, padding_like(packed.rows[0]), sharding.rows, images)
    assert (batch.media >= 0).sum() == 18 and batch.media.shape == batch.tokens.shape
    assert (batch.patches.exit > np.arange(288)).sum() == 72


def test_a_response_whose_pictures_fit_no_row_is_left_out_and_returned():
    trajectory, _, media = episode(0, 1)  # of 72 patches
    for patches, left_out in ((40, [trajectory]), (72, [])):
        packed = pack([TrainingSample(trajectory, 1.0)], 160, PackingConfig(), images=ImageSource(media, patches))
        assert [response.trajectory for response in packed.too_large] == left_out
        assert len(packed.rows) == 1 - len(left_out)


def test_pictures_of_one_size_are_different_branches_of_a_tree():
    one, other, same = ([*episode(0, second, answer=(70,))] for second in (1, 2, 1))
    for pair, tokens in (((one, same), 1), ((one, other), 2)):
        samples = [TrainingSample(trajectory, 1.0) for trajectory, _, _ in pair]
        packed = pack(samples, 256, PackingConfig("tree", "paths"), images=ImageSource(one[2], 288))
        second = next(node for node in one[0].nodes[1:] if (node.tokens == PAD).any())
        assert len(packed.rows[0].patches) == 1 + tokens
        shared = packed.path_tokens - packed.stored_tokens
        pads = int(np.flatnonzero(second.tokens == PAD)[0])
        before = sum(len(node.tokens) for node in one[0].nodes[:2]) + pads
        assert shared == (before if tokens == 2 else packed.path_tokens // 2)


NOT_BUILT = r"config\.rl\..* is not built for a model with vision"
DRAWN = {"data.sources": {"drawn": source(kind="synthetic_images", side=64)}}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"rl.loss.mcla.passes": 2, "rl.loss.old": "recompute"}, NOT_BUILT),
        ({"rl.distill.weight": 0.5, "rl.distill.teachers": ("a=somewhere",)}, NOT_BUILT),
        ({"rl.critic.share": 0.5, "rl.critic.max_tokens": 8}, NOT_BUILT),
        (DRAWN | {"rl.loss.ptx": 0.1, "rl.loss.ptx_rows": 2}, r"config\.rl\.loss\.ptx learns .*\.drawn has images"),
    ],
)
def test_what_is_not_built_for_images_is_refused_by_its_key(tmp_path, overrides, words):
    with pytest.raises(UserError, match=words):
        train(seeing(**overrides), tmp_path / "run")
