"""Starts the commands of one sandbox from inside, each in namespaces of its own.

Runs as the first process of a sandbox's namespaces, with the standard library of the host's own Python, which it takes
out of sight once it is loaded. It trusts the other end of its socket alone, shows nothing of itself to commands, and
every command is what it would be in a bubblewrap of its own: in new namespaces of processes, mounts, network and IPC,
without capabilities, behind the same filter of system calls. Its messages are one packet each, a letter and a number:

- ``R``: run the request in the fourth descriptor that comes with it, JSON with ``argv``, ``cwd`` and ``env``; the other
  three are the command's standard ones.
- ``K``: kill that command and everything that it has started.
- ``H``: it is ready. ``E`` with a code: a command has ended and nothing of it is left. ``F`` with a number of an error:
  it could not be started.

Arguments: the folder where its own Python is shown, and the filter in Base64.
"""

import base64
import ctypes
import errno
import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import sys

NEW_PROCESSES, NEW_MOUNTS, NEW_IPC, NEW_NETWORK = 0x20000000, 0x00020000, 0x08000000, 0x40000000
READ_ONLY, NO_SETUID, NO_DEVICES, NO_PROGRAMS, REMOUNT, BIND = 1, 2, 4, 8, 32, 0x1000
DETACH = 2
SET_DUMPABLE, SET_SECCOMP, DROP_BOUNDING, GET_NO_NEW_PRIVILEGES, AMBIENT = 4, 22, 24, 39, 47
FILTER, CLEAR_ALL, CAPABILITIES_VERSION = 2, 4, 0x20080522
SET_FLAGS, UP, RUNNING = 0x8914, 0x1, 0x40
MOST_PACKET = 256
NOT_STARTED = 127

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    """Calls a function of the C library; raises OSError where it does not return 0."""
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


def control(option, *arguments):
    """Sets something of this process."""
    padded = [*arguments, 0, 0, 0, 0][:4]
    call("prctl", option, *[word if isinstance(word, ctypes.c_void_p) else ctypes.c_ulong(word) for word in padded])


def mount(source, target, kind, flags):
    """Mounts something."""
    call("mount", source, target, kind, ctypes.c_ulong(flags), None)


class FilterProgram(ctypes.Structure):
    """The kernel's ``struct sock_fprog``."""

    _fields_ = [("count", ctypes.c_ushort), ("program", ctypes.c_void_p)]


def mount_processes(flags=0):
    """Shows the processes of this namespace at /proc."""
    mount(b"proc", b"/proc", b"proc", NO_SETUID | NO_DEVICES | NO_PROGRAMS | flags)


def prepare(own_folder):
    """Takes this program out of sight, and the right to make user namespaces from whatever it starts.

    Returns:
        Descriptor of its own namespace of processes, and what ``forget_arguments`` gives.
    """
    if libc.prctl(GET_NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (0, 0, 0, 0))) != 1:
        raise OSError(errno.EPERM, "commands could gain privileges")
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    arguments = forget_arguments()
    mount_processes()
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    call("umount2", b"/proc", DETACH)
    for name in os.listdir(own_folder):
        call("umount2", os.fsencode(f"{own_folder}/{name}"), DETACH)
        os.rmdir(f"{own_folder}/{name}")
    os.rmdir(own_folder)
    mount(None, b"/dev", None, REMOUNT | BIND | READ_ONLY | NO_SETUID | NO_DEVICES)
    control(SET_DUMPABLE, 0)
    return own, arguments


def forget_arguments():
    """Clears the words that this process was started with: everybody may read those of the first process in /proc.

    Returns:
        Where they stood, and how many bytes there are.
    """
    with open("/proc/self/stat") as file:
        first, end = map(int, file.read().rpartition(")")[2].split()[45:47])
    ctypes.memset(first, 0, end - first)
    return first, end - first


def show_arguments(place, request):
    """Gives the first process of a command that command's words, by which the host finds it, as bubblewrap's has."""
    words = [b"bwrap", b"--", *(os.fsencode(word) for word in request["argv"])]
    data = b"\0".join(words)[: place[1] - 1]
    ctypes.memmove(place[0], data, len(data))


def bring_up_loopback():
    """The network of a command is its own loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP | RUNNING))


def give_up_privileges(filter_program):
    """Leaves this process, and what it starts, no capability and the filtered system calls."""
    for capability in range(64):
        try:
            control(DROP_BOUNDING, capability)
        except OSError:  # there are no more
            break
    control(AMBIENT, CLEAR_ALL)
    call("capset", struct.pack("=Ii", CAPABILITIES_VERSION, 0), bytes(24))
    program = ctypes.create_string_buffer(filter_program, len(filter_program))
    loaded = FilterProgram(len(filter_program) // 8, ctypes.addressof(program))
    control(SET_SECCOMP, FILTER, ctypes.c_void_p(ctypes.addressof(loaded)))


def set_variables(request):
    """Gives this process the variables of a command, as bubblewrap does: what looks for programs reads its own."""
    libc.clearenv()
    for name, value in {**request["env"], "PWD": request["cwd"]}.items():
        call("setenv", os.fsencode(name), os.fsencode(value), 1)


def started(argv, env, descriptors):
    """Starts a program as a child; returns its number.

    The child shares this process's memory until it is another program, so that none of it is copied.
    """
    actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(descriptors[:3])]
    for source in descriptors:
        os.set_inheritable(source, False)
    # Python ignores these signals, and programs would inherit that.
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    return os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsigdef=defaults)


def start_command(request, descriptors):
    """Starts a command; its number, or None where it cannot be started, which its error output says."""
    argv = [os.fsencode(word) for word in request["argv"]]
    env = {os.fsencode(name): os.fsencode(value) for name, value in request["env"].items()}
    env[b"PWD"] = os.fsencode(request["cwd"])
    message, subject = b"Can't chdir to ", os.fsencode(request["cwd"])
    try:
        os.chdir(request["cwd"])
        message, subject = b"execvp ", argv[0]
        set_variables(request)
        if not argv[0]:
            raise OSError(errno.ENOENT, "no name")
        try:
            return started(argv, env, descriptors)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
        return started([b"/bin/sh", program_path(argv[0], env), *argv[1:]], env, descriptors)
    except OSError as error:
        os.write(descriptors[2], b"bwrap: " + message + subject + b": " + os.strerror(error.errno).encode() + b"\n")
        return None


def program_path(name, env):
    """Where a program is found."""
    for folder in env.get(b"PATH", b"/bin:/usr/bin").split(b":") if b"/" not in name else ():
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return name


def be_first(number, request, descriptors, filter_program, arguments):
    """The life of the first process of a command's namespaces; with its end all others of them end."""
    code = 255
    try:
        show_arguments(arguments, request)
        os.setsid()  # a program that leads no session gets no terminal by opening one
        call("unshare", NEW_MOUNTS | NEW_IPC | NEW_NETWORK)
        bring_up_loopback()
        mount_processes(READ_ONLY)
        give_up_privileges(filter_program)
        command = start_command(request, descriptors)
        os.closerange(0, 1 << 16)
        code, ended = NOT_STARTED, 0
        while command is not None and ended != command:
            ended, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
        code = 128 - code if code < 0 else code
    except BaseException as error:
        os.write(0, b"F%d %d" % (number, getattr(error, "errno", None) or errno.EIO))
    finally:
        os._exit(code)


class ForkingProcess:
    """Serves until the other end of the socket is closed, and with it everything inside ends."""

    def __init__(self, own_folder, filter_program):
        self.filter_program = filter_program
        self.connection = socket.socket(fileno=0)
        self.own_processes, self.arguments = prepare(own_folder)
        self.running, self.numbers = {}, {}
        self.poll = select.poll()
        self.poll.register(0, select.POLLIN)

    def serve(self):
        """The loop."""
        self.connection.send(b"H")
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor == 0:
                    if not self.receive():
                        return
                else:
                    self.end(descriptor)

    def receive(self):
        """Takes one message; False at the end."""
        packet, descriptors, _, _ = socket.recv_fds(self.connection, MOST_PACKET, 4)
        if not packet:
            return False
        number = int(packet[1:])
        if packet[:1] == b"R":
            try:
                self.run(number, descriptors)
            except (OSError, ValueError) as error:
                self.connection.send(b"F%d %d" % (number, getattr(error, "errno", None) or errno.EIO))
                self.connection.send(b"E%d 255" % number)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        elif number in self.numbers:
            os.kill(self.running[self.numbers[number]][1], signal.SIGKILL)
        return True

    def run(self, number, descriptors):
        """Starts a command."""
        with open(os.dup(descriptors[3]), "rb") as file:
            request = json.loads(file.read())
        call("setns", self.own_processes, NEW_PROCESSES)
        call("unshare", NEW_PROCESSES)
        pid = os.fork()
        if pid == 0:
            be_first(number, request, descriptors, self.filter_program, self.arguments)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.running[pidfd], self.numbers[number] = (number, pid), pidfd
        self.poll.register(pidfd, select.POLLIN)

    def end(self, pidfd):
        """Tells of a command's end: the kernel has ended all processes of its namespace before."""
        number, pid = self.running.pop(pidfd)
        del self.numbers[number]
        self.poll.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.connection.send(b"E%d %d" % (number, 128 - code if code < 0 else code))


def main(own_folder, filter_text):
    """Prepares and serves."""
    os.closerange(3, 1 << 16)
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a first process does not hear from inside
    ForkingProcess(own_folder, base64.b64decode(filter_text)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
