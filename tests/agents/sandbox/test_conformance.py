"""What every backend does the same: commands with their outputs and ends, files, closing."""

import asyncio
import dataclasses
import os
import time

import pytest

from k2jax.agents.sandbox import SandboxError
from k2jax.agents.sandbox.backends import BACKENDS, backend_class, make_backend
from k2jax.agents.sandbox.pod import PodOptions
from k2jax.config import defaults, resolve
from k2jax.errors import UserError
from tests.agents.sandbox.backends import (
    ALL,
    REMOTE,
    SPEC,
    in_sandbox,
    open_sandbox,
    own_descriptors,
    python,
    sandboxed,
)

every_backend = sandboxed(ALL)
WITH_VARIABLES = dataclasses.replace(SPEC, env={"A": "of the spec", "B": "of the spec"})


@sandboxed(ALL, WITH_VARIABLES)
async def test_a_command_gets_its_input_arguments_and_variables_and_gives_both_outputs_and_its_code(sandbox):
    code = (
        "import os,sys; print(sys.argv[1], os.environ['A'], os.environ['B'], sys.stdin.read()); "
        "print('e', file=sys.stderr); sys.exit(7)"
    )
    result = await sandbox.exec(python(code, "x y\n'\""), stdin=b"input", env={"B": "of the call"})
    assert result.stdout == b"x y\n'\" of the spec of the call input\n"
    assert (result.stderr, result.code, result.timed_out, result.truncated) == (b"e\n", 7, False, False)
    assert 0 < result.seconds < 10


@every_backend
async def test_a_signal_is_128_and_its_number_and_a_writer_without_a_reader_ends_without_a_word(sandbox):
    """Python ignores the signal of a pipe without a reader, and programs would inherit that."""
    codes = [(await sandbox.exec(["sh", "-c", f"kill -{number} $$"])).code for number in (9, 15, 11)]
    assert codes == [137, 143, 139]
    result = await sandbox.exec(["sh", "-c", "yes | head -n 1"])
    assert (result.code, result.stdout, result.stderr) == (0, b"y\n", b"")


@every_backend
async def test_a_command_that_cannot_start_is_a_result_and_not_a_failure(sandbox):
    commands = (["no-such-program"], ["echo", "a\0b"], ["echo", "\ud800"], [])
    results = [await sandbox.exec(["true"], cwd="/work/missing"), *[await sandbox.exec(each) for each in commands]]
    assert [result.code for result in results] == [127] * 5
    assert all(result.stderr for result in results)


@every_backend
async def test_a_command_is_as_long_as_the_kernel_allows_and_a_longer_one_is_refused_with_both_numbers(sandbox):
    longest = (1 << 17) - 1
    fits = await sandbox.exec(["sh", "-c", 'printf %s "$1" | wc -c', "sh", "a" * longest], env={"B": "b"})
    assert (fits.code, fits.stdout.split()) == (0, [b"131071"]), fits.stderr
    variable = await sandbox.exec(["true"], env={"A": "a" * (longest - 2)})
    assert variable.code == 0, variable.stderr
    many = await sandbox.exec(["sh", "-c", "echo $#", "sh", *["a"] * 7000], env={f"V{n}": "" for n in range(300)})
    assert (many.code, many.stdout) == (0, b"7000\n"), many.stderr
    refused = {
        "8,001 words": await sandbox.exec(["echo", *["a"] * 8000]),
        " variables": await sandbox.exec(["echo"], env={f"V{n}": "" for n in range(2700)}),
        "131,072": await sandbox.exec(["echo", "a" * (longest + 1)]),
        "131,073": await sandbox.exec(["true"], env={"A": "a" * longest}),
        "3,000,000": await sandbox.exec(["echo", "a" * 3_000_000]),
        "2,500,": await sandbox.exec(["echo", *["a" * 100_000] * 25]),
    }
    for number, result in refused.items():
        said = result.stderr.decode()
        assert result.code == 127 and "Argument list too long" in said and number in said, said


@every_backend
async def test_the_time_limit_ends_a_command_with_its_children_and_keeps_what_it_wrote(sandbox):
    begun = time.monotonic()
    result = await sandbox.exec(["sh", "-c", "echo before; sleep 60 & sleep 60; echo after"], timeout=0.5)
    assert result.timed_out and result.code == 137 and result.stdout == b"before\n"
    assert 0.5 <= result.seconds < 1.5 and time.monotonic() - begun < 5


@every_backend
async def test_output_up_to_the_limit_is_whole_and_beyond_it_is_cut(sandbox):
    code = "import sys; sys.stdout.write('o' * 1000); sys.stderr.write('e' * 1001)"
    for limit in (1001, 1000, 0):
        result = await sandbox.exec(python(code), output_limit=limit)
        outputs = b"o" * min(1000, limit), b"e" * limit, limit < 1001
        assert (result.stdout, result.stderr, result.truncated) == outputs


@every_backend
async def test_input_of_megabytes_passes_through_and_may_stay_unread(sandbox):
    data = os.urandom(3 << 20)
    through = await sandbox.exec(["cat"], stdin=data, output_limit=4 << 20)
    unread = await sandbox.exec(["true"], stdin=data)
    assert through.stdout == data and through.code == unread.code == 0


@every_backend
async def test_files_last_from_call_to_call_and_pass_both_ways(sandbox):
    await sandbox.write("/work/deep/er/in.txt", b"\x00from outside\xff")
    await sandbox.exec(["sh", "-c", "cp deep/er/in.txt out.txt; echo more >> deep/er/in.txt; mkdir deep/made"])
    await sandbox.write("/work/out2.txt", b"first")
    await sandbox.write("out2.txt", b"2")
    assert await sandbox.read("/work/out.txt") == b"\x00from outside\xff"
    assert await sandbox.read("deep/er/in.txt", limit=5) == b"\x00from" and await sandbox.read("out2.txt") == b"2"
    assert await sandbox.list("/work") == ["deep", "out.txt", "out2.txt"]
    assert await sandbox.list("/work/deep", limit=1) == ["er"]
    assert (await sandbox.exec(["cat", "deep/er/in.txt"], cwd="/work")).stdout == b"\x00from outside\xffmore\n"
    for path in ("deep", "missing", "/work/../etc/passwd", "/etc/hostname", "/work", "a\0b", "", "/workshop/x"):
        with pytest.raises(SandboxError):
            await sandbox.read(path)


@pytest.mark.parametrize("name", ALL)
async def test_commands_of_several_sandboxes_run_at_the_same_time(name):
    sandboxes = [await open_sandbox(name) for _ in range(3)]
    await sandboxes[0].write("mark", b"1")
    begun = time.monotonic()
    results = await asyncio.gather(*(sandbox.exec(["sh", "-c", "sleep 1.5; ls"]) for sandbox in sandboxes))
    seconds = time.monotonic() - begun
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    seconds, outputs = seconds, [result.stdout for result in results]
    assert outputs == [b"mark\n", b"", b""]
    assert seconds < 4.2


@sandboxed([name for name in ALL if name not in REMOTE])
async def test_commands_of_one_sandbox_run_at_the_same_time(sandbox):
    """Each waits for the other."""
    lines = [f"touch {own}; until [ -e {other} ]; do sleep 0.02; done" for own, other in ("ab", "ba")]
    results = await asyncio.gather(*(sandbox.exec(["sh", "-c", line], timeout=30.0) for line in lines))
    assert [result.code for result in results] == [0, 0]


@every_backend
async def test_the_time_limit_of_a_command_counts_from_its_own_start(sandbox):
    results = await asyncio.gather(*(sandbox.exec(["sh", "-c", "sleep 0.4"], timeout=1.5) for _ in range(5)))
    assert not any(result.timed_out or result.code for result in results)


@every_backend
async def test_a_closed_sandbox_has_ended_its_commands_and_refuses_more_and_closes_again(sandbox):
    await sandbox.close()
    await sandbox.close()
    for call in (sandbox.exec(["true"]), sandbox.read("x"), sandbox.write("x", b""), sandbox.list("/work")):
        with pytest.raises(SandboxError):
            await call


@pytest.mark.parametrize("name", ALL)
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
async def test_a_cancelled_command_ends_with_everything_it_started(sandbox):
    begun = time.monotonic()
    running = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 60 & echo $$ > pid; sleep 60"]))
    await asyncio.sleep(0.4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.exec(["true"])).code == 0
    assert time.monotonic() - begun < 5


def test_an_unknown_backend_is_refused_in_one_line():
    with pytest.raises(UserError, match="did you mean 'bubblewrap'"):
        make_backend("bublewrap")


def test_options_of_a_backend_stand_behind_its_name(monkeypatch):
    monkeypatch.setenv("E2B_API_KEY", "secret")
    pods = make_backend("kubernetes namespace=agents runtime_class=gvisor cpus=2 user_namespaces=false").options
    assert pods == PodOptions(namespace="agents", runtime_class="gvisor", cpus="2", user_namespaces=False)
    machines = make_backend("e2b template=python lifetime=60").options
    assert (machines.template, machines.lifetime, machines.api_key) == ("python", 60, "secret")
    for text, reason in {
        "kubernetes cpu=2": "has no option 'cpu'; did you mean 'cpus'",
        "kubernetes lifetime=long": "the option lifetime of the sandbox backend kubernetes is 'long'",
        "e2b api_key=x": "the sandbox backend e2b has no option 'api_key'",
        "bubblewrap cpus=2": "the sandbox backend bubblewrap has no options",
        "kubernetes 'a": "names no sandbox backend",
    }.items():
        with pytest.raises(UserError, match=reason):
            make_backend(text)
    config = defaults("rl")
    config.rl.rollout.sandbox = "kubernetes namespace=agents"
    assert resolve(config).rl.rollout.sandbox == "kubernetes namespace=agents"
    for text in ("bubblewraps", "", " cpus=1"):
        config.rl.scoring.sandbox = text
        with pytest.raises(UserError, match=r"config\.rl\.scoring\.sandbox is"):
            resolve(config)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_configuration_names_every_backend_that_can_be_made(name):
    config = defaults("rl")
    config.rl.rollout.sandbox = config.rl.scoring.sandbox = name
    resolve(config)
    assert callable(backend_class(name).open)
