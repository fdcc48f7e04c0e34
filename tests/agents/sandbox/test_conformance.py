"""What every backend does the same: commands with their outputs and ends, files, closing."""

import asyncio
import dataclasses
import os
import time

import pytest

from k2jax.agents.sandbox import SandboxError
from k2jax.agents.sandbox.backends import BACKENDS, backend_class, make_backend
from k2jax.config import defaults, resolve
from k2jax.errors import UserError
from tests.agents.sandbox.backends import ALL, REMOTE, SPEC, in_sandbox, open_sandbox, own_descriptors, python

every_backend = pytest.mark.parametrize("name", ALL)
every_backend_here = pytest.mark.parametrize("name", [name for name in ALL if name not in REMOTE])


@every_backend
def test_a_command_gets_its_input_arguments_and_variables_and_gives_both_outputs_and_its_code(name):
    code = (
        "import os,sys; print(sys.argv[1], os.environ['A'], os.environ['B'], sys.stdin.read()); "
        "print('e', file=sys.stderr); sys.exit(7)"
    )
    spec = dataclasses.replace(SPEC, env={"A": "of the spec", "B": "of the spec"})

    async def use(sandbox):
        return await sandbox.exec(python(code, "x y\n'\""), stdin=b"input", env={"B": "of the call"})

    result = in_sandbox(name, use, spec)
    assert result.stdout == b"x y\n'\" of the spec of the call input\n"
    assert (result.stderr, result.code, result.timed_out, result.truncated) == (b"e\n", 7, False, False)
    assert 0 < result.seconds < 10


@every_backend
def test_a_signal_is_128_and_its_number(name):
    async def use(sandbox):
        return [(await sandbox.exec(["sh", "-c", f"kill -{number} $$"])).code for number in (9, 15, 11)]

    assert in_sandbox(name, use) == [137, 143, 139]


@every_backend
def test_a_pipe_whose_reader_has_gone_ends_its_writer_without_a_word(name):
    """Python ignores the signal for that, and programs would inherit it."""

    async def use(sandbox):
        return await sandbox.exec(["sh", "-c", "yes | head -n 1"])

    result = in_sandbox(name, use)
    assert (result.code, result.stdout, result.stderr) == (0, b"y\n", b"")


@every_backend
def test_a_command_that_cannot_start_is_a_result_and_not_a_failure(name):
    async def use(sandbox):
        missing = await sandbox.exec(["no-such-program"])
        folder = await sandbox.exec(["true"], cwd="/work/missing")
        null = await sandbox.exec(["echo", "a\0b"])
        surrogate = await sandbox.exec(["echo", "\ud800"])
        long = await sandbox.exec(["echo", "a" * 3_000_000])
        return missing, folder, null, surrogate, long

    results = in_sandbox(name, use)
    assert [result.code for result in results] == [127] * 5
    assert all(result.stderr for result in results[:4])


@every_backend
def test_the_time_limit_ends_a_command_with_its_children_and_keeps_what_it_wrote(name):
    async def use(sandbox):
        return await sandbox.exec(["sh", "-c", "echo before; sleep 60 & sleep 60; echo after"], timeout=0.5)

    begun = time.monotonic()
    result = in_sandbox(name, use)
    assert result.timed_out and result.code == 137 and result.stdout == b"before\n"
    assert 0.5 <= result.seconds < 1.5 and time.monotonic() - begun < 5


@every_backend
def test_output_up_to_the_limit_is_whole_and_beyond_it_is_cut(name):
    code = "import sys; sys.stdout.write('o' * 1000); sys.stderr.write('e' * 1001)"

    async def use(sandbox):
        return [await sandbox.exec(python(code), output_limit=limit) for limit in (1001, 1000, 0)]

    whole, cut, none = in_sandbox(name, use)
    assert (whole.stdout, whole.stderr, whole.truncated) == (b"o" * 1000, b"e" * 1001, False)
    assert (cut.stdout, cut.stderr, cut.truncated) == (b"o" * 1000, b"e" * 1000, True)
    assert (none.stdout, none.stderr, none.truncated) == (b"", b"", True)


@every_backend
def test_input_of_megabytes_passes_through_and_may_stay_unread(name):
    data = os.urandom(3 << 20)

    async def use(sandbox):
        through = await sandbox.exec(["cat"], stdin=data, output_limit=4 << 20)
        unread = await sandbox.exec(["true"], stdin=data)
        return through, unread

    through, unread = in_sandbox(name, use)
    assert through.stdout == data and through.code == unread.code == 0


@every_backend
def test_files_last_from_call_to_call_and_pass_both_ways(name):
    async def use(sandbox):
        await sandbox.write("/work/deep/er/in.txt", b"\x00from outside\xff")
        await sandbox.exec(["sh", "-c", "cp deep/er/in.txt out.txt; echo more >> deep/er/in.txt; mkdir deep/made"])
        with pytest.raises(SandboxError):
            await sandbox.read("deep")
        await sandbox.write("/work/out2.txt", b"first")
        await sandbox.write("out2.txt", b"2")
        return (
            await sandbox.read("/work/out.txt"),
            await sandbox.read("deep/er/in.txt", limit=5),
            await sandbox.read("out2.txt"),
            await sandbox.list("/work"),
            await sandbox.list("/work/deep", limit=1),
            (await sandbox.exec(["cat", "deep/er/in.txt"], cwd="/work")).stdout,
        )

    out, start, replaced, names, one, inside = in_sandbox(name, use)
    assert out == b"\x00from outside\xff" and start == b"\x00from" and replaced == b"2"
    assert names == ["deep", "out.txt", "out2.txt"] and one == ["er"]
    assert inside == b"\x00from outside\xffmore\n"


@every_backend
@pytest.mark.parametrize("path", ["missing", "/work/../etc/passwd", "/etc/passwd", "/work", "a\0b", "", "/workshop/x"])
def test_a_path_that_is_no_file_inside_is_refused(name, path):
    async def use(sandbox):
        with pytest.raises(SandboxError):
            await sandbox.read(path)

    in_sandbox(name, use)


@every_backend
def test_commands_of_several_sandboxes_run_at_the_same_time(name):
    async def run():
        sandboxes = [await open_sandbox(name) for _ in range(3)]
        await sandboxes[0].write("mark", b"1")
        begun = time.monotonic()
        results = await asyncio.gather(*(sandbox.exec(["sh", "-c", "sleep 1.5; ls"]) for sandbox in sandboxes))
        seconds = time.monotonic() - begun
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
        return seconds, [result.stdout for result in results]

    seconds, outputs = asyncio.run(run())
    assert outputs == [b"mark\n", b"", b""]
    assert seconds < 4.2


@every_backend_here
def test_commands_of_one_sandbox_run_at_the_same_time(name):
    """Each waits for the other."""

    async def use(sandbox):
        lines = [f"touch {own}; until [ -e {other} ]; do sleep 0.02; done" for own, other in ("ab", "ba")]
        return await asyncio.gather(*(sandbox.exec(["sh", "-c", line], timeout=30.0) for line in lines))

    assert [result.code for result in in_sandbox(name, use)] == [0, 0]


@every_backend
def test_the_time_limit_of_a_command_counts_from_its_own_start(name):
    async def use(sandbox):
        return await asyncio.gather(*(sandbox.exec(["sh", "-c", "sleep 0.4"], timeout=1.5) for _ in range(5)))

    assert not any(result.timed_out or result.code for result in in_sandbox(name, use))


@every_backend
def test_a_closed_sandbox_has_ended_its_commands_and_refuses_more_and_closes_again(name):
    async def run():
        sandbox = await open_sandbox(name)
        await sandbox.close()
        await sandbox.close()
        for call in (sandbox.exec(["true"]), sandbox.read("x"), sandbox.write("x", b""), sandbox.list("/work")):
            with pytest.raises(SandboxError):
                await call

    asyncio.run(run())


@every_backend
def test_sandboxes_leave_no_descriptors_behind(name):
    async def use(sandbox):
        await sandbox.write("a/b", b"x")
        await sandbox.read("a/b")
        await sandbox.list("a")
        for path in ("a", "a/c", "a/b/c"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
        await sandbox.exec(["cat"], stdin=b"x")

    in_sandbox(name, use)
    before = own_descriptors()
    for _ in range(3):
        in_sandbox(name, use)
    end = time.monotonic() + 5
    while own_descriptors() > before and time.monotonic() < end:  # a fake server runs in this process too
        time.sleep(0.05)
    assert own_descriptors() <= before


@every_backend
def test_a_cancelled_command_ends_with_everything_it_started(name):
    async def use(sandbox):
        running = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 60 & echo $$ > pid; sleep 60"]))
        await asyncio.sleep(0.4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await sandbox.exec(["true"])

    begun = time.monotonic()
    assert in_sandbox(name, use).code == 0
    assert time.monotonic() - begun < 5


def test_an_unknown_backend_is_refused_in_one_line():
    with pytest.raises(UserError, match="did you mean 'bubblewrap'"):
        make_backend("bublewrap")


@pytest.mark.parametrize("name", BACKENDS)
def test_a_configuration_names_every_backend_that_can_be_made(name):
    config = defaults("rl")
    config.rl.rollout.sandbox = config.rl.scoring.sandbox = name
    resolve(config)
    assert callable(backend_class(name).open)
