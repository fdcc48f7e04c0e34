"""The scaffold of a harness: any program plays an episode, with containers and a scorer of its own.

The program is told by variables where the model answers and what the task is; see ``VARIABLES``. It hands back a
reward as JSON in the file ``K2JAX_REWARD_FILE`` or by ``POST $K2JAX_BASE_URL/close`` with the key of the reward. What
the model sampled meanwhile is recorded at the wire, as of a black-box agent, and becomes the episode's token tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
import contextlib
import os
from pathlib import Path
import re
import shlex
import stat
import tempfile
from typing import Any, Literal

from k2jax.agents.environment import OUTCOME, Environment
from k2jax.agents.episode import Rollout
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.gateway.agent_episode import MODEL, AgentEpisode, AgentLimits
from k2jax.agents.gateway.app import make_gateway_app
from k2jax.agents.gateway.listener import ListenAddress, listening
from k2jax.agents.harness.closing import RewardDesk
from k2jax.agents.harness.handed_back import MOST_BYTES, VERIFIER, RewardRange
from k2jax.agents.harness.kept_program import ProgramEnd, run_program
from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.files.bounded_json import parse_bounded_json

VARIABLES = {
    "K2JAX_BASE_URL": "URL of the episode's rollout: OpenAI's clients add /v1, Anthropic's add nothing",
    "K2JAX_KEY_FILE": "file with the API key of the model, for the agents",
    "K2JAX_MODEL": "a name for the model; any other does as well",
    "K2JAX_CONTEXT": "longest prompt with its answer [tokens]",
    "K2JAX_MAX_TOKENS": "longest answer [tokens]",
    "K2JAX_TASK_FILE": "file with the task as JSON, hidden answers included",
    "K2JAX_EPISODE": "name of the episode, the same in every attempt",
    "K2JAX_SEED": "seed of what is random in the episode",
    "K2JAX_REWARD_FILE": "where the program may write its reward as JSON, before it ends",
    "K2JAX_REWARD_KEY_FILE": "file with the key of POST $K2JAX_BASE_URL/close; agents must not get it",
}
"""What a program finds in its environment, beside all variables of the run itself."""
_PORT = re.compile(r"\bPORT\b")


class CommandScaffold:
    """Runs a program to its end; see ``k2jax.agents.scaffolds``.

    The episode is ``truncated`` where the program's time, the task's budget or the model's context was used up: what it
    was handed back by then counts, unless the task says that such episodes are not judged. A program that hands back no
    reward or a wrong one, or asks its model nothing, has failed as a machine does: the episode begins anew, and is
    masked where that does not help. The code with which a program ends behind its reward does not matter.

    Args:
        program: the command and its arguments, quoted as in a shell; it runs in the working directory of the run, with
            the user's rights and all of the run's variables.
        seconds: that it may work without waiting for the model [s].
        wall: that the episode may last, waiting included [s].
        listen: address at which the model answers, ``HOST:PORT``; several processes of a run, such as its workers, need
            ``HOST:PORT-PORT``. The default is any free port of this machine alone.
        url: where the program finds that address, if not there: ``http://k2jax.default.svc:8900`` for a service of a
            cluster. The word PORT stands for the port.
        lowest: reward.
        highest: reward.
        turns: which requests are the agent's own turns: those that declare ``tools``, so that others are side calls, or
            ``all``.
        context: longest prompt with its answer [tokens]; the engine's own limit holds where that is lower.
        answer: that the model has for one answer [s].
        side_calls: most side calls that are answered; -1 is the gateway's default, see ``GatewayRollout``.
        train_side_calls: whether what the model samples in them is trained on, with the reward of the episode.

    Raises:
        UserError: an option is out of its range.
    """

    def __init__(
        self,
        program: str,
        seconds: float = 3600.0,
        wall: float = 86400.0,
        *,
        listen: str = "127.0.0.1:0",
        url: str = "",
        lowest: float = 0.0,
        highest: float = 1.0,
        turns: Literal["tools", "all"] = "tools",
        context: int = 1 << 20,
        answer: float = 3600.0,
        side_calls: int = -1,
        train_side_calls: bool = False,
    ):
        self._program = shlex.split(program)
        if not self._program:
            raise UserError("the scaffold 'command' needs the option program='PROGRAM ARGUMENT ...'")
        self._limits = AgentLimits(seconds, wall, context, answer, side_calls, train_side_calls)
        self._limits.check(repr("command"))
        self._allowed = RewardRange(lowest, highest)
        self._allowed.check()
        self._address, self._url = ListenAddress.read(listen), url.removesuffix("/")
        if self._address.is_any and not url:
            raise UserError(f"listen={listen} is every interface; say with url=http://HOST:PORT which the program uses")
        self._declares_tools = turns == "tools"

    async def run(self, rollout: Rollout, environment: Environment, sampling: Sampling) -> None:
        """See ``k2jax.agents.scaffolds``; the environment is not used.

        Raises:
            InfrastructureError: the program failed, or handed back no reward.
            UserError: its first request is too long for the model, or the run asks for what no such program can do.
        """
        key = rollout.key
        name = "-".join(map(str, (key.purpose, *key.place)))
        options = {"name": name, "declares_tools": self._declares_tools}
        episode = await AgentEpisode.open(rollout, sampling, self._limits, **options)
        try:
            result, reward = await self._play(rollout, episode)
            said = result if isinstance(result, str) else result.output[-300:]
            end = await episode.end(f"the program {self._program[0]}", is_cut=isinstance(result, str), said=said)
        finally:
            await episode.close()
        report: dict[str, Any] = {"name": self._program[0], "waited": episode.client.waited}
        if isinstance(result, str):
            report["ended_by"] = result
        else:
            report |= result._asdict() | {"ended_by": "context" if end.refused else "itself"}
        rollout.trajectory.metadata |= {OUTCOME: {} if reward is None else {VERIFIER: reward}, "agent": report}

    async def _play(self, rollout: Rollout, episode: AgentEpisode) -> tuple[ProgramEnd | str, Mapping[str, Any] | None]:
        """Runs the program; returns how it ended, or which time was over, and the reward."""
        session = episode.gateway.session(episode.access.rollout)

        def end_requests() -> None:
            session.is_closed = True

        desk, path = RewardDesk(self._allowed, end_requests), episode.access.path
        app = desk.app(path, make_gateway_app(episode.gateway))
        # The folder is of this user alone; what containers of the program have made in it may be of others.
        with tempfile.TemporaryDirectory(prefix="k2jax-", ignore_cleanup_errors=True) as folder:
            async with listening(self._address, path, app) as port:
                variables = self._variables(Path(folder), episode, desk, port, rollout)
                result = await episode.watch(run_program(self._program, os.environ | variables))
            reward = await self._handed_back(desk, Path(variables["K2JAX_REWARD_FILE"]))
        if reward is None and rollout.task.verifier == VERIFIER:
            raise EnvironmentFailedError(f"the program {self._program[0]} {_without_reward(result)}")
        return result, reward

    def _variables(
        self, folder: Path, episode: AgentEpisode, desk: RewardDesk, port: int, rollout: Rollout
    ) -> dict[str, str]:
        """What the program is told; keys and the task lie in files that nobody else may read."""
        texts = {"key": episode.access.key, "reward-key": desk.key, "task.json": rollout.task.to_json()}
        for name, text in texts.items():
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        base = _PORT.sub(str(port), self._url or f"http://{host}:PORT")
        sizes = episode.sizes()
        values = {
            "K2JAX_BASE_URL": base + episode.access.path,
            "K2JAX_KEY_FILE": folder / "key",
            "K2JAX_MODEL": MODEL,
            "K2JAX_CONTEXT": sizes["context"],
            "K2JAX_MAX_TOKENS": sizes["max_tokens"],
            "K2JAX_TASK_FILE": folder / "task.json",
            "K2JAX_EPISODE": episode.access.rollout,
            "K2JAX_SEED": rollout.trajectory.metadata["seed"],
            "K2JAX_REWARD_FILE": folder / "reward.json",
            "K2JAX_REWARD_KEY_FILE": folder / "reward-key",
        }
        return {name: str(values[name]) for name in VARIABLES}

    async def _handed_back(self, desk: RewardDesk, file: Path) -> Mapping[str, Any] | None:
        """The reward; None where there is none.

        Raises:
            EnvironmentFailedError: the file holds no reward, or there are two.
        """
        data = await asyncio.to_thread(_read_small, file)
        if data is None:
            return desk.reward
        if desk.reward is not None:
            raise EnvironmentFailedError(f"the program {self._program[0]} handed back two rewards")
        try:
            return self._allowed.read(await asyncio.to_thread(parse_bounded_json, data))
        except (ValueError, TypeError) as error:
            raise EnvironmentFailedError(f"the program {self._program[0]} handed back no reward: {error}") from None


def _read_small(path: Path) -> bytes | None:
    """What a file holds; None where there is none.

    Raises:
        EnvironmentFailedError: it is no regular file, or too long.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentFailedError(f"the file of the reward cannot be read: {error.strerror}") from None
    with contextlib.closing(open(descriptor, "rb")) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise EnvironmentFailedError("the file of the reward is no regular file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise EnvironmentFailedError(f"the file of the reward has more than {MOST_BYTES} bytes")
    return data


def _without_reward(result: ProgramEnd | str) -> str:
    if isinstance(result, str):
        return f"had handed back no reward when its {result} was over"
    last = result.output.strip().rpartition("\n")[2][-200:]  # which says most where a program fails
    return f"ended with code {result.code} and handed back no reward: {last!a}"
