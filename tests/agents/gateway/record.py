"""``python -m tests.agents.gateway.record AGENT...``: runs real agents and keeps the shapes of their requests.

Texts that are long are shortened to their beginning and a checksum, so that equal texts stay equal and nobody's prompts
are kept. The agents are those in the folder that the variable K2JAX_AGENTS names.
"""

import asyncio
import dataclasses
import json
from pathlib import Path
import sys
from unittest import mock
import zlib

from k2jax.agents.environment import Services
from k2jax.agents.environments.files import FilesEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.gateway import app
from k2jax.client import Sampling, ScriptedClient
from tests.agents.gateway.forced_agents import FOLDER, SHELLS, mend
from tests.agents.gateway.repository import MEND, HiddenTest, task
from tests.agents.gateway.scripted import CHAT, TOKENIZER
from tests.agents.sandbox.backends import backend

RECORDINGS = Path(__file__).parent / "recordings"
LONGEST = 90  # characters of a text that is kept whole, if it is not what the script or the sandbox said


def shortened(value, key=""):
    """A JSON value whose long texts are short; what the script said stays whole, and so do the schemas of shells."""
    if isinstance(value, dict):
        name = value.get("function", value).get("name") if isinstance(value.get("function", value), dict) else None
        schema = next((field for field in ("parameters", "input_schema") if field in value), None)
        if schema and str(name).lower() not in SHELLS:
            value = value | {schema: {"type": "object", "properties": {}}}
        return {name: shortened(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(item, key) for item in value]
    whole = isinstance(value, str) and (len(value) <= LONGEST or value == MEND or key == "arguments")
    if not isinstance(value, str) or whole:
        return value
    return f"{value[:40]}... {zlib.crc32(value.encode()):08x}"


async def run_agent(name, client, folder=FOLDER, version="", seconds=300):
    """An episode of an agent, its reward, and its requests as (path, body)."""
    seen, read = [], app._read

    def keep(body, dialect, gateway):
        seen.append((f"/r/episode{dialect.path}", json.loads(json.dumps(body))))
        return read(body, dialect, gateway)

    scaffold = f"black_box agent={name} folder={folder} seconds={seconds}" + (f" version={version}" if version else "")
    of = dataclasses.replace(task(), scaffold=scaffold)
    environment = FilesEnvironment(Services(lambda: backend("bubblewrap")))
    sampling = Sampling(max_tokens=500, temperature=0.7)
    with mock.patch.object(app, "_read", keep):
        trajectory = await run_episode(
            of, client, CHAT, TOKENIZER, environment, key=EpisodeKey("train", 0, 0, 0), seed=0, sampling=sampling
        )
    if not trajectory.nodes:
        return trajectory, None, seen
    async with await backend("bubblewrap").open(HiddenTest().spec) as sandbox:
        return trajectory, (await HiddenTest().score(of, trajectory, sandbox)).value, seen


def main(names):
    for name in names:
        trajectory, reward, seen = asyncio.run(run_agent(name, ScriptedClient(mend)))
        print(name, trajectory.status, trajectory.error, reward, trajectory.metadata.get("agent"), flush=True)
        if reward == 1.0:
            kinds = [request["kind"] for request in trajectory.metadata["requests"]]
            version = trajectory.metadata["agent"]["version"]
            recording = {"version": version, "kinds": kinds, "requests": shortened(seen)}
            RECORDINGS.mkdir(exist_ok=True)
            (RECORDINGS / f"{name}.json").write_text(json.dumps(recording, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
