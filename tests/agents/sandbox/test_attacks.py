"""The lists of attacks on every backend, and what sees whether one was contained."""

import asyncio
import dataclasses

import pytest

from k2jax.agents.sandbox.attacks import ATTACKS, Attack
from k2jax.agents.sandbox.hostile import LIMITS, Outside, attempt
from tests.agents.sandbox.backends import (
    ON_HOST,
    ON_IMAGES,
    PYTHON,
    REMOTE,
    SLOW,
    SPEC,
    in_sandbox,
    open_sandbox,
    survivors,
)
from tests.agents.sandbox.hostile_programs import MEMORY, PROGRAMS

OF_THE_HOST = {"places beside the disk", "inodes up to the limit", "rights", "the host's usual places"}
"""What an image has in another way: a root to write to, a user of its own, and inodes of an overlay."""

TRIED = [("bubblewrap", attack) for attack in ATTACKS] + [
    pytest.param(name, attack, marks=pytest.mark.slow)
    for name in ("bubblewrap without groups", *(each.values[0] for each in (*SLOW, *REMOTE)))
    for attack in ATTACKS
]


def run(name, attack):
    async def use(sandbox):
        return await attempt(attack, sandbox, outside, python=PYTHON.executable, left=lambda: survivors(name))

    with Outside() as outside:
        return in_sandbox(name, use, dataclasses.replace(SPEC, limits=LIMITS))


@pytest.mark.parametrize(("name", "attack"), TRIED, indirect=["name"])
def test_every_attack_is_contained(name, attack):
    assert run(name, ATTACKS[attack]) == ""


@pytest.mark.parametrize("attack", PROGRAMS)
@pytest.mark.parametrize("name", ON_HOST, indirect=True)
def test_programs_get_no_more_than_namespaces_give_them(name, attack):
    assert run(name, PROGRAMS[attack]) == ""


@pytest.mark.parametrize("attack", sorted(set(PROGRAMS) - OF_THE_HOST))
@pytest.mark.parametrize("name", ON_IMAGES, indirect=True)
def test_programs_on_an_image_get_no_more_either(name, attack):
    assert run(name, PROGRAMS[attack]) == ""


@pytest.mark.parametrize("attack", MEMORY)
@pytest.mark.parametrize("name", ["bubblewrap"], indirect=True)
def test_memory_is_counted_over_all_that_runs_in_a_sandbox(name, attack):
    assert run(name, MEMORY[attack]) == ""


def without_a_sandbox(code, **options):
    """What is said about an attack where nothing contains it."""

    async def use():
        async with await open_sandbox("unsafe") as sandbox:
            return await attempt(Attack(code, **options), sandbox, outside, python=PYTHON.executable)

    with Outside() as outside:
        return asyncio.run(use())


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import sys; print(open(sys.argv[1]).read())", "secret"),
        ("import sys; open(sys.argv[1], 'a')", ""),
        ("import sys; open(sys.argv[1], 'a').write('x')", "file of the host"),
        ("import os, sys; os.link(sys.argv[1], sys.argv[1] + '2')", "file of the host"),
        ("import os, sys; os.kill(int(sys.argv[6]), 9); import time; time.sleep(0.2)", "process of the host"),
        ("import socket as s, sys; s.create_connection(('127.0.0.1', int(sys.argv[2])))", "socket"),
        ("import socket as s, sys; s.socket(s.AF_INET, 2).sendto(b'x', ('127.0.0.1', int(sys.argv[3])))", "socket"),
        ("import socket as s, sys; s.socket(s.AF_UNIX).connect('\\0' + sys.argv[4])", "socket"),
        ("import socket as s, sys; s.socket(s.AF_UNIX).connect(sys.argv[5])", "socket"),
    ],
)
def test_harm_is_seen_where_nothing_contains_it(code, found):
    said = without_a_sandbox(code)
    assert found in said if found else "host" not in said
