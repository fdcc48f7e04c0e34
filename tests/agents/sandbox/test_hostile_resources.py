"""Programs that want all of a machine: processes, memory, disk and output run out for themselves alone."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.agents.sandbox.backends import backend, python
from tests.agents.sandbox.hostile_programs import MEBI, SMALL, attack, every_backend, said

pytestmark = pytest.mark.usefixtures("witness")


@every_backend
def test_a_fork_bomb_costs_its_time_limit(name):
    result = attack(name, "import os\nwhile True:\n try: os.fork()\n except OSError: pass", spec=SMALL, timeout=1.0)
    assert result.timed_out


@every_backend
def test_there_are_never_more_processes_than_the_limit(name):
    code = """
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0: time.sleep(60)
        n += 1
except OSError: pass
print(n)
"""
    assert 10 <= int(said(attack(name, code, spec=SMALL))) < SMALL.limits.processes


@every_backend
def test_there_are_never_more_threads_than_the_limit(name):
    code = """
import threading, time
threading.stack_size(65536)
n = 0
try:
    while n < 500:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        n += 1
except RuntimeError: pass
print(n, flush=True)
import os; os._exit(0)
"""
    assert 5 <= int(said(attack(name, code, spec=SMALL))) < SMALL.limits.processes


@every_backend
def test_a_memory_bomb_ends_itself_only(name):
    result = attack(name, "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))", spec=SMALL)
    assert result.code != 0 and not result.timed_out
    if backend(name).capabilities.memory == "cgroup":
        assert result.out_of_memory and result.code == 137


def test_memory_is_counted_over_all_processes_and_memory_files():
    code = """
import os, time
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        x = bytearray(b'x' * (40 << 20))
        time.sleep(1)
        os._exit(0)
    children.append(pid)
print(sum(os.waitpid(pid, 0)[1] != 0 for pid in children))
"""
    result = attack("bubblewrap", code, spec=SMALL)
    assert int(said(result)) >= 2 and result.out_of_memory
    code = """
import os
while True: os.write(os.memfd_create('x'), b'x' * (1 << 20))
"""
    result = attack("bubblewrap", code, spec=SMALL)
    assert result.code == 137 and result.out_of_memory


@every_backend
def test_a_full_disk_is_the_programs_own(name):
    code = """
import os
total = 0
for folder in ('/work', '/tmp', '/dev/shm'):
    for i in range(8):
        with open(f'{folder}/{i}', 'wb', buffering=0) as f:
            try:
                while True: total += f.write(b'x' * 65536)
            except OSError as error: print(error.errno)
print(total)
"""
    *_, total = said(attack(name, code, spec=SMALL)).split()
    assert SMALL.limits.disk // 2 < int(total) <= SMALL.limits.disk


@every_backend
def test_no_place_beside_the_limited_disk_can_be_written(name):
    code = """
import os
found = []
for top, folders, _ in os.walk('/'):
    if top == '/proc': folders.clear()
    try: open(f'{top}/probe', 'w').close()
    except OSError: continue
    found.append(top)
print(sorted(found))
"""
    assert said(attack(name, code, timeout=60)).strip() == "['/dev/shm', '/tmp', '/work']"


@every_backend
def test_inodes_run_out_for_the_program_alone(name):
    code = """
import os
n = 0
try:
    while n < 100000:
        os.mkdir(f'/work/{n}') if n % 2 else open(f'/tmp/{n}', 'w').close()
        n += 1
except OSError as error: print(error.errno, n)
"""
    number, made = map(int, said(attack(name, code, spec=SMALL)).split())
    assert (number, made) == (28, SMALL.limits.files)


@every_backend
def test_a_flood_of_output_is_cut_and_needs_no_memory(name):
    def memory():
        pids = [backend(name)._link._process.pid, os.getpid()]
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)

    attack(name, "pass")
    before = memory()
    code = "import os\nif os.fork(): os.dup2(2, 1)\nwhile True: os.write(1, b'y' * 65536)"
    result = attack(name, code, timeout=1.0, output_limit=1000)
    assert result.timed_out and result.truncated and result.stdout == result.stderr == b"y" * 1000
    assert memory() - before < 8 * MEBI


@every_backend
def test_a_flood_of_zombies_stays_inside(name):
    code = "import os\nwhile True:\n try:\n  if os.fork() == 0: os._exit(0)\n except OSError: pass"
    assert attack(name, code, spec=SMALL, timeout=0.7).timed_out


@every_backend
def test_many_attacks_at_once_leave_each_other_alone(name):
    codes = ["while True: pass", "import os\nwhile True:\n try: os.fork()\n except OSError: pass", "print('fine')"]

    async def one(code):
        async with await backend(name).open(SMALL) as sandbox:
            return await sandbox.exec(python(code), timeout=3.0)

    async def run():
        return await asyncio.gather(*(one(code) for code in codes * 2))

    results = asyncio.run(run())
    assert [result.timed_out for result in results] == [True, True, False] * 2
    assert results[2].stdout == results[5].stdout == b"fine\n"
