"""A follower's engine does what the controller's does, and a difference is found before a program is issued."""

from concurrent.futures import ThreadPoolExecutor
import contextlib
import dataclasses
import threading

import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.inference.request import RequestWatch, State
from k2jax.inference.worker import Worker
from k2jax.processes.command_links import END
from k2jax.rl.followers import follower as following
from k2jax.rl.followers.controller import Controller
from k2jax.rl.followers.digests import digest_of
from k2jax.rl.followers.follower import Follower
from k2jax.rl.followers.request_form import request_of, request_values
from k2jax.train.signals import StopAskedError
from tests.inference.tiny import engine, prompts, with_few_pages
from tests.rl.followers.threads import drop, end, trees


class DifferenceError(Exception):
    """What a follower ends the run with."""


def fail(line):
    raise DifferenceError(line)


@contextlib.contextmanager
def pair(follow):
    """A controller, and the thread of a follower that runs ``follow``; both end well."""
    several, meeting = trees(2)
    with ThreadPoolExecutor(1) as pool:
        followed = pool.submit(follow, Follower(several[1], fail))
        try:
            yield Controller(several[0]), followed
        finally:
            several[1]._frames.put((END, b""))  # nothing comes behind what was sent
        followed.result(200)
    end(several)
    assert not meeting.lost


def issued(engine):
    """Notes the programs of an engine: the hash of what each is given, and the thread that issues it."""
    seen, before = [], engine.programs.before

    def note(name, inputs):
        seen.append((name, digest_of(inputs), threading.current_thread().name))
        before(name, inputs)

    engine.programs.before = note
    return seen


def used(engine):
    stats = engine.stats()
    return stats, [list(pool._free) if hasattr(pool, "_free") else pool.available for pool in engine._scheduler._pools]


def ask(worker, watched):
    """Requests of many kinds, one of which is cancelled and one stopped by its caller."""
    done, ended = [], threading.Event()

    def deliver(completion, error):
        done.append(completion)
        if len(done) == 9:
            ended.set()

    worker.hold()  # all of them are there before the first step
    for number, prompt in enumerate(prompts(5, 9, 3, 20, 7, 5, 5, 12, 6)):
        seen = []
        stop = (lambda token, logprob, seen=seen: seen.append(token) or len(seen) == 3) if number in watched else None
        sampling = Sampling(max_tokens=8 + number, temperature=0.9, seed=number, stop_tokens=(3, 4))
        generated = (7, 8) if number == 4 else ()
        request = worker.submit(prompt, sampling, generated, on_token=RequestWatch(deliver, None, stop))
        if number == 5:
            worker.cancel(request)
    worker.release()
    assert ended.wait(200)
    return done


@pytest.mark.parametrize("watched", [(), (1, 3, 6)], ids=["none is stopped", "three are stopped by their callers"])
def test_a_follower_runs_the_same_programs_whoever_stops_what(watched):
    theirs, raw, other = with_few_pages(engine(), 5), with_few_pages(engine(), 5), engine()
    programs = []

    def follow(commands):
        commands.engine(theirs), commands.engine(other)
        programs.extend([issued(theirs), issued(other)])
        commands.issue_while(None)
        commands.check("phase push", lambda: b"1")
        return commands.share(None)

    with pair(follow) as (commands, followed):
        own_other = engine()
        led, second = commands.engine(raw), commands.engine(own_other)
        own = [issued(raw), issued(own_other)]
        workers = [Worker(led), Worker(second)]
        with ThreadPoolExecutor(2) as pool:
            asked = lambda: list(pool.map(ask, workers, [watched] * 2))  # noqa: E731
            done, beside = commands.issue_while(asked)
        commands.check("phase push", lambda: b"1")
        assert commands.share({"a": np.arange(3)})["a"].tolist() == [0, 1, 2]
        assert followed.result(200)["a"].tolist() == [0, 1, 2]
        for worker in workers:
            worker.stop()
    assert len(done) == len(beside) == 9 and {each.finish for each in done} >= {"cancelled", "stop"}
    for seen, replayed in zip(own, programs, strict=True):
        assert len(seen) > 8
        assert [each[:2] for each in seen] == [each[:2] for each in replayed]
        assert {thread for _, _, thread in seen} == {threading.current_thread().name}
    assert used(theirs) == used(raw) and (watched or raw.stats().preemptions)
    assert theirs.stats().tokens_generated == raw.stats().tokens_generated > 50


def test_a_controller_that_gives_up_an_iteration_is_followed():
    def follow(commands):
        with pytest.raises(StopAskedError):
            commands.issue_while(None)
        return commands.share(None)

    def give_up():
        raise StopAskedError

    with pair(follow) as (commands, followed):
        with pytest.raises(StopAskedError):
            commands.issue_while(give_up)
        commands.share("saved")
        assert followed.result(20) == "saved"


@pytest.mark.parametrize("what", ["seed", "program", "phase", "kind"])
def test_a_difference_is_named_before_the_program_is_issued(what, monkeypatch):
    ran = []

    def follow(commands):
        theirs = commands.engine(engine())
        if what == "seed":
            other = lambda values, engine: request_of(  # noqa: E731
                values | {"sampling": values["sampling"] | {"seed": 5}}, engine
            )
            monkeypatch.setattr(following, "request_of", other)
        if what == "program":
            theirs.max_length = 9
        run = theirs.programs._executables.run
        theirs.programs._executables.run = lambda *given, **static: ran.append(given[0]) or run(*given, **static)
        with pytest.raises(DifferenceError, match=r"it is about to do .* where process 0 does"):
            commands.issue_while(None)
            if what == "phase":
                commands.check("phase train", lambda: b"2")
            commands.share(None)
        return len(ran)

    several, _ = trees(2)
    with ThreadPoolExecutor(1) as pool:
        followed = pool.submit(follow, Follower(several[1], fail))
        commands = Controller(several[0])
        worker = Worker(commands.engine(engine()))
        commands.issue_while(lambda: _generated(worker))
        commands.check("phase train", lambda: b"1")
        several[0]._children[0].send(END)
        before = followed.result(200)
    drop(several)
    worker.stop()
    assert (before == 0) if what == "seed" else before >= 2


def _generated(worker):
    ended = threading.Event()
    sampling = Sampling(max_tokens=20, temperature=0.9, seed=3)
    worker.submit(prompts(5)[0], sampling, on_token=lambda request: request.state == State.FINISHED and ended.set())
    assert ended.wait(200)


def test_a_request_comes_back_with_all_that_scheduling_depends_on():
    run = engine()
    asked = Sampling(max_tokens=9, temperature=0.5, seed=7, stop_tokens=(1, 2), top_logprobs=2, return_experts=False)
    asked = dataclasses.replace(asked, frequency_penalty=0.5, logit_bias=((3, 1.0),), scored_from=2)
    request = run.make_request(prompts(6)[0], asked, (4, 5))
    request.order, request.scored_temperature = (3, 1), 0.5
    back = request_of(request_values(request), run)
    for name in ("prompt", "sampling", "media", "order", "scored_temperature", "tokens", "versions", "state"):
        assert getattr(back, name) == getattr(request, name), name


@pytest.mark.parametrize("ours", [False, True], ids=["ours is well", "ours fails"])
@pytest.mark.parametrize("theirs", [False, True], ids=["theirs is well", "theirs fails"])
def test_a_command_of_all_processes_may_fail_in_all_of_them_and_in_no_single_one(ours, theirs):
    done = []

    def part(name, fails):
        def run(value):
            done.append((name, value, threading.current_thread().name))
            if fails:
                raise UserError(f"{name} cannot")
            return value + 1

        return run

    def follow(commands):
        commands.joint("weights", part("follower", theirs))
        commands.issue_while(None)
        return "went on"

    several, _ = trees(2)
    with ThreadPoolExecutor(1) as pool:
        followed = pool.submit(follow, Follower(several[1], fail))
        commands = Controller(several[0])
        take = commands.joint("weights", part("controller", ours))

        def called():
            with pytest.raises(UserError, match="controller cannot") if ours else contextlib.nullcontext():
                assert take(5) == 6
            return "served"

        assert commands.issue_while(called) == "served"
        several[0]._children[0].send(END)
        outcome = followed.exception(20) or followed.result()
    drop(several)
    assert sorted(each[:2] for each in done) == [("controller", 5), ("follower", 5)]
    assert next(thread for name, _, thread in done if name == "controller") == threading.current_thread().name
    if ours == theirs:
        assert outcome == "went on"
    elif theirs:
        assert isinstance(outcome, UserError) and str(outcome) == "follower cannot"
    else:
        assert isinstance(outcome, DifferenceError) and "'weights well' where process 0 does 'weights with" in str(
            outcome
        )


def test_an_error_that_is_none_of_a_user_ends_the_process_and_not_only_the_thread_that_called():
    several, _ = trees(2)
    commands = Controller(several[0])
    take = commands.joint("weights", lambda value: 1 // value)
    waiting = threading.Event()

    def called():
        with contextlib.suppress(ZeroDivisionError):
            take(0)
        waiting.wait(20)

    with pytest.raises(ZeroDivisionError):
        commands.issue_while(called)
    waiting.set()
    drop(several)
