"""Rows 33, 34, 42 and 43: images and services of the host, files that hold up a reader, programs that want more."""

import asyncio
import dataclasses
import functools
import time

from k2jax.agents.environment import OUTCOME, Services
from k2jax.agents.environments.files import FilesEnvironment
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.attacks import ATTACKS as INSIDE
from k2jax.agents.sandbox.attacks import Attack as Program
from k2jax.agents.sandbox.exhaustion import COUNTED, exhausted
from k2jax.agents.sandbox.hostile import LIMITS, Outside, attempt
from k2jax.agents.sandbox.images import image_folder
from k2jax.agents.sandbox.types import SandboxError
from k2jax.agents.scaffolds.scripted import called
from k2jax.errors import UserError
from tests.agents.egress.origins import FLOOD, HELLO, REACH
from tests.agents.gateway.repository import task
from tests.agents.sandbox.backends import PYTHON, SPEC, new_backend, python, survivors
from tests.agents.sandbox.hostile_programs import MEMORY, PROGRAMS
from tests.agents.sandbox.test_hostile_leases import HOLD
from tests.hostile.attack import Attack, Outcome, Place, expect

CONTAINED = "it ends within its limits, nothing of it is left, and the host is as it was"
EXHAUSTING = ("bomb", "flood", "full disk", "without end", "past the time", "survivors", "disk", "inodes", "up to")
READ = ("for a reader",)
NAMES = ("/", "..", ".", "", "system/..", "../private", "system\0", "none", "/proc/self/root", "/proc/1/root", "/etc",
         "/usr", "sha256:x", "sha256:../" + "0" * 60, "\ud800", "x" * 5000, "out", "/dev/fd/0")  # fmt: skip


def _contained(program: Program):
    async def run(place: Place) -> Outcome:
        with Outside() as outside:
            async with await place.backend.open(dataclasses.replace(SPEC, limits=LIMITS)) as sandbox:
                left = functools.partial(survivors, place.name)
                return Outcome(await attempt(program, sandbox, outside, python=PYTHON.executable, left=left))

    return run


async def _images(place: Place) -> Outcome:
    """With a folder of images, and without one."""
    folder = place.folder / "images"
    (folder / "system/usr").mkdir(parents=True)
    (place.folder / "private/usr").mkdir(parents=True)
    (folder / "out").symlink_to(place.folder / "private")
    for name in NAMES:
        try:
            image_folder(name, str(folder))
            return Outcome(f"the image {name!r} is taken")
        except UserError as error:
            if "\n" in str(error).replace(name, ""):
                return Outcome(f"refused in several lines: {error}")
    made = new_backend(place.name, str(folder))
    for backend, image in ((place.backend, "/"), (place.backend, "system"), (made, "../private"), (made, "/")):
        try:
            await (await backend.open(SandboxSpec(image=image))).close()
            return Outcome(f"a sandbox of the image {image!r} was opened")
        except UserError:
            continue
        finally:
            if backend is made:
                made.close()
    return Outcome()


def _proxy(program: str):
    """A program in a sandbox that may reach two other hosts, beside a service of this machine."""

    async def run(place: Place) -> Outcome:
        reached: list[str] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append("reached")
            writer.write(HELLO)
            writer.close()

        server = await asyncio.start_server(answer, "0.0.0.0")
        port = server.sockets[0].getsockname()[1]
        asked = tuple(f"{host}:{port}" for host in ("localhost", "192.0.2.1"))
        made = new_backend(place.name, hosts=(*asked, f"https://localhost:{port}"))
        try:
            async with server, await made.open(dataclasses.replace(SPEC, hosts=asked)) as sandbox:
                result = await sandbox.exec(python(program, str(port), "127.0.0.2"), timeout=60.0)
        finally:
            made.close()
        said = f"{result.stdout[-100:]!r} {result.stderr[-100:]!r} {reached}"
        return expect(result.code == 0 and result.stdout in (b"", b"[]\n") and not reached, said)

    return run


async def _leases(place: Place) -> Outcome:
    """A program holds leases on files that the host reads; a lease lasts 45 s."""
    async with await place.backend.open(SPEC) as sandbox:
        await sandbox.start(python(HOLD))
        while "ready" not in await sandbox.list("/work"):
            await asyncio.sleep(0.01)
        begun, refused = time.monotonic(), []
        for number in range(8):
            try:
                await sandbox.read(str(number))
            except SandboxError as error:
                refused.append((number, "lease" in str(error)))
        seconds = time.monotonic() - begun
    return expect(refused == [(n, True) for n in (0, 2, 4, 6)] and seconds < 10, f"{refused} after {seconds:.1f} s")


async def _outcome(place: Place, code: str) -> dict:
    """What an episode's environment reads when an agent's program has run."""
    environment = FilesEnvironment(Services(lambda: place.backend))
    try:
        await environment.reset(task(tools=("shell",)), 0)
        command = f"cat > /tmp/p.py <<'END'\n{code}\nEND\n{PYTHON.executable} -I -S /tmp/p.py"
        await environment.step(called("shell", command=command))
        step = await environment.step({"role": "assistant", "content": "Done."})
        return dict(step.info)
    finally:
        await environment.close()


TRAPS = """
import os, socket
os.mkfifo('/work/pipe'); socket.socket(socket.AF_UNIX).bind('/work/socket'); os.symlink('/dev/zero', '/work/zero')
os.symlink('/etc/shadow', '/work/shadow'); os.symlink('.', '/work/round'); open('/work/closed', 'w').close()
os.chmod('/work/closed', 0)
"""
MANY = """
import os
for n in range(5000):
    try: open('/work/' + str(n) + 'n' * 200, 'w').write('x')
    except OSError: break
"""
NOISE = "import os\nwith open('/work/noise', 'wb') as f:\n    while True: f.write(os.urandom(1 << 20))"
SPARSE = "import os\nos.truncate(os.open('/work/sparse', os.O_CREAT | os.O_RDWR), 60 << 20)"
NESTED = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')"

TREES = {
    "traps": TRAPS,
    "5,000 files": MANY,
    "a full disk of noise": NOISE,
    "a sparse file": SPARSE,
    "3,000 folders in each other": NESTED,
}
LEFT = "the outcome is read, or says why not"


def _left(code: str):
    async def run(place: Place) -> Outcome:
        left = await _outcome(place, code)
        return expect("archive" in left or "too_large" in left or "left_out" in left, f"{OUTCOME}: {sorted(left)}")

    return run


def _counted(kind: str):
    async def run(place: Place) -> Outcome:
        return Outcome(await exhausted(kind, place.backend, SPEC, PYTHON.executable))

    return run


def _row(name: str) -> int:
    return 34 if name.endswith(READ) else 43 if any(words in name for words in EXHAUSTING) else 42


_GROUPS = {f"memory: {name}": program for name, program in MEMORY.items()}
ATTACKS = [
    Attack(33, "images of the host", "every name is refused in one line", _images, in_sandbox=True),
    Attack(33, "a service of the host, by the proxy of a sandbox", "it is not reached", _proxy(REACH), in_sandbox=True),
    Attack(43, "a flood of requests to the proxy of a sandbox", CONTAINED, _proxy(FLOOD), in_sandbox=True),
    Attack(34, "leases on files", "a file is refused at once, or read", _leases, in_sandbox=True),
    *(Attack(34, f"an episode that leaves {name}", LEFT, _left(code), in_sandbox=True) for name, code in TREES.items()),
    *(
        Attack(_row(name), f"inside: {name}", CONTAINED, _contained(program), in_sandbox=True)
        for name, program in (INSIDE | PROGRAMS | _GROUPS).items()
    ),
    *(
        Attack(43, f"all {kind}", "another sandbox has its own", _counted(kind), in_sandbox=True) for kind in COUNTED
    ),
]  # fmt: skip
