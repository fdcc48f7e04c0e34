"""The gateway's routes: those of a rollout, for its agent, and those that open and end rollouts, for the operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
import contextlib
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from k2jax.agents.api import CHAT_DIALECTS, ApiError, Conversation, Dialect, ModelCard, PromptUsage, anthropic
from k2jax.agents.api.api_error import bad_request, unavailable, unsupported
from k2jax.agents.api.conversation import render
from k2jax.agents.api.once import Once
from k2jax.agents.api.requests import api_errors
from k2jax.agents.gateway.exchange import PreparedRequest
from k2jax.agents.gateway.gateway import Gateway
from k2jax.agents.gateway.history import conversation_keys, encode_history
from k2jax.agents.gateway.session import GatewaySession
from k2jax.agents.gateway.spec import GatewayRollout
from k2jax.agents.web.arrivals import Arrival, Arrivals, busy, longest_body
from k2jax.agents.web.http import EXCEPTION_HANDLERS, json_response, respond
from k2jax.agents.web.models import show_models
from k2jax.client.keys import ApiKeys, given_key
from k2jax.errors import UserError

MOST_ANSWERS = 128
"""Answers of one rollout that are generated, or wait for its budget, at a time."""
MOST_HELD = 100 << 20
"""Memory of the requests of one rollout that wait for their answers, roughly, while there are several [bytes]."""
_OPERATOR_BYTES = 1 << 20


def make_gateway_app(
    gateway: Gateway, keys: ApiKeys | None = None, *, max_body_bytes: int | None = None, max_running: int = 1024
) -> Starlette:
    """Returns the application.

    Args:
        gateway: the rollouts.
        keys: of the operator, who opens and ends rollouts over HTTP; None leaves these routes out.
        max_body_bytes: longest request body; by default 8 MiB, 32 MiB for a model that reads images [bytes].
        max_running: most answers that are generated at the same time.
    """
    longest = longest_body(max_body_bytes, gateway.card.media is not None)
    agents, operator = AgentEndpoints(gateway, longest, max_running), OperatorEndpoints(gateway, keys)
    base = "/r/{rollout}"
    routes = [
        Route("/health", _health),
        Route(f"{base}/v1/models", agents.models),
        Route(f"{base}/v1/models/{{name:path}}", agents.models),
        *(Route(base + dialect.path, agents.generation(dialect), methods=["POST"]) for dialect in CHAT_DIALECTS),
        Route(f"{base}{anthropic.DIALECT.path}/count_tokens", agents.count_tokens, methods=["POST"]),
    ]
    if keys is not None:
        routes += [
            Route("/rollouts", operator.open, methods=["POST"]),
            Route("/rollouts/{rollout}", operator.show),
            Route("/rollouts/{rollout}/close", operator.close, methods=["POST"]),
        ]
    return Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)


async def _health(request: Request) -> Response:
    """``GET /health``: 200 while the gateway runs."""
    return json_response({"status": "ok"})


class AgentEndpoints:
    """The handlers of a rollout's routes; every one needs the rollout's key."""

    def __init__(self, gateway: Gateway, max_body_bytes: int, max_running: int):
        self._gateway, self._max_running = gateway, max_running
        self._arrivals = Arrivals(max_body_bytes)

    async def models(self, request: Request) -> Response:
        """``GET /v1/models`` and ``GET /v1/models/NAME``."""
        self._session(request)
        return show_models(request, self._gateway.card)

    async def count_tokens(self, request: Request) -> Response:
        """``POST /v1/messages/count_tokens``: counted as if the history were encoded anew."""
        session = self._session(request)
        async with self._arrivals.of(request, session.name) as arrival:
            conversation = await arrival.parse(anthropic.read_messages, self._gateway.card, True)
            rendered = await arrival.run(render, conversation, self._gateway.card)
        return json_response({"input_tokens": len(rendered.prompts[0])})

    def generation(self, dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
        """Returns the handler of a dialect's endpoint."""

        async def generate(request: Request) -> Response:
            session = self._session(request)
            if self._gateway.closing:
                raise unavailable("the gateway is shutting down")
            session.check_recorded()
            async with self._arrivals.of(request, session.name) as arrival:
                with _noting_length(session):
                    prepared = await self._prepare(session, dialect, arrival)
            if self._gateway.running >= self._max_running or session.in_progress >= MOST_ANSWERS:
                raise busy("too many answers are being generated")
            if session.in_progress and session.held_bytes + prepared.held_bytes > MOST_HELD:
                raise busy("too many long requests are being answered")
            exchange = self._gateway.start(prepared)
            usage = PromptUsage(len(exchange.request.prompts[0]), cached=0)
            answer = {"deltas": exchange.deltas(), "usage": lambda: usage}
            ends = {"on_end": exchange.abandon, "on_abandon": exchange.abandon}
            return await respond(request.receive, dialect, exchange.request, self._gateway.card, **answer, **ends)

        return generate

    async def _prepare(self, session: GatewaySession, dialect: Dialect, arrival: Arrival) -> PreparedRequest:
        bodies = session.bodies
        conversation, keys = await arrival.run(
            bodies.read, arrival.body, dialect, read_with_keys(dialect, self._gateway.card)
        )
        number, match = session.history_for(conversation, keys)
        history = session.history(number)
        # Copying and encoding long histories takes a while, in which the event loop serves others; the match stays
        # valid, because histories only grow.
        with api_errors():
            encoded = await arrival.run(lambda: encode_history(match, history.resumed(match), self._gateway.card))
        return PreparedRequest(session, number, match.without_messages(), encoded, dialect.path)

    def _session(self, request: Request) -> GatewaySession:
        return self._gateway.authorized(request.path_params["rollout"], given_key(request.scope["headers"]))


class OperatorEndpoints:
    """The handlers of the routes that open and end rollouts; every one needs a key of the operator."""

    def __init__(self, gateway: Gateway, keys: ApiKeys | None):
        self._gateway, self._keys = gateway, keys
        self._arrivals = Arrivals(_OPERATOR_BYTES)

    async def open(self, request: Request) -> Response:
        """``POST /rollouts``: the fields of ``GatewayRollout``, and its ``name``."""
        self._check(request)
        body = await self._body(request)
        with api_errors():
            if not isinstance(body, dict):
                raise bad_request(None, "the request body must be a JSON object")
            name = body.pop("name", None)
            if name is not None and not isinstance(name, str):
                raise bad_request("name", "name must be text")
            access = self._gateway.open(GatewayRollout.from_json(body), name)
        return json_response(access._asdict())

    async def show(self, request: Request) -> Response:
        """``GET /rollouts/NAME``: what happened in a rollout so far."""
        self._check(request)
        session = self._find(request)
        return json_response({"rollout": session.name, "closed": session.is_closed, "counts": session.counts()})

    async def close(self, request: Request) -> Response:
        """``POST /rollouts/NAME/close``: ends a rollout, with an optional ``status`` and ``error``."""
        self._check(request)
        session = self._find(request)
        body = await self._body(request)
        values = body if isinstance(body, dict) else {}
        status, error = values.get("status", "finished"), values.get("error", "")
        if not isinstance(status, str) or not isinstance(error, str):
            raise bad_request("status", "status and error must be text")
        try:
            with api_errors():
                trajectories = await self._gateway.close(session.name, status, error)  # type: ignore[arg-type]
        except OSError as failure:
            raise unavailable(f"the end could not be written: {failure.strerror}") from None
        return json_response({"rollout": session.name, "trajectories": len(trajectories), "counts": session.counts()})

    async def _body(self, request: Request) -> Any:
        async with self._arrivals.of(request, None) as arrival:
            return await arrival.parse(lambda body: body)

    def _check(self, request: Request) -> None:
        if self._keys is None or not self._keys or not self._keys.accept(given_key(request.scope["headers"])):
            raise ApiError(401, "this needs a key of the operator", code="invalid_api_key")

    def _find(self, request: Request) -> GatewaySession:
        try:
            return self._gateway.session(request.path_params["rollout"])
        except UserError as error:
            raise ApiError(404, str(error)) from None


@contextlib.contextmanager
def _noting_length(session: GatewaySession) -> Iterator[None]:
    """Keeps why a prompt is too long for the model."""
    try:
        yield
    except ApiError as error:
        if error.code == "context_length_exceeded":
            session.refused = error.message
        raise


def read_with_keys(dialect: Dialect, card: ModelCard) -> Callable[[Any, Once], tuple[Conversation, tuple[str, ...]]]:
    """What reads a body: what it says, and the keys of its messages."""
    assert dialect.read is not None

    def read(body: Any, once: Once) -> tuple[Conversation, tuple[str, ...]]:
        with api_errors():
            conversation = dialect.read(body, card, lenient=True, once=once)
            if conversation.options.n != 1:
                raise unsupported("n", "a rollout samples one answer at a time")
            conversation.check_length(card, once)
            return conversation, conversation_keys(conversation, once)

    return read
