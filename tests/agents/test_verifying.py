"""Verifiers cost their time limit at most: whatever they do, the pool answers, goes on, and leaves nothing behind."""

import asyncio
import contextlib
import os
from pathlib import Path
import re
import subprocess
import sys
import time

import pytest

from k2jax.agents import Task
from k2jax.agents.errors import VerifierError
from k2jax.agents.registry import verifiers
from k2jax.agents.verifier import FAILED
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.agents.verifier_pool.verdict_clock import TICK, VerdictClock
from k2jax.agents.verifier_pool.verifier_messages import ANSWER, BUSY, UNCLEAR
from k2jax.errors import InfrastructureError, UserError
from k2jax.files.process_tree import Activity
from k2jax.trajectory import Reward, Trajectory
from tests.emulated import ROOT
from tests.refusal import refused

TIMEOUT = 0.5  # [s]


def task(verifier: str, **metadata) -> Task:
    return Task("t", "d", ({"role": "user", "content": "?"},), verifier, metadata={"answer": "3", **metadata})


def descendants_of(pid: int) -> set[int]:
    """Processes below one, by /proc; independent of what is tested."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "status").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields.split("PPid:")[1].split()[0])
    found, before = {pid}, set()
    while found != before:
        before = set(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found - {pid}


@pytest.fixture(scope="module", autouse=True)
def _hostile_verifiers():
    from tests.agents import hostile

    names = [name for name, value in vars(hostile).items() if callable(value) and value.__module__ == hostile.__name__]
    for name in names:
        verifiers.add(name, f"tests.agents.hostile:{name}")
    yield
    for name in names:
        del verifiers.added[name]


@pytest.fixture(scope="module")
def pool():
    with VerifierPool(workers=1, timeout=TIMEOUT, retries=0, memory=1 << 30) as pool:
        yield pool


def judged(pool, verifier, answer="3", **metadata):
    return asyncio.run(pool.score_answer(task(verifier, **metadata), answer))


def slowness() -> float:
    """How much longer than its processor time a process takes here now."""
    began, end = time.monotonic(), time.process_time() + 0.3
    while time.process_time() < end:
        pass
    return (time.monotonic() - began) / 0.3


def test_what_a_verifier_needs_is_missed_when_it_is_loaded(pool):
    why = "^riddles needs the package no_such_package, which is not installed: pip install riddles$"
    with refused(why):
        asyncio.run(pool.judged_by([task("exact"), task("incomplete")]))
    with refused(why):
        judged(pool, "incomplete")
    assert asyncio.run(pool.judged_by([task("exact")])) == {"answer"} and judged(pool, "exact").value == 1


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        ("loop", "no verdict in 0.5 s"),
        ("flood", None),
        ("fork_many", r"more than 64 processes|no verdict in"),
        ("open_socket", "no verdict in 0.5 s"),
        ("allocate", r"raised MemoryError|no verdict in"),
        ("leave", "end of the connection"),
        ("quit_python", "raised SystemExit"),
        ("fail", "raised RuntimeError: 'nothing fits'"),
        ("not_a_number", "no reward of finite numbers"),
        ("infinite", "no reward of finite numbers"),
        ("no_reward", "no reward of finite numbers"),
        ("nothing", "no reward of finite numbers"),
        ("kill_supervisor", "supervisor of the verifier's process died"),
        ("write_everywhere", "sent what was not asked"),
        ("ignore_signals", "no verdict in 0.5 s"),
        ("come_back_twice", None),
    ],
)
def test_a_hostile_verifier_costs_its_time_limit_and_is_never_a_reward_of_zero(pool, verifier, reason):
    assert judged(pool, "exact").value == 1
    began = time.monotonic()
    if reason is None:  # it may end in time
        with contextlib.suppress(VerifierError):
            assert judged(pool, verifier).value == 1
    else:
        with pytest.raises(VerifierError, match=reason) as caught:
            judged(pool, verifier)
        assert isinstance(caught.value, InfrastructureError)
    took = time.monotonic() - began
    assert took < TIMEOUT + 5 or took < (TIMEOUT + 5) * slowness()  # other work on the cores delays verdict and kill
    assert judged(pool, "exact", "4").value == 0
    assert judged(pool, "exact").value == 1


def test_a_verifier_with_too_many_processes_is_stopped_before_its_time_is_up():
    with VerifierPool(workers=1, timeout=60, retries=0) as pool, pytest.raises(VerifierError, match="more than 64"):
        judged(pool, "fork_many")


def test_processes_that_a_verifier_leaves_behind_are_killed_and_nothing_is_left_when_a_pool_is_closed():
    before = descendants_of(os.getpid())
    with VerifierPool(workers=1, timeout=TIMEOUT, retries=0) as pool:
        assert judged(pool, "leave_daemon").value == 1
        assert judged(pool, "exact").value == 1
        assert len(descendants_of(os.getpid()) - before) == 2  # the supervisor and its worker
        with pytest.raises(VerifierError):
            judged(pool, "ignore_signals")
    assert descendants_of(os.getpid()) == before


def test_a_verdict_that_fails_once_is_tried_again_in_a_new_process_before_the_answer_is_blamed(tmp_path):
    with VerifierPool(workers=1, timeout=5, retries=1) as pool:
        assert judged(pool, "once_hostile", flag=str(tmp_path / "flag")).value == 1
        assert judged(pool, "obedient", f"flagged {tmp_path / 'another'}").value == 1


def test_the_number_of_tries_is_the_configured_one(tmp_path):
    with VerifierPool(workers=1, timeout=5, retries=2) as pool, pytest.raises(VerifierError, match="after 3 tries"):
        judged(pool, "count_and_leave", tries=str(tmp_path / "tries"))
    assert (tmp_path / "tries").read_text() == "xxx"


def test_a_pool_says_which_verifiers_need_a_sandbox(pool, monkeypatch):
    monkeypatch.setitem(verifiers.added, "boxed", "tests.agents.test_verdicts:NeedsSandbox")
    assert asyncio.run(pool.judges("boxed")) == "episode in a sandbox"
    assert asyncio.run(pool.judges("exact")) == "answer"
    with pytest.raises(UserError, match="no verifier 'exat'"):
        asyncio.run(pool.judges("exat"))


def test_time_counts_from_the_beginning_of_the_work_and_not_of_the_queue():
    async def many(pool):
        return await asyncio.gather(*(pool.score_answer(task("slow"), "3") for _ in range(6)))

    with VerifierPool(workers=2, timeout=0.9, retries=0) as pool:
        assert [reward.value for reward in asyncio.run(many(pool))] == [1] * 6  # the last waits for 0.8 s


def test_a_reward_comes_with_its_parts_and_information(pool):
    assert judged(pool, "explain") == Reward(0.5, {"form": 0.25, "content": 0.25}, {"why": ["because", 1]})


def test_workers_have_no_jax_and_a_memory_limit_and_are_kept_between_verdicts(pool):
    first, second = (judged(pool, "imported").info for _ in range(2))
    assert first == second and (first["jax"], first["memory"]) == (False, 1 << 30)


def test_verifiers_see_no_keys_of_the_run_but_those_that_are_named(monkeypatch):
    hidden = ("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "PYTHON_KEYRING", "K2JAX_API_KEYS")
    for name in (*hidden, "HF_HOME", "LC_ALL", "WANTED_KEY"):
        monkeypatch.setenv(name, "C")
    with VerifierPool(workers=1, timeout=5, environment=("WANTED_KEY",)) as pool:
        seen = judged(pool, "tell_environment").info
    assert not seen.keys() & set(hidden) and {"PATH", "HF_HOME", "LC_ALL", "WANTED_KEY", "PYTHONPATH"} <= seen.keys()


def test_an_unknown_verifier_is_the_users_mistake_and_is_not_tried_again(pool):
    with pytest.raises(UserError, match="no verifier 'exat'; did you mean 'exact'"):
        judged(pool, "exat")
    assert judged(pool, "exact").value == 1


def test_answers_of_any_text_arrive_unchanged(pool):
    for text in ("", "\ud800", "\x00\n\u2028", "x" * (5 << 20)):
        same = Task("t", "d", ({"role": "user", "content": "?"},), "exact", metadata={"answer": text})
        assert asyncio.run(pool.score_answer(same, text)).value == 1


def test_an_episode_cut_by_its_budget_has_no_answer_and_an_unfinished_one_no_reward(pool):
    trajectory = Trajectory("t", "d", (0, 0, 0), status="truncated")
    assert asyncio.run(pool.score(task("fail"), trajectory)) == Reward(0.0, info={"cut": True})
    for status in ("unfinished", "masked"):
        trajectory.status = status
        with pytest.raises(ValueError, match="has no reward"):
            asyncio.run(pool.score(task("exact"), trajectory))


def test_many_verdicts_in_several_loops_of_events_are_right_and_in_order():
    async def many(pool, answers):
        return await asyncio.gather(*(pool.score_answer(task("exact"), answer) for answer in answers))

    answers = ["3", "4"] * 50
    with VerifierPool(workers=2, timeout=5, retries=0) as pool:
        for _ in range(2):
            assert [r.value for r in asyncio.run(many(pool, answers))] == [float(a == "3") for a in answers]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("loop", "no verdict in 0.5 s of processor time"),
        ("allocate", "raised MemoryError|no verdict in"),
        ("leave", "end of the connection"),
        ("fail", "raised RuntimeError: 'nothing fits'"),
        ("not_a_number", "no reward of finite numbers"),
        ("fork_many", "more than 64 processes|no verdict in"),
        ("nest", "raised RecursionError"),
        ("\0" * (11 << 20), "bytes is too long"),
    ],
    ids=lambda text: text[:20].strip("\0") or "long",
)
def test_an_answer_on_which_alone_a_verifier_fails_is_worth_0_where_the_verifier_judges_every_answer(
    pool, answer, reason
):
    """Otherwise a policy learns to be masked rather than wrong."""
    assert judged(pool, "obedient", "right").value == 1
    reward = judged(pool, "obedient", answer)
    assert reward.value == 0 and re.search(reason, reward.info[FAILED])
    assert judged(pool, "obedient", "right").value == 1


@pytest.mark.parametrize("broken", ["loop", "leave", "fail"])
def test_a_verifier_that_fails_on_the_control_answer_too_masks_the_sample(pool, broken):
    with pytest.raises(VerifierError, match="nor on its control answer"):
        judged(pool, "obedient", "loop", broken=broken)


def test_a_verifier_that_judges_its_control_answer_wrongly_is_to_blame(pool):
    with pytest.raises(VerifierError, match="nor on its control answer: its reward is 0 and not 1"):
        judged(pool, "misjudging", "x")


SPIN = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"


def test_a_process_that_gets_little_of_a_busy_machine_is_waited_for():
    with VerifierPool(1, timeout=0.1, retries=0) as pool, subprocess.Popen([sys.executable, "-c", SPIN]) as other:
        try:
            assert judged(pool, "obedient", "right").value == 1
            began = time.monotonic()
            assert judged(pool, "obedient", "compete 0.08") == Reward(0.0, {}, {"answer": "compete 0.08"})
            assert time.monotonic() - began > 6 * 0.08  # it did get little
        finally:
            other.kill()


def test_an_answer_on_which_alone_a_verifier_sleeps_is_worth_0():
    with VerifierPool(1, timeout=0.1, retries=0) as pool:
        reward = judged(pool, "obedient", "sleep")
    assert reward.value == 0 and "waited for 0.6 s without using the processor" in reward.info[FAILED]


@pytest.mark.parametrize(
    ("state", "share", "judges", "reason", "seconds"),
    [
        ("R", 1.0, True, "2 s of processor time", 2.1),
        ("R", 1.0, False, "no verdict in 2 s", 2.1),
        ("S", 0.0, True, "waited for 12 s", 12.1),
        ("S", 0.0, False, "no verdict in 2 s", 2.1),
        ("T", 0.0, False, "no verdict in 2 s", 2.1),
        ("R", 0.1, True, "2 s of processor time", 20.1),
        ("R", 0.1, False, "no verdict in 2 s", 20.1),
        ("R", 0.001, True, "gave the verifier 0.24 s of processor time in 240 s", 240.1),
        ("R", 0.001, False, "gave the verifier 0.24 s of processor time in 240 s", 240.1),
        ("D", 0.0, False, "gave the verifier 0 s", 240.1),
    ],
)
def test_a_verdict_has_its_time_as_its_processes_have_it(monkeypatch, state, share, judges, reason, seconds):
    """A process in a state, with a share of a processor, whose verdict may take 2 s: what ends it, and when."""
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    clock = VerdictClock({1: Activity(5.0, state)}, 2.0, judges_every_answer=judges)
    fault = None
    while fault is None:
        now += TICK
        fault = clock.look({1: Activity(5.0 + share * (now - 1000.0), state), 2: Activity(0.0, "Z")})
    assert reason in fault.reason and abs(now - 1000 - seconds) < 0.15
    assert fault.blame == (BUSY if "gave" in reason else ANSWER if judges and "processor time" in reason else UNCLEAR)


def test_what_a_verdict_says_is_bounded(pool):
    for answer, info in (("y" * 1000, {"answer": "y" * 1000}), ("y" * (40 << 20), {"left_out": (40 << 20) + 14})):
        assert judged(pool, "obedient", answer) == Reward(0.0, {}, info)
    with pytest.raises(VerifierError, match="parts"):
        judged(pool, "many_parts")


KILLED = """
import asyncio, sys, threading, time, os
from k2jax.agents import Task
from k2jax.agents.registry import verifiers
from k2jax.agents.verifier import FAILED
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.files.process_tree import Activity
from k2jax.agents.verifier_pool.verdict_clock import TICK, VerdictClock
from k2jax.agents.verifier_pool.verifier_messages import ANSWER, BUSY, UNCLEAR
verifiers.add("mark", "tests.agents.hostile:mark")
task = Task("t", "d", (), "mark", metadata={"file": sys.argv[1]})
threading.Thread(target=lambda: asyncio.run(VerifierPool(1, 60, 0).score_answer(task, "")), daemon=True).start()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


def test_the_death_of_the_run_ends_its_verifiers_and_what_they_started(tmp_path):
    file = tmp_path / "pids"
    subprocess.run([sys.executable, "-c", KILLED, str(file)], cwd=ROOT, timeout=60)
    pids = [int(pid) for pid in file.read_text().split()]
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)
