"""The filter of system calls, run by an interpreter of its own and by the kernel."""

import errno
import platform
import struct

import pytest

from k2jax.agents.sandbox.seccomp import program, syscalls
from tests.agents.sandbox.backends import ISOLATED, in_sandbox, python

ALLOW, KILL = 0x7FFF0000, 0x80000000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = pytest.mark.parametrize("machine", AUDIT)
HARMLESS = {  # read, write, close, mmap, execve, exit_group, getpid, openat, futex, kill
    "x86_64": (0, 1, 3, 9, 59, 231, 39, 257, 202, 62),
    "aarch64": (63, 64, 57, 222, 221, 94, 172, 56, 98, 129),
}


def run(code, machine, number, arguments=()):
    """What the packet filter's machine answers; after linux/bpf_common.h, for the instructions that appear."""
    words = [*arguments] + [0] * (6 - len(arguments))
    data = struct.pack("<IIQ6Q", number, AUDIT[machine], 0, *words)
    instructions = list(struct.iter_unpack("<HBBI", code))
    accumulator, place = 0, 0
    while True:
        operation, yes, no, value = instructions[place]
        place += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
            continue
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
        place += yes if holds else no


def refusal(number):
    return 0x00050000 | number


@MACHINES
def test_every_named_call_is_refused_and_everyday_calls_pass(machine):
    code = program(machine)
    assert len(code) % 8 == 0 and len(code) // 8 < 4096
    numbers = syscalls(machine)
    for name in numbers.keys() - {"clone", "clone3", "ioctl", "socket"}:
        assert run(code, machine, numbers[name]) == refusal(errno.EPERM), name
    assert all(run(code, machine, number) == ALLOW for number in HARMLESS[machine])
    assert run(code, machine, numbers["clone3"]) == refusal(errno.ENOSYS)


@MACHINES
def test_new_processes_pass_and_new_namespaces_do_not(machine):
    code, clone = program(machine), syscalls(machine)["clone"]
    assert run(code, machine, clone, (17,)) == ALLOW
    assert run(code, machine, clone, (0x3D0F00,)) == ALLOW  # a thread of glibc
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert run(code, machine, clone, (flag | 17,)) == refusal(errno.EPERM)


@MACHINES
def test_only_unix_internet_and_netlink_sockets_pass(machine):
    code, number = program(machine), syscalls(machine)["socket"]
    passing = {family for family in range(64) if run(code, machine, number, (family, 1)) == ALLOW}
    assert passing == {1, 2, 10, 16}
    assert run(code, machine, number, (40, 1)) == refusal(errno.EAFNOSUPPORT)


@MACHINES
def test_input_cannot_be_pushed_into_a_terminal_with_any_upper_half(machine):
    code, number = program(machine), syscalls(machine)["ioctl"]
    for request in (0x5412, 0x541C, 0x5412 | 1 << 32, 0x541C | 0xFFFFFFFF << 32):
        assert run(code, machine, number, (0, request)) == refusal(errno.EPERM)
    assert run(code, machine, number, (0, 0x5401)) == ALLOW


@MACHINES
def test_another_architectures_calls_end_the_process(machine, monkeypatch):
    code = program(machine)
    monkeypatch.setitem(AUDIT, machine, 0x40000003)  # i386
    assert run(code, machine, 0) == KILL


def test_the_second_numbering_of_x86_is_refused():
    assert run(program("x86_64"), "x86_64", 0x40000000 | 39) == refusal(errno.EPERM)


@pytest.mark.parametrize("name", ISOLATED, indirect=True)
def test_the_kernel_refuses_every_named_call(name):
    """Without arguments; a call that the kernel let through would fail otherwise or succeed."""
    code = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for word in sys.argv[1:]:
    ctypes.set_errno(0)
    print(libc.syscall(int(word), *[ctypes.c_long(-1)] * 6), ctypes.get_errno())
"""
    numbers = syscalls(platform.machine())
    names = [name for name in numbers if name not in ("clone", "clone3", "ioctl", "socket")]

    async def use(sandbox):
        return await sandbox.exec(python(code, *(str(numbers[name]) for name in names)))

    result = in_sandbox(name, use)
    assert result.stdout.decode().split("\n")[:-1] == ["-1 1"] * len(names), result


@MACHINES
def test_the_filter_names_what_has_let_programs_out_of_sandboxes(machine):
    names = "unshare setns mount umount2 move_mount pivot_root ptrace process_vm_readv process_vm_writev pidfd_getfd "
    names += "io_uring_setup bpf keyctl perf_event_open userfaultfd open_by_handle_at init_module clone clone3"
    assert set(names.split()) <= syscalls(machine).keys()
