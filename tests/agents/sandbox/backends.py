"""Running coroutines on a sandbox of each backend, and what must be true of the machine afterwards."""

import asyncio
import dataclasses
import os
from pathlib import Path

import pytest

from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.sandbox.backends import backend_class, make_backend
from k2jax.agents.sandbox.interpreter import host_python
from tests.agents.sandbox.made_images import IMAGE, host_image

PYTHON = host_python()
SPEC = SandboxSpec(read_only=PYTHON.read_only)
ON_IMAGE = " on an image"
"""How names of backends end whose sandboxes have an image of the host's programs."""
FORKED = " and a fork server"
"""How names of backends end whose sandboxes have run a command, so that a fork server starts all others."""
_SLOW = (
    "nsjail",
    "nsjail without groups",
    "bubblewrap on an image",
    "nsjail on an image",
    "bubblewrap and a fork server",
    "bubblewrap on an image and a fork server",
)
SLOW = tuple(pytest.param(name, marks=pytest.mark.slow) for name in _SLOW)
REMOTE = tuple(pytest.param(name, marks=pytest.mark.slow) for name in ("kubernetes", "e2b"))
"""Backends of other machines, against a fake server of each."""
NAMESPACES = ("bubblewrap", "bubblewrap without groups", *SLOW)
"""Backends of this machine's own namespaces."""
ON_IMAGES = tuple(name for name in SLOW if ON_IMAGE in name.values[0])
ON_HOST = tuple(name for name in NAMESPACES if name not in ON_IMAGES)
KINDS = tuple(name for name in ON_HOST if not set(getattr(name, "values", [name])[0].split()) & {"without", "server"})
"""Names that ``new_backend`` takes for backends with control groups."""
ISOLATED = (*NAMESPACES, *REMOTE)
"""Backends that promise to hold programs that mean harm."""
ALL = (*ISOLATED, "unsafe")

_made = {}


def backend(name):
    """The backend of a name, one for all tests of a process; no spec of theirs may name an image of this machine."""
    if name not in _made:
        images = host_image() if ON_IMAGE in name else ""
        kind = name.removesuffix(FORKED).removesuffix(ON_IMAGE)
        _made[name] = FAKES[name]() if name in FAKES else new_backend(kind, images)
    return _made[name]


def new_backend(name, images="", hosts=()):
    """A backend of this machine, with images and hosts of its own."""
    kind, _, without = name.partition(" without ")
    choices = {"images": images, "hosts": hosts}
    return backend_class(kind)(groups=False, **choices) if without else make_backend(kind, **choices)


def _kubernetes():
    from kubernetes.aio.client import Configuration

    from k2jax.agents.sandbox.kubernetes import KubernetesBackend
    from k2jax.agents.sandbox.pod import PodOptions
    from tests.agents.sandbox.fakes.kubernetes_api import FakeKubernetes

    fake = FakeKubernetes()
    options, configuration = PodOptions(python=PYTHON.executable), Configuration(host=fake.url)
    made = KubernetesBackend(options, images="my/", configuration=configuration)
    made.fake = fake
    return made


def _e2b():
    from k2jax.agents.sandbox.e2b import E2BBackend, E2BOptions
    from tests.agents.sandbox.fakes.e2b_api import KEY, FakeE2B

    fake = FakeE2B()
    options = E2BOptions(
        api_url=f"{fake.url}/api",
        api_key=KEY,
        envd_url=f"{fake.url}/envd/{{sandbox}}",
        user="sandbox",
        python=PYTHON.executable,
    )
    made = E2BBackend(options, images="my/")
    made.fake = fake
    return made


FAKES = {"kubernetes": _kubernetes, "e2b": _e2b}


def in_sandbox(name, use, spec=SPEC):
    """Opens a sandbox, gives it to the coroutine function ``use``, closes it; returns what ``use`` returns."""

    async def run():
        async with await open_sandbox(name, spec) as sandbox:
            return await use(sandbox)

    return asyncio.run(run())


def sandboxed(names, spec=SPEC):
    """Makes of a coroutine function a test of it on a sandbox of each of some backends, which leave nothing behind."""

    def make(use):
        @pytest.mark.parametrize("name", names)
        def test(name):
            in_sandbox(name, use, spec)
            assert not survivors(name)

        test.__name__, test.__qualname__, test.__doc__ = use.__name__, use.__qualname__, use.__doc__
        return test

    return make


async def open_sandbox(name, spec=SPEC):
    """A sandbox; those of other machines have this machine's Python anyway."""
    if name in FAKES:
        spec = dataclasses.replace(spec, read_only=())
    if ON_IMAGE in name:
        spec = dataclasses.replace(spec, image=IMAGE)
    sandbox = await backend(name).open(spec)
    if name.endswith(FORKED):
        assert (await sandbox.exec(["/bin/sh", "-c", ":"])).code == 0
    return sandbox


def python(code, *arguments):
    """A command that runs Python code inside."""
    return [PYTHON.executable, "-I", "-S", "-c", code, *arguments]


def processes_below(pid, beyond=0):
    """Pids of all processes that descend from one, zombies included, but for so many generations."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, front, generation = set(), {pid}, 0
    while front:
        front = {child for child, parent in parents.items() if parent in front} - found
        generation += 1
        if generation > beyond:
            found |= front
    return found


def survivors(name):
    """Processes that a backend has left behind: all below its spawner."""
    if name in FAKES:  # a machine is a bubblewrap and below it the first process, which belong to it
        link = backend(name).fake.backend._link
        return processes_below(link._process.pid, beyond=2) if link is not None else set()
    return left_by(getattr(backend(name), "_link", None))


def left_by(link):
    """Processes below a spawner but its fork servers."""
    return processes_below(link._process.pid) - servers_of(link) if link is not None else set()


def servers_of(link):
    """Processes of a spawner's fork servers."""
    return set(link.ask("servers")[1].result(10.0).record["pids"])


def processes_of(sandbox):
    """The same of a sandbox of this machine."""
    return left_by(sandbox._link)


def own_descriptors():
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
