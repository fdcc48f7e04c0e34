"""Pools: every lease gets a sandbox of its own and gives it back, whatever happens in it."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.sandbox import SandboxError, SandboxSpec
from k2jax.agents.sandbox.pool import SandboxPool
from k2jax.errors import UserError
from tests.agents.sandbox.backends import SPEC, backend, python, survivors


class FakeSandbox:
    """Counts itself among the open ones."""

    def __init__(self, owner):
        self.owner, self.users = owner, 0
        owner.open_now.add(self)

    async def exec(self, argv, **options):
        await asyncio.sleep(0)
        return type("Result", (), {"code": self.owner.draw() % 3 == 0})()

    async def list(self, path, limit=1000):
        return []

    async def close(self):
        await asyncio.sleep(0)
        self.owner.open_now.discard(self)


class FakeBackend:
    """Opens sandboxes after a turn of the loop or two, and sometimes fails."""

    def __init__(self, numbers):
        self.open_now, self.most, self._numbers = set(), 0, iter(numbers)

    def draw(self):
        return next(self._numbers, 1)

    async def open(self, spec):
        number = self.draw()
        for _ in range(number % 4):
            await asyncio.sleep(0)
        if number % 7 == 6:
            raise SandboxError("no")
        sandbox = FakeSandbox(self)
        self.most = max(self.most, len(self.open_now))
        return sandbox


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["use", "raise", "cancel"])), max_size=12),
    st.lists(st.integers(0, 20), max_size=40),
    st.integers(0, 3),
    st.sampled_from(["fresh", "clean"]),
)
@settings(max_examples=60)
def test_no_lease_leaks_and_none_is_shared_and_the_limit_holds(leases, numbers, warm, reset):
    made = FakeBackend(numbers)

    async def lease(pool, turns, end):
        async with pool.lease() as sandbox:
            sandbox.users += 1
            assert sandbox.users == 1
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
                if end == "raise":
                    raise KeyError
            finally:
                sandbox.users -= 1

    async def run():
        async with SandboxPool(made, SandboxSpec(), warm=warm, most=3, reset=reset) as pool:
            tasks = []
            for turns, end in leases:
                tasks.append(asyncio.create_task(lease(pool, turns, end)))
                if end == "cancel":
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    tasks[-1].cancel()
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
            assert not any(isinstance(result, AssertionError) for result in results)
            assert pool.leased == 0
            if not numbers:  # nothing fails by itself
                assert all(result is None for result, (_, end) in zip(results, leases, strict=True) if end == "use")
        assert not made.open_now and pool.idle == pool._existing == 0
        with pytest.raises(SandboxError, match="closed"):
            async with pool.lease():
                pass

    asyncio.run(run())
    assert made.most <= 3


def test_a_lease_that_ends_after_its_pool_is_closed_too():
    made = FakeBackend([])

    async def run():
        pool = SandboxPool(made, SandboxSpec(), warm=1, most=2)
        async with pool, pool.lease():
            await pool.close()
            assert len(made.open_now) == 1
        assert not made.open_now

    asyncio.run(run())


def test_a_backend_that_fails_is_not_asked_again_and_again():
    """Only leases try anew."""
    asked = []

    class Broken:
        async def open(self, spec):
            asked.append(spec)
            await asyncio.sleep(0)
            raise SandboxError("no")

    async def run():
        async with SandboxPool(Broken(), SandboxSpec(), warm=3, most=4) as pool:
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(asked) == 3
            with pytest.raises(SandboxError, match="no"):
                async with pool.lease():
                    pass
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(asked) == 4 and pool._existing == 0

    asyncio.run(run())


def test_a_sandbox_whose_cleaning_breaks_is_closed():
    made = FakeBackend([])

    async def broken(argv, **options):
        raise RuntimeError("whatever")

    async def run():
        async with SandboxPool(made, SandboxSpec(), warm=0, most=1, reset="clean") as pool:
            for _ in range(2):  # the second finds room
                with pytest.raises(RuntimeError):
                    async with pool.lease() as sandbox:
                        sandbox.exec = broken
                assert not made.open_now and pool._existing == 0

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_clean_sandbox_has_nothing_of_the_lease_before():
    """Files that resist are deleted, or the sandbox is another."""
    leave = [
        "mkdir -p deep/er; touch deep/er/x; chmod 0 deep; ln -s / link; mkfifo pipe; touch /tmp/t /dev/shm/s",
        "touch x; chmod 000 /work /tmp",
        "true",
    ]

    async def run():
        opened, seen = [], []
        async with SandboxPool(backend("bubblewrap"), SPEC, warm=0, most=1, reset="clean") as pool:
            for line in leave:
                async with pool.lease() as sandbox:
                    assert not survivors("bubblewrap")
                    result = await sandbox.exec(["sh", "-c", "ls -A /work /tmp /dev/shm; stat -c %a . /tmp"])
                    seen.append(result.stdout)
                    process = await sandbox.start(["sh", "-c", "exec setsid sleep 60"])
                    await sandbox.exec(["sh", "-c", line])
                    opened.append(sandbox)
                process.connection.close()
            assert pool.opened == 1 and len(set(map(id, opened))) == 1
        return seen

    seen = asyncio.run(run())
    assert set(seen) == {b"/dev/shm:\n\n/tmp:\n\n/work:\n755\n1777\n"}
    assert not survivors("bubblewrap")


def test_a_fresh_sandbox_is_never_the_one_before():
    async def run():
        async with SandboxPool(backend("bubblewrap"), SPEC, warm=1, most=2) as pool:
            async with pool.lease() as one:
                await one.write("x", b"")
            async with pool.lease() as other:
                assert other is not one and not await other.list("/work")
                return (await other.exec(python("print(1)"))).stdout

    assert asyncio.run(run()) == b"1\n"
    assert not survivors("bubblewrap")


@pytest.mark.parametrize("sizes", [{"warm": 3, "most": 2}, {"warm": -1}, {"most": 0, "warm": 0}, {"reset": "maybe"}])
def test_a_pool_that_cannot_be_is_refused(sizes):
    with pytest.raises(UserError):
        SandboxPool(FakeBackend([]), SandboxSpec(), **sizes)
