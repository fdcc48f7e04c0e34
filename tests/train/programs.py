"""Programs that runs of one process share: to trace one takes longer than a short run of it."""

import copy
import dataclasses

import jax

from k2jax.losses import NLL
from k2jax.train.program import Program
from k2jax.train.state import init_state

_made = {}


def shared_program(config, devices=None, loss=None) -> Program:
    """The program of a config, made once for all configs that compile to the same.

    What is left of a run is its state, which is not in the program; runs in new processes trace their own.
    """
    key = repr(_compiled_part(config)), devices and tuple(devices), type(loss or NLL())
    if key not in _made:
        made = Program(config, devices, loss)
        made.init = jax.jit(lambda: init_state(config, made.optimizer, made.layout), out_shardings=made.shardings)
        _made[key] = made
    shared = copy.copy(_made[key])
    shared.config = config
    return shared


def once_per_config(function):
    """A function of a config, called once for each; configs are not hashable."""
    made = {}

    def cached(config):
        key = repr(config)
        if key not in made:
            made[key] = function(config)
        return made[key]

    return cached


def _compiled_part(config):
    """The config without what only the loop reads: when it validates, saves and traces, and where things come from."""
    rates = {each.rate for each in config.phases.values()}
    return dataclasses.replace(
        config,
        phases={} if rates == {"schedule"} else config.phases,
        init_from="",
        init_tower_from="",
        checkpoint=None,
        eval=None,
        log=None,
        data=dataclasses.replace(config.data, sources={}, cache_dir="", workers=0),
        train=dataclasses.replace(config.train, profile_steps=(), spike_factor=1.2, patience=0),
        rl=dataclasses.replace(
            config.rl, rollout=dataclasses.replace(config.rl.rollout, offload_state=False, publish=False)
        ),
    )
