"""Roles whose checkpoint changes in a run: when, with which bits, and what of it is refused."""

import asyncio
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from k2jax.agents.mixture import DrawnTask
from k2jax.agents.registry import environments
from k2jax.client import Sampling
from k2jax.config import RoleConfig
from k2jax.config.identity import fixed_keys
from k2jax.errors import UserError
from k2jax.inference import LockstepClient
from k2jax.inference.loading import load_engine
from k2jax.inference.roles import number_in, open_roles, read_role, roles_in_lockstep
from k2jax.inference.worker import hand_over
from k2jax.report.metrics import read_metrics
from k2jax.rl.episodes import Episodes
from k2jax.rl.followers.commands import ALONE
from k2jax.rl.groups import PromptGroup
from k2jax.rl.loop import train
from k2jax.rl.methods.role_schedule import RoleSchedule
from k2jax.rl.setup import check_config
from k2jax.text import byte_tokenizer
from k2jax.trajectory.steps import ROLE
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.tool_episodes import BYTES, COMPACT
from tests.refusal import refused
from tests.rl.role_folders import write_role
from tests.rl.runs import assert_equal_runs
from tests.rl.test_roles import SIZES, Judge, asked, bits, config_with, watched

FORCE = {"later": "rl.roles.helper.later", "from": "rl.roles.helper.later_from"}


@pytest.fixture(autouse=True)
def consulting():
    environments.add("consulting", "tests.rl.test_roles:Consulting")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The policy, a helper, and a larger one that replaces it."""
    folder = tmp_path_factory.mktemp("schedule")
    small = [write_role(folder / name, seed) for name, seed in (("policy", 1), ("small", 2))]
    return [*small, write_role(folder / "large", 3, layers=3)]


def scheduled(folders, **changes):
    return config_with(folders[1], **{FORCE["later"]: (folders[2],), FORCE["from"]: (2,), **changes})


def test_the_checkpoint_of_an_iteration_is_the_last_one_that_has_begun():
    role = RoleConfig(checkpoint="a", later=("b", "c"), later_from=(3, 6))
    assert [number_in(role, iteration) for iteration in range(1, 8)] == [0, 0, 1, 1, 1, 2, 2]
    assert number_in(RoleConfig(checkpoint="a"), 10**6) == 0


@pytest.mark.parametrize("begins", [(1,), (2, 2), (3, 2), (), (2, 3, 4)])
def test_iterations_of_a_schedule_ascend_from_the_second(begins):
    with refused(r"roles.helper.later_from .* must ascend from 2, with one iteration for each of the 2 checkpoints"):
        config_with("a", **{FORCE["later"]: ("b", "c"), FORCE["from"]: begins})


def test_an_iteration_that_does_not_come_is_refused():
    config = config_with("a", **{FORCE["later"]: ("b",), FORCE["from"]: (5,), "train.steps": 4})
    with refused(r"later_from \(5,\) names an iteration that does not come: config.train.steps is 4"):
        check_config(config)


def test_a_later_checkpoint_with_another_vocabulary_or_none_is_refused_before_the_run_begins(folders, tmp_path):
    other = write_role(tmp_path / "other", 3, byte_tokenizer(["<other>"]))
    with refused("roles.helper.later .* has another vocabulary"):
        open_roles(scheduled(folders, **{FORCE["later"]: (other,)}), BYTES, mesh=None)
    with refused("nowhere"):
        open_roles(scheduled(folders, **{FORCE["later"]: (str(tmp_path / "nowhere"),)}), BYTES, mesh=None)


def test_the_hash_of_a_checkpoint_is_of_its_weights(folders, tmp_path):
    config = scheduled(folders)
    moved = scheduled(folders, **{FORCE["later"]: (str(shutil.copytree(folders[2], tmp_path / "moved")),)})
    hashes = [read_role(config, "helper", number, None) for number in (0, 1)]
    assert hashes[0] != hashes[1] == read_role(moved, "helper", 1, None)


def test_requests_go_on_behind_their_tokens_with_an_engine_of_another_architecture(folders):
    old, new, alone = (load_engine(folder, **SIZES) for folder in (folders[1], folders[2], folders[2]))
    new.version = 1
    sampling = Sampling(max_tokens=24, temperature=0.0)
    requests = [old.submit(BYTES.encode(text), sampling) for text in ("one", "two")]
    for _ in range(3):
        old.step()
    requests.append(old.submit(BYTES.encode("three"), sampling))
    before = [list(each.tokens) for each in requests]
    assert [bool(tokens) for tokens in before] == [True, True, False]
    hand_over(old, new)
    assert not old.has_work() and new.has_work()
    while new.has_work():
        new.step()
    for request, tokens in zip(requests, before, strict=True):
        assert request.finish_reason and list(request.tokens[: len(tokens)]) == tokens
        versions = [0] * len(tokens) + [1] * (len(request.tokens) - len(tokens))
        assert list(request.versions) == versions
        again = alone.submit(request.prompt, sampling, tokens)
        while alone.has_work():
            alone.step()
        assert again.tokens == request.tokens and len(request.tokens) > len(tokens)


class Run:
    """Two iterations of one group that asks the helper, from a step on; the requests to each engine of the helper."""

    def __init__(self, config, folders, start):
        self.policy, models = load_engine(folders[0], **SIZES), open_roles(config, BYTES, mesh=None)
        client = LockstepClient(self.policy)
        roles = roles_in_lockstep(client, COMPACT, BYTES, models)
        self.helper, self.notes = roles["helper"].client, []
        self.episodes = Episodes(config, client, COMPACT, BYTES, Judge(), roles=roles)
        devices = np.array(jax.devices()[:1])
        program = SimpleNamespace(
            config=config, mesh=SimpleNamespace(devices=devices), layout=SimpleNamespace(platform="cpu")
        )
        self.schedule = RoleSchedule.open(
            SimpleNamespace(config=config, program=program, identity={}, commands=ALONE), []
        )
        self.schedule.begin(SimpleNamespace(start=start, note=self.notes.append), self)

    def iteration(self, step):
        """The trajectories, and what the helper was asked for in this iteration."""
        requests = watched(self.helper.engine)
        group = PromptGroup(0, (step, 0), DrawnTask("low", asked("bc")), [None] * 2)
        asyncio.run(self.episodes.run(step, [group]))
        record = self.schedule.record(step, [group])
        return group.trajectories, sorted(requests, key=lambda request: request.order), record


def test_another_checkpoint_answers_from_its_iteration_on_and_after_a_resume_behind_it(folders):
    config = scheduled(folders)
    whole = Run(config, folders, 0)
    (_, first, record), (episodes, second, later) = whole.iteration(1), whole.iteration(2)
    assert (record, later) == ({"role_checkpoint/helper": 0}, {"role_checkpoint/helper": 1})
    assert whole.notes == ["iteration 2: checkpoint 1 after the first answers as helper"]
    for requests, folder, version in ((first, folders[1], 0), (second, folders[2], 1)):
        alone = load_engine(folder, **SIZES).generate(
            [each.prompt for each in requests], [each.sampling for each in requests]
        )
        assert bits(alone) == bits(requests) and len(requests) == 4
        assert {int(each) for request in requests for each in request.versions} == {version}
    resumed = Run(config, folders, 1)
    again, requests, _ = resumed.iteration(2)
    assert bits(requests) == bits(second) and resumed.notes == whole.notes
    assert [one.metadata for one in again] == [one.metadata for one in episodes]
    assert whole.helper.busy_seconds > 0


def test_an_engine_is_not_exchanged_while_somebody_waits_for_it(folders):
    client = LockstepClient(load_engine(folders[1], **SIZES))

    async def asks():
        await client.generate(BYTES.encode("ab"), Sampling(max_tokens=4))

    async def exchanges():
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="while nobody waits"):
            client.exchange(client.engine)

    async def both():
        await client.gather(asks(), exchanges())

    asyncio.run(both())


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["lockstep", "workers"])
def test_a_run_whose_helper_grows_half_way_is_resumed_behind_that(folders, tmp_path, sampler):
    """In lockstep bit for bit; the caches of engines are given back while the policy trains."""
    changes = {
        "rl.rollout.sampler": sampler,
        "rl.tasks.low.environment": "consulting",
        "rl.rollout.offload_state": True,
        "rl.eval_prompts": 1,
        "rl.eval_samples": 1,
        "eval.every": 1,
        "optimizer.schedule.kind": "constant",
        "optimizer.schedule.warmup_steps": 1,
        "checkpoint.every": 1,
        "train.steps": 3,
    }
    config = scheduled(folders, **changes)
    assert train(config, tmp_path / "whole") == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "3")
    assert train(config, tmp_path / "half") == 0
    if sampler == "lockstep":
        assert_equal_runs(tmp_path / "half", tmp_path / "whole")
    records = [record for record in read_metrics(tmp_path / "half") if "reward" in record]
    assert [record["role_checkpoint/helper"] for record in records] == [0, 1, 1]
    busy = [record["engine_busy/helper"] for record in records]  # of workers, the window may have run ahead
    assert all(0 <= share <= 1 for share in busy) and max(busy) > 0
    for step, version in ((1, 0), (3, 1)):
        stored = list(TrajectoryStore(tmp_path / "half" / "trajectories").read(step))
        helpers = [child for one in stored for child in one.spawned.values() if child.metadata[ROLE] == "helper"]
        versions = {int(each) for child in helpers for node in child.nodes for each in node.versions[node.mask]}
        assert version in versions
    other = scheduled(folders, **changes, **{FORCE["later"]: (folders[1],)})
    with pytest.raises(UserError, match="checkpoint 1 after the first of the role helper"):
        train(other, tmp_path / "half")


def test_a_schedule_belongs_to_the_run_and_the_path_of_a_checkpoint_does_not():
    keys = fixed_keys(scheduled("abc"))
    assert "rl.roles.helper.later_from" in keys and "rl.roles.helper.later" not in keys
