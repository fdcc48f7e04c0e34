"""Engines of the policy and of frozen roles: who answers as what, and which engine moves when."""

import asyncio
import contextlib

import jax
import numpy as np
import pytest

from k2jax.agents.collect.engine_address import EngineAddress
from k2jax.agents.collect.engine_states import EngineRole
from k2jax.agents.registry import environments
from k2jax.client import Sampling
from k2jax.convert.loading import from_pretrained
from k2jax.inference.loading import load_engine
from k2jax.inference.roles import open_roles, read_role, read_roles
from k2jax.report.metrics import read_metrics
from k2jax.rl.engines import engine_pool, role_engines
from k2jax.rl.engines.engine_pool import EnginePool
from k2jax.rl.engines.role_engines import RoleEngines
from k2jax.rl.loop import train
from k2jax.rl.setup import check_config
from k2jax.trajectory.steps import POLICY, ROLE
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.tool_episodes import BYTES
from tests.refusal import refused
from tests.rl.engines.members import CountingEngine, digest_of, until
from tests.rl.role_folders import write_role
from tests.rl.test_role_schedule import FORCE
from tests.rl.test_roles import SIZES, config_with

EIGHT = Sampling(max_tokens=8)
SEPARATE = {"rl.engines.placement": "separate", "rl.engines.start": 2, "rl.rollout.sampler": "workers"}


class MovingEngine(CountingEngine):
    """Joins again with what it is told to answer as; ``roles`` is all that it has been."""

    def __init__(self, name, role=POLICY):
        super().__init__(name)
        self.roles = [EngineRole(role)]
        self.running = self.waiting = 0

    def state(self):
        state = super().state()
        state.counts.update(running=self.running, waiting=self.waiting)
        return state

    async def serve(self, path):
        while True:
            role = self.roles[-1]
            self.version = role.checkpoint
            self.member._role = role.role
            end = await self.member.serve(EngineAddress(str(path)))
            if not isinstance(end, EngineRole):
                return
            self.roles.append(end)

    @property
    def role(self):
        return self.roles[-1].role


@contextlib.asynccontextmanager
async def opened(path, *engines):
    """Pools of the policy and of the role ``helper``, what moves between them, and what they say."""
    said = []
    pools = {POLICY: EnginePool(64, 4, said.append, "start one")}
    pools["helper"] = pools[POLICY].beside["helper"] = EnginePool(64, 4, said.append, "start one", "helper")
    moves = RoleEngines(pools, said.append)
    for pool in pools.values():
        pool.publish(0, digest_of(0))
        await pool.need(0)
        await pool.watch()
    pools[POLICY].watched = moves.look
    await pools[POLICY].open(path)
    serving = []
    for engine in engines:
        serving.append(asyncio.ensure_future(engine.serve(path)))
        await until(lambda: sum(len(pool.engines) for pool in pools.values()) == len(serving))
        engine.kill = serving[-1].cancel
    try:
        async with asyncio.timeout(20):
            yield pools, said
    finally:
        for pool in pools.values():
            await pool.close()
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(engine_pool, "WATCH", 0.002)
    monkeypatch.setattr(role_engines, "REVIEW_SECONDS", 0.05)


async def test_requests_of_a_role_go_to_its_engines_alone(tmp_path):
    first, second = MovingEngine("first"), MovingEngine("second", "helper")
    async with opened(tmp_path / "s", first, second) as (pools, said):
        await asyncio.gather(
            *(pools[POLICY].generate([1], EIGHT) for _ in range(3)), pools["helper"].generate([1], EIGHT)
        )
        assert (len(first.asked), len(second.asked)) == (3, 1)
        assert "the engine second has joined: 1 engine of helper" in said


async def test_a_role_without_an_engine_gets_one_and_one_of_another_run_the_policys(tmp_path):
    engines = [MovingEngine("first"), MovingEngine("second"), MovingEngine("third", "gone")]
    async with opened(tmp_path / "s", *engines[:2]) as (pools, _):
        await until(lambda: sorted(engine.role for engine in engines[:2]) == ["helper", POLICY])
        await pools["helper"].generate([1], EIGHT)
        serving = asyncio.ensure_future(engines[2].serve(tmp_path / "s"))
        await until(lambda: engines[2].role == POLICY and len(pools[POLICY].engines) == 2)
        next(engine for engine in engines if engine.role == "helper").kill()
        await until(lambda: len(pools["helper"].engines) == 1)
        assert pools[POLICY].record()["engines/lost"] == 0
        serving.cancel()


async def test_an_engine_answers_before_it_moves_to_where_the_work_is(tmp_path):
    helper, *others = engines = [MovingEngine("a", "helper"), *(MovingEngine(name) for name in "bcd")]
    async with opened(tmp_path / "s", *engines) as (pools, said):
        for engine in others:
            engine.hold_at = 3
        asking = [asyncio.ensure_future(pools[POLICY].generate([number], EIGHT)) for number in range(3)]
        await until(lambda: sum(len(engine.asked) for engine in others) == 3)
        assert all(engine.asked for engine in others)
        helper.running, helper.waiting = 4, 12
        await until(lambda: any("is to answer as helper" in line for line in said))
        await asyncio.sleep(0.05)
        assert [engine.role for engine in others] == [POLICY] * 3, "each has a request under way"
        for engine in others:
            engine.go.set()
        answers = await asyncio.gather(*asking)
        assert all(answer.tokens.tolist() == list(range(8)) for answer in answers)
        assert sum(len(engine.asked) for engine in others) == 3, "nothing was asked for twice"
        await until(lambda: len(pools["helper"].engines) >= 2)


async def test_engines_of_a_role_load_its_next_checkpoint(tmp_path):
    engines = [MovingEngine("first"), MovingEngine("second", "helper")]
    async with opened(tmp_path / "s", *engines) as (pools, _):
        pools["helper"].publish(1, digest_of(1))
        await pools["helper"].need(1)
        completion = await pools["helper"].generate([1], EIGHT)
        assert set(completion.versions.tolist()) == {1} and engines[1].roles[-1] == EngineRole("helper", 1)
        assert engines[0].roles == [EngineRole(POLICY)]


async def test_the_only_engine_of_a_role_stays(tmp_path):
    engines = [MovingEngine("first"), MovingEngine("second", "helper")]
    async with opened(tmp_path / "s", *engines):
        engines[1].running, engines[1].waiting = 4, 100
        await asyncio.sleep(0.3)
        assert [engine.role for engine in engines] == [POLICY, "helper"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles")
    return write_role(folder / "small", 2), write_role(folder / "large", 3, layers=3)


def test_the_digest_of_a_checkpoint_is_that_of_the_engine_that_loads_it(folders):
    config = config_with(folders[0], **{FORCE["later"]: (folders[1],), FORCE["from"]: (2,)})
    for number, dtype in ((0, None), (1, None), (1, np.dtype("bfloat16"))):
        engine = load_engine(folders[number], dtype, **SIZES)
        assert read_role(config, "helper", number, None, dtype) == engine.weights.digest()
    elsewhere, here = read_roles(config, BYTES)["helper"], open_roles(config, BYTES, mesh=None)["helper"]
    assert (elsewhere.engine, elsewhere.digest, elsewhere.sampling) == (None, here.digest, here.sampling)


def test_the_policy_and_each_role_need_an_engine():
    check_config(config_with("folder", **SEPARATE))
    check_config(config_with("folder", **SEPARATE | {"rl.engines.start": 0}))
    with refused(r"config.rl.engines.start 1 must be 0, or more than the 1 roles of config.rl.roles"):
        check_config(config_with("folder", **SEPARATE | {"rl.engines.start": 1}))


@pytest.mark.slow
def test_a_run_whose_helper_has_an_engine_of_its_own_and_grows(folders, tmp_path):
    environments.add("consulting", "tests.rl.test_roles:Consulting")
    changes = {
        "rl.tasks.low.environment": "consulting",
        "rl.max_staleness": 1,
        "rl.rollout.look_ahead": 2,
        "rl.eval_prompts": 1,
        "rl.eval_samples": 1,
        "eval.every": 1,
        "checkpoint.every": 1,
        "train.steps": 5,
        "rl.roles.helper.temperature": 1.0,
        FORCE["later"]: (folders[1],),
        FORCE["from"]: (3,),
    }
    config = config_with(folders[0], **SEPARATE, **changes)
    assert train(config, tmp_path / "run") == 0
    records = [record for record in read_metrics(tmp_path / "run") if "reward" in record]
    assert [record["role_checkpoint/helper"] for record in records] == [0, 0, 1, 1, 1]
    assert all(record["engines"] == 1 for record in records) and records[0]["engines/helper"] == 1
    said = {}
    for step in range(1, 6):
        for one in TrajectoryStore(tmp_path / "run" / "trajectories").read(step):
            for child in one.spawned.values():
                assert child.metadata[ROLE] == "helper"
                for number, node in enumerate(child.nodes):
                    for version in set(node.versions[node.mask].tolist()):
                        said.setdefault(version, []).append((child, number))
    assert set(said) == {0, 1}
    for version, nodes in said.items():
        model, params = from_pretrained(folders[version])
        for child, number in nodes[:5]:
            ids, node = np.concatenate([each.tokens for each in child.nodes[: number + 1]]), child.nodes[number]
            logits = model.apply({"params": params}, ids[None, :-1]).logits[0]
            scored = jax.nn.log_softmax(logits)[np.arange(len(ids) - 1), ids[1:]][-len(node.tokens) :]
            of_version = node.mask & (node.versions == version)
            np.testing.assert_allclose(scored[of_version], node.logprobs[of_version], atol=2e-4)
