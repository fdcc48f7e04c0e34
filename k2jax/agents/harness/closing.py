"""Where a program hands back its reward: ``POST .../close`` below the URL of its rollout, once, with a key of its own.

The key of the model is what a harness gives to its agents. The key of the reward is another one, so that no agent can
hand back a reward for itself.
"""

from __future__ import annotations

from collections.abc import Callable
import hashlib
import hmac
import secrets
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from k2jax.agents.api import ApiError
from k2jax.agents.api.api_error import bad_request
from k2jax.agents.harness.handed_back import MOST_BYTES, RewardRange
from k2jax.agents.web.arrivals import Arrivals
from k2jax.agents.web.http import EXCEPTION_HANDLERS, json_response
from k2jax.client.keys import given_key

_KEY_BYTES = 24


class RewardDesk:
    """Takes the reward of an episode.

    Args:
        allowed: range of the reward.
        on_reward: called when it is there.

    Attributes:
        key: of whoever may hand it back.
        reward: as ``RewardRange.read`` returns it; None until it is there.
    """

    def __init__(self, allowed: RewardRange, on_reward: Callable[[], None]):
        self.key = f"k2-reward-{secrets.token_urlsafe(_KEY_BYTES)}"
        self.reward: dict[str, Any] | None = None
        self._allowed, self._on_reward = allowed, on_reward
        self._arrivals = Arrivals(MOST_BYTES)

    def app(self, path: str, gateway: ASGIApp) -> ASGIApp:
        """The application of a gateway, with the route of the reward.

        Args:
            path: of the rollout at the gateway.
            gateway: serves everything else.
        """
        routes = [Route(f"{path}/close", self._close, methods=["POST"]), Mount("/", gateway)]
        return Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)

    async def _close(self, request: Request) -> Response:
        digest = hashlib.sha256(given_key(request.scope["headers"]) or b"").digest()
        if not hmac.compare_digest(digest, hashlib.sha256(self.key.encode()).digest()):
            raise ApiError(401, "this needs the key of the reward, in K2JAX_REWARD_KEY_FILE", code="invalid_api_key")
        async with self._arrivals.of(request, None) as arrival:
            reward = await arrival.parse(self._read)
        if self.reward is not None:
            raise ApiError(409, "the reward of this episode has been handed back already", code="already_closed")
        self.reward = reward
        self._on_reward()
        return json_response({"reward": reward["value"]})

    def _read(self, value: Any) -> dict[str, Any]:
        try:
            return self._allowed.read(value)
        except (ValueError, TypeError) as error:
            raise bad_request("reward", str(error)) from None
