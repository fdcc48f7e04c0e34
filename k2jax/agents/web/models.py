"""The routes of models, in OpenAI's format or, for clients that send ``anthropic-version``, in Anthropic's."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from k2jax.agents.api import ModelCard
from k2jax.agents.api.anthropic_response import model_info, model_list
from k2jax.agents.web.http import json_response


def show_models(request: Request, card: ModelCard) -> Response:
    """``GET /v1/models`` and ``GET /v1/models/NAME``; raises ApiError 404 for another name."""
    is_anthropic, name = "anthropic-version" in request.headers, request.path_params.get("name")
    if name is None:
        return json_response(model_list(card) if is_anthropic else {"object": "list", "data": [card.json]})
    card.check_name(name)
    return json_response(model_info(card) if is_anthropic else card.json)
