"""Requests of an engine as values of a message."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from k2jax.client import Sampling
from k2jax.data.images.patch_packing import PatchChunk
from k2jax.inference.constraints import start_constraint
from k2jax.inference.engine import Engine
from k2jax.inference.media import PlacedChunk
from k2jax.inference.request import Request

_DEFAULTS = dataclasses.asdict(Sampling())


def request_values(request: Request) -> dict[str, Any]:
    """What another engine needs to treat the request as this one does."""
    asked = dataclasses.asdict(request.sampling)
    values: dict[str, Any] = {
        "prompt": np.array(request.prompt, np.int32),
        "sampling": {name: value for name, value in asked.items() if value != _DEFAULTS[name]},
    }
    if request.tokens:
        values["tokens"] = np.array(request.tokens, np.int32)
    if request.media:
        values["media"] = [
            [placed.start, placed.chunk.pixels, list(placed.chunk.grid), placed.digest] for placed in request.media
        ]
    if request.order:
        values["order"] = list(request.order)
    if request.scored_temperature != 1.0:
        values["scored_temperature"] = float(request.scored_temperature)
    return values


def request_of(values: dict[str, Any], engine: Engine) -> Request:
    """The request that ``request_values`` was given, without who waits for it, for an engine."""
    media = tuple(
        PlacedChunk(start, PatchChunk(pixels, tuple(grid)), digest)
        for start, pixels, grid, digest in values.get("media", ())
    )
    request = Request(tuple(values["prompt"].tolist()), Sampling.from_json(values["sampling"]), media=media)
    request.constraint = start_constraint(request.sampling, engine.grammars, engine.model.vocab)
    request.resume_after(values["tokens"].tolist() if "tokens" in values else [])
    request.order = tuple(values.get("order", ()))
    request.scored_temperature = values.get("scored_temperature", 1.0)
    return request
