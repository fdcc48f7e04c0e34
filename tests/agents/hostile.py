"""Verifiers that misbehave, for tests of what runs them."""

import contextlib
import os
from pathlib import Path
import resource
import socket
import struct
import subprocess
import sys
import time

from k2jax.agents.verifier import judges_every_answer
from k2jax.agents.verifier_pool.needed_packages import NeededPackages, needs


@needs(NeededPackages("riddles", ("json", "no_such_package"), "pip install riddles").load)
def incomplete(task, answer):
    return 1.0


def exact(task, answer):
    return float(answer == task.metadata["answer"])


def loop(task, answer):
    while True:
        pass


def flood(task, answer):
    block = "x" * (1 << 20)
    for _ in range(1 << 10):
        print(block)
    sys.stderr.write(block)
    return 1.0


def fork_many(task, answer):
    """A thousand processes that wait, some of them in sessions of their own and without their parents."""
    for number in range(1000):
        if os.fork() == 0:
            if number % 2:
                os.setsid()
            if number % 3 or os.fork() == 0:
                while True:
                    time.sleep(10)
            os._exit(0)
    while True:
        time.sleep(10)


def leave_daemon(task, answer):
    """Gives its verdict, and leaves a process behind whose parent has ended."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()
    return 1.0


def come_back_twice(task, answer):
    """Its child returns as well, and first."""
    if os.fork():
        time.sleep(0.1)
    return 1.0


def open_socket(task, answer):
    """A connection that nobody answers."""
    with socket.socket() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        client.connect(listening.getsockname())
        client.recv(1)


def allocate(task, answer):
    blocks = []
    while True:
        blocks.append(bytearray(1 << 26))


def leave(task, answer):
    os._exit(0)


def quit_python(task, answer):
    sys.exit(0)


def fail(task, answer):
    raise RuntimeError("nothing fits")


def not_a_number(task, answer):
    return float("nan")


def infinite(task, answer):
    return float("inf")


def no_reward(task, answer):
    return "1"


def nothing(task, answer):
    return None


def kill_supervisor(task, answer):
    os.kill(os.getppid(), 9)
    time.sleep(600)


def write_everywhere(task, answer):
    """Sends rubbish on every descriptor, the one of the protocol among them."""
    for descriptor in range(64):
        with contextlib.suppress(OSError):
            os.write(descriptor, struct.pack("!II", 2, 0) + b"{}")
    return 1.0


def ignore_signals(task, answer):
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"])
    while True:
        time.sleep(10)


def mark(task, answer):
    """Writes down its process and one that it has started in a session of its own, and hangs."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    whole = Path(task.metadata["file"]).with_suffix(".part")
    whole.write_text(f"{os.getpid()} {child.pid}")
    whole.rename(task.metadata["file"])
    time.sleep(600)


def once_hostile(task, answer):
    """Ends its process at the first try, and judges at the second."""
    flag = Path(task.metadata["flag"])
    if not flag.exists():
        flag.touch()
        os._exit(3)
    return exact(task, answer)


def count_and_leave(task, answer):
    with open(task.metadata["tries"], "a") as file:
        file.write("x")
    os._exit(0)


def slow(task, answer):
    time.sleep(0.4)
    return 1.0


def explain(task, answer):
    from k2jax.trajectory import Reward

    return Reward(0.5, {"form": 0.25, "content": 0.25}, {"why": ["because", 1]})


def imported(task, answer):
    from k2jax.trajectory import Reward

    return Reward(
        1.0, info={"jax": "jax" in sys.modules, "pid": os.getpid(), "memory": resource.getrlimit(resource.RLIMIT_AS)[0]}
    )


def tell_environment(task, answer):
    """What a verifier sees of the run's variables."""
    from k2jax.trajectory import Reward

    return Reward(1.0, info=dict(os.environ))


@judges_every_answer(lambda task: "right")
def obedient(task, answer):
    """Does what an answer says, or where the task is broken the same on every answer."""
    from k2jax.trajectory import Reward

    action, _, value = task.metadata.get("broken", answer).partition(" ")
    if action in ("loop", "allocate", "leave", "fail", "fork_many", "not_a_number"):
        return globals()[action](task, answer)
    if action == "sleep":
        time.sleep(600)
    if action == "compete":
        _compete(float(value))
    if action == "nest":
        nested = []
        for _ in range(10**5):
            nested = [nested]
        return Reward(0.5, info={"nested": nested})
    if action == "flagged" and not os.path.exists(value):
        Path(value).touch()
        os._exit(3)
    return Reward(float(action in ("right", "flagged")), info={"answer": answer})


def _compete(seconds):
    """Uses the first processor for a while, as one whom others are preferred to ten to one."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.nice(10)
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@judges_every_answer(lambda task: "right")
def misjudging(task, answer):
    """Fails on most answers, and takes the right one for wrong."""
    if answer == "right":
        return 0.0
    raise RuntimeError("nothing fits")


def many_parts(task, answer):
    from k2jax.trajectory import Reward

    return Reward(1.0, {str(number): 0.0 for number in range(2000)})
