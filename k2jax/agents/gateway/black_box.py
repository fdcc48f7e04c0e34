"""The black-box scaffold: an agent that nobody changed works in a sandbox, and its only way out is its rollout.

For every episode a gateway serves one rollout on a Unix socket, which the sandbox shows the agent. What the model
sampled is recorded at the wire and becomes the episode's token tree; what the agent leaves in its folder is collected
by the environment for the verifier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import os
from typing import Any

from k2jax.agents.environment import OUTCOME, Environment
from k2jax.agents.episode import Rollout
from k2jax.agents.gateway.agent_entries import AGENTS
from k2jax.agents.gateway.agent_episode import KEPT_OUTPUT, MODEL, AgentEnd, AgentEpisode, AgentLimits
from k2jax.agents.gateway.agent_processes import AgentProcesses
from k2jax.agents.gateway.agent_programs import linked_programs
from k2jax.agents.gateway.agent_start import check_start, command_on_image
from k2jax.agents.gateway.agents import HOME, BlackBoxAgent, read_agent, shown_folders
from k2jax.agents.gateway.episode_client import EpisodeClient
from k2jax.agents.gateway.routes import PORT, ClusterAddress, GatewayRoute, own_socket
from k2jax.agents.sandbox import Limits, SandboxSpec
from k2jax.agents.sandbox.forward import forwarded
from k2jax.agents.sandbox.interpreter import HOST_USR, host_python
from k2jax.agents.sandbox.types import MEBI, ExecResult, MountedPath
from k2jax.agents.task import Task
from k2jax.client import Sampling
from k2jax.errors import UserError, nearest

FOLDER_VARIABLE = "K2JAX_AGENTS"
"""Environment variable with the folder where agents are installed."""
ROLLOUT = "episode"
"""Name of the rollout in the agent's URL, the same in every episode so that prompts are."""
_STARTING = 600.0  # more wall time of a command than of the episode [s]


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
    train_side_calls: bool = False,
    listen: str = "",
    url: str = "",
) -> BlackBoxScaffold:
    """Makes the scaffold of an agent.

    Args:
        agent: a name of ``AGENTS``, or the path of a JSON file; see ``read_agent``.
        folder: where it is installed; by default what the variable K2JAX_AGENTS says.
        version: that is installed, if not the one for which the agent is described.
        seconds: that it may work without waiting for the model [s]. Processor time that it uses while it waits counts.
        context: longest prompt with its answer [tokens]; the agent is told the engine's own limit where that is lower.
        wall: that the episode may last, waiting included [s].
        answer: that the model has for one answer [s].
        side_calls: most side calls that are answered; -1 is the gateway's default, see ``GatewayRollout``.
        train_side_calls: whether what the model samples in them is trained on, with the reward of the episode.
        listen: address at which the model answers agents in sandboxes of a cluster, which their images contain:
            ``HOST:PORT``, or ``HOST:PORT-PORT`` for several processes of a run. Empty is a socket for sandboxes of this
            machine.
        url: where those sandboxes find that address, such as ``http://10.0.0.7:PORT``, if not at this machine's own.

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
    address = ClusterAddress.read(listen, url)
    folder = "" if address else folder or os.environ.get(FOLDER_VARIABLE, "")
    if address is None:
        described.check_installed(folder)
    limits = AgentLimits(seconds, wall, context, answer, side_calls, train_side_calls)
    limits.check(agent)
    return BlackBoxScaffold(described, folder, limits, address)


class BlackBoxScaffold:
    """Runs an agent to its end; see ``k2jax.agents.scaffolds``.

    The episode is ``truncated`` where the agent's own time, the wall time, the task's budget or the model's context was
    used up, and where the agent asked for side calls alone. An agent that makes no request has failed as a machine
    does. An episode that fails begins anew.

    Attributes:
        needs_this_machine: sandboxes on others have no way to the gateway's socket; to an address of a cluster they
            have, and then what an agent computes while it waits is in no budget but that of the wall time.
    """

    def __init__(self, agent: BlackBoxAgent, folder: str, limits: AgentLimits, address: ClusterAddress | None = None):
        """Runs ``agent``, installed in ``folder`` if it needs one; see ``black_box``."""
        self.agent = agent
        self.needs_this_machine = address is None
        self._folder, self._limits, self._address = folder, limits, address

    @property
    def patience(self) -> float:
        """How long the agent's client waits for an answer that it wants whole; 0 is for ever [s]."""
        return self.agent.patience

    async def run(self, rollout: Rollout, environment: Environment, sampling: Sampling) -> None:
        """See ``k2jax.agents.scaffolds``.

        Raises:
            InfrastructureError: the sandbox failed, or the agent did not start.
            UserError: the environment has no workspace, the agent's first request is too long for the model, or the run
                asks for what no black box can do.
        """
        declares_tools = self.agent.turns == "tools"
        name = "-".join(map(str, (rollout.key.purpose, *rollout.key.place))) if self._address else ROLLOUT
        episode = await AgentEpisode.open(rollout, sampling, self._limits, name=name, declares_tools=declares_tools)
        try:
            result, outcome = await self._work(rollout.task, environment, episode)
            said = "" if isinstance(result, str) else result.stderr[-300:] or result.stdout[-300:]
            end = await episode.end(f"the agent {self.agent.name}", is_cut=isinstance(result, str), said=said)
            report = self._report(result, episode.client, end)
            rollout.trajectory.metadata |= {OUTCOME: dict(outcome), "agent": report}
        finally:
            await episode.close()

    async def _work(self, task: Task, environment: Environment, episode: AgentEpisode) -> tuple[ExecResult | str, Any]:
        """Lets the agent work; returns how it ended, or which time was over, and the environment's outcome."""
        async with self._address.open(episode) if self._address else own_socket(episode) as route:
            programs = await asyncio.to_thread(linked_programs, self._folder) if task.image and route.socket else ()
            needs = self._needs(route, programs, on_image=bool(task.image))
            sandbox = await environment.open_workspace(task, needs)
            if self._address:
                self._address.check(sandbox.capabilities)
            if self.agent.needs_cgroup and sandbox.capabilities.memory != "cgroup":
                raise UserError(
                    f"the agent {self.agent.name} runs on Node, whose memory only a control group can limit, and this "
                    "machine lets this user make none; see python -m k2jax.sandbox check"
                )
            agent = self.agent.filled(self._values(task, episode, route, environment.folder))
            for path, text in {f"{HOME}/.keep": "", **agent.files}.items():
                await sandbox.write(path, text.encode())
            argv, path = agent.argv, [*self._programs(), sandbox.variables["PATH"]]
            starter = argv[:1]
            if task.image and route.socket:
                starter, arguments = command_on_image(argv, self._programs())
                argv = (*starter, *arguments)
                path = [*path[-1:], *path[:-1]]  # commands mean the image's Python, and not that of the agent
            env = {"HOME": HOME, "PATH": ":".join(path), **agent.env}
            if task.image or self._address:
                place = f"the image {task.image}" if task.image else "the usual image of its sandboxes"
                for needed in (starter, *([program] for program in agent.programs)):
                    await check_start(needed, sandbox, env, f"the agent {agent.name} on {place}")
            command = list(argv)
            if route.socket:
                command = forwarded(argv, str(route.socket), port=PORT, on_image=bool(task.image))
                episode.client.processor = AgentProcesses(str(route.socket)).seconds
            longest = self._limits.wall + _STARTING  # it is ended here before
            running = sandbox.exec(command, cwd=environment.folder, env=env, timeout=longest, output_limit=MEBI)
            result = await episode.watch(running)
            return result, await environment.collect()

    def _values(self, task: Task, episode: AgentEpisode, route: GatewayRoute, work: str) -> dict[str, str]:
        """What stands for the placeholders."""
        agents = os.path.abspath(self._folder) if self._folder else ""
        places = {"home": HOME, "work": work, "agents": agents, "base": route.base} | episode.sizes()
        return {"task": instruction_text(task), "key": episode.access.key, "model": MODEL, **places}

    def _needs(self, route: GatewayRoute, programs: Sequence[MountedPath], *, on_image: bool) -> SandboxSpec:
        limits = Limits(memory=self.agent.memory * MEBI, processes=512, disk=512 * MEBI, files=1 << 16, open_files=4096)
        if route.socket is None:
            return SandboxSpec(limits=limits)
        shown = (*(shown_folders(self._folder) if self._folder else ()), str(route.socket.parent))
        shown = (*shown, *programs, *host_python().read_only, *([MountedPath("/usr", HOST_USR)] if on_image else []))
        return SandboxSpec(read_only=tuple(dict.fromkeys(shown)), limits=limits)

    def _programs(self) -> list[str]:
        """Where the agent's own programs are, such as its Node."""
        own = [f"{os.path.abspath(self._folder)}/{name}" for name in ("node_modules/.bin", "venv/bin")]
        return own if self._folder else []

    def _report(self, result: ExecResult | str, client: EpisodeClient, end: AgentEnd) -> dict[str, Any]:
        """What is kept of the agent's run for readers."""
        report: dict[str, Any] = {"name": self.agent.name, "version": self.agent.version}
        if isinstance(result, str):
            return report | {"ended_by": result}
        output = (result.stderr or result.stdout).decode(errors="replace")[-KEPT_OUTPUT:]
        ended = "memory" if result.out_of_memory else "context" if end.refused else "itself"
        ended = "itself, without a turn of its own" if end.is_idle and ended == "itself" else ended
        seconds = {"seconds": result.seconds, "waited": client.waited}
        return report | {"ended_by": ended, "code": result.code, **seconds, "output": output}


def instruction_text(task: Task) -> str:
    """A task's instruction as one text.

    Raises:
        UserError: a message of it is no text.
    """
    texts = [message.get("content") for message in task.instruction]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"the instruction of the task {task.id!r} is not text alone, which is all an agent is given")
    return "\n\n".join(texts)  # type: ignore[arg-type]
