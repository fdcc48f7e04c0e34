"""The black-box scaffold: an agent that nobody changed works in a sandbox, and its only way out is its rollout.

For every episode a gateway serves one rollout on a Unix socket, which the sandbox shows the agent. What the model
sampled is recorded at the wire and becomes the episode's token tree; what the agent leaves in its folder is collected
by the environment for the verifier.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
import contextlib
import dataclasses
import os
from pathlib import Path
import tempfile
import time
from typing import Any, NamedTuple

from k2jax.agents.api import ModelCard
from k2jax.agents.environment import OUTCOME, Environment
from k2jax.agents.episode import Rollout
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.gateway.agent_entries import AGENTS
from k2jax.agents.gateway.agent_processes import AgentProcesses
from k2jax.agents.gateway.agents import HOME, BlackBoxAgent, read_agent, shown_folders
from k2jax.agents.gateway.app import make_gateway_app
from k2jax.agents.gateway.episode_client import EpisodeClient, EpisodeMedia
from k2jax.agents.gateway.exchange import LAST_TOKEN_SECONDS
from k2jax.agents.gateway.gateway import Gateway, RolloutAccess
from k2jax.agents.gateway.socket import rollout_socket
from k2jax.agents.gateway.spec import GatewayRollout
from k2jax.agents.sandbox import Limits, SandboxSpec
from k2jax.agents.sandbox.forward import forwarded
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.sandbox.types import MEBI, ExecResult, SandboxError
from k2jax.agents.task import Task
from k2jax.client import PromptTooLongError, Sampling
from k2jax.errors import UserError, nearest
from k2jax.trajectory import Trajectory
from k2jax.trajectory.types import ROOT, Status

FOLDER_VARIABLE = "K2JAX_AGENTS"
"""Environment variable with the folder where agents are installed."""
PORT = 8080
"""Where an agent finds the gateway, on the loopback of its own sandbox."""
ROLLOUT = "episode"
"""Name of the rollout in the agent's URL, the same in every episode so that prompts are."""
_SOCKETS = "/var/tmp"  # folders of sockets; shown at the same place, which a sandbox's own /tmp would hide
_STARTING = 600.0  # more wall time of a command than of the episode [s]
_SHORTEST_WAIT = 0.05  # between two looks at the agent's clock [s]
_KEPT_OUTPUT = 2000  # characters of an agent's output in the metadata


def black_box(
    agent: str,
    folder: str = "",
    version: str = "",
    seconds: float = 600.0,
    context: int = 1 << 20,
    *,
    wall: float = 86400.0,
    answer: float = 3600.0,
    side_calls: int = -1,
) -> BlackBoxScaffold:
    """Makes the scaffold of an agent.

    Args:
        agent: a name of ``AGENTS``, or the path of a JSON file; see ``read_agent``.
        folder: where it is installed; by default what the variable K2JAX_AGENTS says.
        version: that is installed, if not the one for which the agent is described.
        seconds: that it may work without waiting for the model [s]. Processor time that it uses while it waits counts.
        context: longest prompt with its answer [tokens]; the engine's own limit holds beside it.
        wall: that the episode may last, waiting included [s].
        answer: that the model has for one answer [s].
        side_calls: most side calls that are answered; -1 is the gateway's default, see ``GatewayRollout``.

    Raises:
        UserError: there is no such agent, or it is not installed in this version.
    """
    if agent.endswith(".json"):
        described = read_agent(agent)
    elif agent in AGENTS:
        described = AGENTS[agent]
    else:
        raise UserError(f"no agent {agent!r}{nearest(agent, sorted(AGENTS))}; one's own is a file that ends in .json")
    described = described.pinned_to(version) if version else described
    folder = folder or os.environ.get(FOLDER_VARIABLE, "")
    described.check_installed(folder)
    if min(seconds, wall, answer) <= 0 or context < 1 or side_calls < -1:
        raise UserError(f"the scaffold of {agent} needs seconds, wall, answer and context above 0, side_calls from -1")
    return BlackBoxScaffold(described, folder, AgentLimits(seconds, context, wall, answer, side_calls))


class AgentLimits(NamedTuple):
    """Limits of an agent's episode beside its task's budget; see ``black_box``."""

    seconds: float
    context: int
    wall: float
    answer: float
    side_calls: int


class BlackBoxScaffold:
    """Runs an agent to its end; see ``k2jax.agents.scaffolds``.

    The episode is ``truncated`` where the agent's own time, the wall time, the task's budget or the model's context was
    used up, and where the agent asked for side calls alone. An agent that makes no request has failed as a machine
    does. An episode that fails begins anew.

    Attributes:
        needs_this_machine: sandboxes on others have no way to the gateway's socket, and what an agent computes there
            while it waits would be in no budget.
    """

    needs_this_machine = True

    def __init__(self, agent: BlackBoxAgent, folder: str, limits: AgentLimits):
        """Runs ``agent``, installed in ``folder`` if it needs one; see ``black_box``."""
        self.agent = agent
        self._folder, self._limits = folder, limits

    async def run(self, rollout: Rollout, environment: Environment, sampling: Sampling) -> None:
        """See ``k2jax.agents.scaffolds``.

        Raises:
            InfrastructureError: the sandbox failed, or the agent did not start.
            UserError: the environment has no workspace, the agent's first request is too long for the model, or the run
                asks for what no black box can do.
        """
        if rollout.may_pause:
            raise UserError("a black-box agent cannot pause in its midst; set config.rl.rollout.token_cap to 0")
        if not rollout.task.thinking:
            raise UserError(
                "a black-box agent asks for reasoning or not in its own requests; leave config.rl.tasks.*.thinking true"
            )
        client = EpisodeClient(rollout.client)
        media = rollout.media and EpisodeMedia(rollout.media, client)
        vocab = rollout.tokenizer.vocab_size
        card = ModelCard("k2", rollout.tokenizer, vocab, self._limits.context, chat=rollout.chat, media=media)
        gateway = Gateway(client, card, answer_seconds=self._limits.answer)
        access = gateway.open(self._described(rollout, sampling), ROLLOUT)
        result, outcome = await self._work(rollout, environment, gateway, access, client)
        session = gateway.session(ROLLOUT)
        if not session.requests and client.refused is not None:  # the task itself does not fit: no policy's mistake
            raise PromptTooLongError(f"the first request of the agent {self.agent.name} is refused: {client.refused}")
        if not session.requests and session.in_progress:
            gateway.cancel_all()
            raise EnvironmentFailedError(f"the model has given the agent {self.agent.name} no answer in its time")
        if not session.requests:
            shown = "" if isinstance(result, str) else result.stderr[-300:] or result.stdout[-300:]
            raise EnvironmentFailedError(f"the agent {self.agent.name} asked its model nothing: {shown!a}")
        over = any(request.get("over_budget") for request in session.requests)
        is_idle = not any(request["tokens"] for request in session.requests if request["history"] == 0)
        is_cut = isinstance(result, str) or over or is_idle or client.refused is not None
        status: Status = "truncated" if is_cut else "finished"
        recorded = await _closed(gateway, status)
        _fill(rollout.trajectory, recorded, status)
        rollout.trajectory.metadata |= {OUTCOME: dict(outcome), "agent": self._report(result, client, is_idle)}

    async def _work(
        self, rollout: Rollout, environment: Environment, gateway: Gateway, access: RolloutAccess, client: EpisodeClient
    ) -> tuple[ExecResult | str, Any]:
        """Lets the agent work; returns how it ended, or which time was over, and the environment's outcome."""
        async with _served(gateway, access) as socket:
            needs = self._needs(socket)
            sandbox = await environment.open_workspace(rollout.task, needs)
            if self.agent.needs_cgroup and sandbox.capabilities.memory != "cgroup":
                raise UserError(
                    f"the agent {self.agent.name} runs on Node, whose memory only a control group can limit, and this "
                    "machine lets this user make none; see python -m k2jax.sandbox check"
                )
            agent = self.agent.filled(self._values(rollout.task, access, environment.folder))
            for path, text in {f"{HOME}/.keep": "", **agent.files}.items():
                await sandbox.write(path, text.encode())
            command = forwarded(agent.argv, str(socket), port=PORT)
            env = {"HOME": HOME, "PATH": self._path(), **agent.env}
            longest = self._limits.wall + _STARTING  # it is ended here before
            running = sandbox.exec(command, cwd=environment.folder, env=env, timeout=longest, output_limit=MEBI)
            client.processor = AgentProcesses(str(socket)).seconds
            result = await self._run(running, client)
            return result, await environment.collect()

    async def _run(self, command: Coroutine[Any, Any, ExecResult], client: EpisodeClient) -> ExecResult | str:
        """Waits until the agent ends, its own time or the wall time is over, or the model fails."""
        began, waited = time.monotonic(), client.waited
        running = asyncio.ensure_future(command)
        try:
            while not running.done():
                elapsed = time.monotonic() - began
                left = {"time": self._limits.seconds - (elapsed - (client.waited - waited)),
                        "wall time": self._limits.wall - elapsed}  # fmt: skip
                for name, seconds in left.items():
                    if seconds <= 0:
                        return name
                pause = max(_SHORTEST_WAIT, min(left.values()))
                await asyncio.wait({running, client.failed}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if client.failed.done():
                    client.failed.result()
            return running.result()
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, SandboxError):
                await running

    def _values(self, task: Task, access: RolloutAccess, work: str) -> dict[str, str]:
        """What stands for the placeholders."""
        agents = os.path.abspath(self._folder) if self._folder else ""
        base = f"http://127.0.0.1:{PORT}{access.path}"
        places = {"home": HOME, "work": work, "agents": agents}
        return {"task": instruction_text(task), "base": base, "key": access.key, "model": "k2", **places}

    def _needs(self, socket: Path) -> SandboxSpec:
        limits = Limits(memory=self.agent.memory * MEBI, processes=512, disk=512 * MEBI, files=1 << 16, open_files=4096)
        shown = (*(shown_folders(self._folder) if self._folder else ()), str(socket.parent))
        return SandboxSpec(read_only=tuple(dict.fromkeys((*shown, *host_python().read_only))), limits=limits)

    def _path(self) -> str:
        """Where programs are looked for: the agent's own first, such as its Node."""
        own = [f"{os.path.abspath(self._folder)}/{name}" for name in ("node_modules/.bin", "venv/bin")]
        return ":".join([*(own if self._folder else []), "/usr/local/bin", "/usr/bin", "/bin"])

    def _described(self, rollout: Rollout, sampling: Sampling) -> GatewayRollout:
        task = rollout.task
        return GatewayRollout(
            task=task.id,
            domain=task.domain,
            key=rollout.key.place,
            purpose=rollout.key.purpose,
            sampling=sampling,
            budget=task.budget,
            declares_tools=self.agent.turns == "tools",
            side_calls=None if self._limits.side_calls < 0 else self._limits.side_calls,
        )

    def _report(self, result: ExecResult | str, client: EpisodeClient, is_idle: bool) -> dict[str, Any]:
        """What is kept of the agent's run for readers."""
        report: dict[str, Any] = {"name": self.agent.name, "version": self.agent.version}
        if isinstance(result, str):
            return report | {"ended_by": result}
        output = (result.stderr or result.stdout).decode(errors="replace")[-_KEPT_OUTPUT:]
        ended = "memory" if result.out_of_memory else "context" if client.refused else "itself"
        ended = "itself, without a turn of its own" if is_idle and ended == "itself" else ended
        seconds = {"seconds": result.seconds, "waited": client.waited}
        return report | {"ended_by": ended, "code": result.code, **seconds, "output": output}


async def _closed(gateway: Gateway, status: Status) -> list[Trajectory]:
    """Ends the rollout; an answer that does not even come to its next token is not recorded."""
    try:
        async with asyncio.timeout(LAST_TOKEN_SECONDS):
            return await gateway.close(ROLLOUT, status)
    except TimeoutError:
        gateway.cancel_all()
        return await gateway.close(ROLLOUT, status)


def instruction_text(task: Task) -> str:
    """A task's instruction as one text.

    Raises:
        UserError: a message of it is no text.
    """
    texts = [message.get("content") for message in task.instruction]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"the instruction of the task {task.id!r} is not text alone, which is all an agent is given")
    return "\n\n".join(texts)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def _served(gateway: Gateway, access: RolloutAccess) -> AsyncIterator[Path]:
    """Serves a rollout on a socket that is alone in its folder."""
    with tempfile.TemporaryDirectory(prefix="k2jax-", dir=_SOCKETS) as folder:
        os.chmod(folder, 0o755)
        socket = Path(folder) / "gateway"
        async with rollout_socket(make_gateway_app(gateway), access.path, socket):
            yield socket


def _fill(trajectory: Trajectory, recorded: Sequence[Trajectory], status: Status) -> None:
    """Makes an episode of what a gateway recorded: side calls are trees of their own beside the agent's history.

    The nodes of the main trajectory, the first of ``recorded``, come last: its last answer is the episode's.
    """
    main, *sides = recorded
    requests: list[dict[str, Any]] = []
    trajectory.nodes, trajectory.status = [], status
    for part in (*sides, main):
        first = len(trajectory.nodes)
        for node in part.nodes:
            parent = node.parent if node.parent == ROOT else node.parent + first
            trajectory.nodes.append(dataclasses.replace(node, parent=parent))
        for request in part.metadata["requests"]:
            requests.append(request | ({"node": request["node"] + first} if "node" in request else {}))
    requests.sort(key=lambda request: request["began"])
    trajectory.metadata |= {"requests": requests, "counts": main.metadata["counts"]}
