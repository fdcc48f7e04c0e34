"""The routes of models, in OpenAI's format or, for clients that send ``anthropic-version``, in Anthropic's."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from k2jax.agents.api import ModelCard
from k2jax.agents.api.anthropic_response import model_info, model_list
from k2jax.agents.web.http import json_response


def list_models(request: Request, card: ModelCard) -> Response:
    """``GET /v1/models``."""
    if "anthropic-version" in request.headers:
        return json_response(model_list(card))
    return json_response({"object": "list", "data": [card.json]})


def show_model(request: Request, card: ModelCard) -> Response:
    """``GET /v1/models/NAME``; raises ApiError 404 for another name."""
    card.check_name(request.path_params["name"])
    return json_response(model_info(card) if "anthropic-version" in request.headers else card.json)
