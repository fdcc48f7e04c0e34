"""The judge that ``config.rl.critic`` describes: checked and opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
import contextlib
import os
import re
from typing import Any

from k2jax.agents.judges.judge import ChatJudge, Judge
from k2jax.agents.judges.judge_formats import JUDGE_FORMATS
from k2jax.agents.judges.rubrics import Rubric, load_rubrics
from k2jax.agents.mixture import CRITIC
from k2jax.agents.roles import RoleClient
from k2jax.agents.verdicts import VerdictLog
from k2jax.client import ChatEndpoint, HTTPClient
from k2jax.config.schema import Config, RLConfig
from k2jax.convert.loading import tokenizer_of
from k2jax.errors import UserError, nearest
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.inputs import endpoint_options
from k2jax.text.chat import chat_format


def uses_critic(rl: RLConfig) -> bool:
    """Whether anything in a run is judged by comparison, or trains the judge."""
    return bool(rl.critic.share) or any(task.is_judged for task in rl.tasks.values())


def check_critic(config: Config) -> None:
    """Rejects what the critic cannot do, before anything is opened.

    Raises:
        UserError: in one line that names the keys.
    """
    rl, critic = config.rl, config.rl.critic
    if not uses_critic(rl):
        return
    if CRITIC in rl.tasks:
        raise UserError(f"config.rl.tasks.{CRITIC}: {CRITIC!r} is the class of the judge's own tasks; choose another")
    if critic.share and critic.judge != "policy":
        raise UserError("config.rl.critic.share trains the policy as its own judge; set rl.critic.judge to policy")
    if critic.share and not any(task.is_verified for task in rl.tasks.values()):
        raise UserError("config.rl.critic.share needs a class in config.rl.tasks with a verifier_weight")
    if rl.toggle.period and any(not task.is_verified for task in rl.tasks.values()):
        raise UserError("config.rl.toggle counts right responses, which no critic knows; set rl.toggle.period to 0")
    if (critic.judge == "role") != bool(critic.role):
        raise UserError(
            f"config.rl.critic.role is {critic.role!r} with rl.critic.judge {critic.judge}; set both or none"
        )
    if critic.role and critic.role not in rl.roles:
        near = nearest(critic.role, list(rl.roles))
        raise UserError(f"config.rl.critic.role {critic.role!r} is not in config.rl.roles{near}")
    if critic.judge != "endpoint" and critic.max_tokens >= rl.rollout.max_length:
        raise UserError(
            f"config.rl.critic.max_tokens {critic.max_tokens} leaves no room for a question in "
            f"config.rl.rollout.max_length {rl.rollout.max_length}"
        )
    if critic.format == "compact" and critic.rubrics:
        raise UserError("config.rl.critic.rubrics are not read with rl.critic.format compact; set it to chat")
    if critic.judge == "endpoint" and not (re.match("https?://", critic.url) and critic.model):
        raise UserError("config.rl.critic.judge endpoint needs rl.critic.url (http://...) and rl.critic.model")
    if critic.api == "chat" and critic.tokenizer:
        raise UserError("config.rl.critic.tokenizer is of rl.critic.api completions; set that, or leave it out")
    if critic.judge != "endpoint" and (critic.url or critic.model or critic.tokenizer):
        raise UserError("config.rl.critic.url, model and tokenizer are of an endpoint; set rl.critic.judge to endpoint")
    if critic.api_key_variable and not os.environ.get(critic.api_key_variable):
        raise UserError(f"config.rl.critic.api_key_variable: ${critic.api_key_variable} is not set; export the key")
    read_rubrics(rl)


def read_rubrics(rl: RLConfig) -> tuple[Rubric, ...]:
    """The rubrics of a run; none with the compact format, which has no room for them.

    Raises:
        UserError: a file of rubrics is wrong.
    """
    return () if rl.critic.format == "compact" else load_rubrics(rl.critic.rubrics)


Gather = Callable[..., Coroutine[Any, Any, list[Any]]]
"""Runs coroutines that ask a judge: a lockstep client's, where the judge has an engine here."""


def open_judge(
    config: Config,
    asked: RoleClient,
    *,
    log: VerdictLog | None,
    event_loop: EventLoop,
    opened: contextlib.ExitStack,
) -> tuple[Judge, Gather]:
    """The judge of a run, and what runs the coroutines that ask it.

    Args:
        config: the run's.
        asked: the policy, or the role that judges.
        log: verdicts on comparisons are written to it.
        event_loop: on which the judge is asked.
        opened: closes the connections to an endpoint.

    Raises:
        UserError: the endpoint's tokenizer cannot be read or has no chat format.
    """
    rl, critic = config.rl, config.rl.critic
    style = JUDGE_FORMATS[critic.format]
    options = {"max_tokens": critic.max_tokens, "log": log}
    client, chat, tokenizer, _ = asked
    if critic.judge != "endpoint":
        # A log that a killed run has left must not decide what the engine runs.
        options |= {"name": critic.role or "policy", "max_length": rl.rollout.max_length, "always_asks": True}
        return Judge(client, chat, tokenizer, style, **options), client.gather
    if critic.tokenizer and critic.api == "completions":
        tokenizer = tokenizer_of(critic.tokenizer)
        chat = chat_format(tokenizer)
    requests = endpoint_options(rl)
    options["concurrency"] = critic.concurrency
    if critic.api == "chat":
        endpoint = ChatEndpoint(critic.url, critic.model, **requests)
        judge: Judge = ChatJudge(endpoint, style, **options)
    else:
        endpoint = HTTPClient(critic.url, critic.model, **requests)
        judge = Judge(endpoint, chat, tokenizer, style, name=critic.model, **options)
    opened.callback(lambda: event_loop.run(endpoint.__aexit__()))
    return judge, asyncio.gather
