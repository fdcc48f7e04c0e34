"""``python -m tests.hostile.host BACKEND [MODULE LABEL]``: a process that makes an attack on itself, or its control.

It opens the backend and runs a harmless command in a sandbox, says that it is ready, and makes the attack when it is
told to. Without a label it does nothing more: what its event loop misses is the machine's doing.
"""

import asyncio
from concurrent.futures import ProcessPoolExecutor
import importlib
import multiprocessing
import os
from pathlib import Path
import socket
import sys
import tempfile
import traceback

from tests.agents.sandbox.backends import SPEC, backend, python
from tests.hostile.attack import BACKENDS, Attack, Outcome, Place
from tests.hostile.probe import VARIABLE, Channel, Probe, answer


def attack_of(module: str, label: str) -> Attack:
    """The attack of a label; no other attacks are imported than those of its module."""
    return next(attack for attack in importlib.import_module(module).ATTACKS if attack.label == label)


def prepared(module: str, label: str, folder: Path) -> object:
    """What an attack needs."""
    return attack_of(module, label).prepare(folder)


async def main(name: str, module: str = "", label: str = "") -> None:
    """Makes itself ready, and the attack."""
    channel, probe = Channel(socket.socket(fileno=int(os.environ.pop(VARIABLE)))), Probe()
    watching = asyncio.create_task(probe.run())
    made = backend(BACKENDS[name])
    async with await made.open(SPEC) as sandbox:
        assert (await sandbox.exec(python("print('ready')"))).stdout == b"ready\n"
    if not label:
        channel.send("ready")
        await asyncio.to_thread(answer, channel, probe)
        watching.cancel()
        return
    attack = attack_of(module, label)
    with tempfile.TemporaryDirectory(prefix="k2jax-hostile-") as folder:
        os.chmod(folder, 0o755)
        place = Place(made, BACKENDS[name], Path(folder))
        if attack.prepare is not None:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
                place = place._replace(prepared=other.submit(prepared, module, label, place.folder).result())
        channel.send("ready")
        await asyncio.to_thread(channel.receive)
        probe.begin()
        try:
            outcome = await attack.run(place)
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome(f"{type(error).__name__}: {error}"[:300])
        channel.send(probe.measured() | outcome._asdict())
    watching.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
