"""The filter of system calls inside a sandbox, as the kernel takes it: a program for the packet filter of BPF.

Everything that a sandbox has no use for and that has let programs out of one is refused with EPERM: namespaces, mounts,
tracing, io_uring, BPF, keys, performance counters, userfaultfd, handles of files, pushing input into a terminal.
Sockets are Unix, IP and netlink only: others, such as those to a virtual machine's host, know no network namespace.
``clone3`` does not exist (its flags lie in memory, where a filter cannot see them), so C libraries use ``clone``.
"""

from __future__ import annotations

from collections.abc import Iterable
import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in struct seccomp_data
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X32 = 0x40000000
"""In numbers of the x32 interface, which an x86-64 kernel may serve too."""

NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID and NET; CLONE_NEWTIME is not a flag of ``clone``."""

SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""

TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX."""

_DENIED = {  # number on x86-64, on aarch64
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
}
_SPECIAL = {"clone": (56, 220), "clone3": (435, 435), "ioctl": (16, 29), "socket": (41, 198)}
_ONLY_X86 = {"ioperm": 173, "iopl": 172, "modify_ldt": 154, "uselib": 134, "_sysctl": 156}
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def syscalls(machine: str) -> dict[str, int]:
    """Numbers of the system calls that the filter names.

    Args:
        machine: ``x86_64`` or ``aarch64``.
    """
    column = list(_AUDIT).index(machine)
    numbers = {name: both[column] for name, both in (_DENIED | _SPECIAL).items()}
    return numbers | (_ONLY_X86 if machine == "x86_64" else {})


def supported() -> bool:
    """Whether there is a filter for this machine's architecture."""
    return platform.machine() in _AUDIT


def program(machine: str | None = None) -> bytes:
    """The filter as an array of ``struct sock_filter``, in this machine's byte order.

    Args:
        machine: ``x86_64`` or ``aarch64``; None is this machine's.

    Raises:
        KeyError: another architecture.
    """
    machine = machine or platform.machine()
    numbers = syscalls(machine)
    refuse, missing = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),  # another architecture's numbers mean other calls
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += _branch(_AT_LEAST, X32, [(_RETURN, 0, 0, refuse)])
    special = {
        "clone": _on_argument(_FIRST_ARGUMENT, _ANY_BIT, [NEW_NAMESPACES], refuse, _ALLOW),
        "ioctl": _on_argument(_SECOND_ARGUMENT, _EQUAL, TERMINAL_REQUESTS, refuse, _ALLOW),
        "socket": _on_argument(_FIRST_ARGUMENT, _EQUAL, SOCKET_FAMILIES, _ALLOW, _ERRNO | errno.EAFNOSUPPORT),
        "clone3": [(_RETURN, 0, 0, missing)],
    }
    for name, body in special.items():
        code += _branch(_EQUAL, numbers.pop(name), body)
    for number in numbers.values():
        code += _branch(_EQUAL, number, [(_RETURN, 0, 0, refuse)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


_Instruction = tuple[int, int, int, int]


def _branch(comparison: int, value: int, body: list[_Instruction]) -> list[_Instruction]:
    """``body`` where the comparison holds; else what comes after it."""
    return [(comparison, 0, len(body), value), *body]


def _on_argument(offset: int, comparison: int, values: Iterable[int], hit: int, otherwise: int) -> list[_Instruction]:
    """Returns ``hit`` where the low half of an argument compares with any value, else ``otherwise``.

    The kernel looks only at the low half of these arguments too.
    """
    code: list[_Instruction] = [(_LOAD, 0, 0, offset)]
    for value in values:
        code += _branch(comparison, value, [(_RETURN, 0, 0, hit)])
    return [*code, (_RETURN, 0, 0, otherwise)]
