"""Keys of validation, which runs of reinforcement learning do not read, are refused where one starts."""

import pytest

from k2jax.config import defaults, resolve
from k2jax.rl.setup import check_config
from tests.refusal import refused


def config_with(**keys):
    config = defaults("rl", model="micro")
    config.update_from_flattened_dict(keys)
    return resolve(config)


@pytest.mark.parametrize(("key", "value"), [
    ("eval.rows", 32), ("eval.final_rows", 8), ("eval.by_source", True), ("eval.sample_tokens", 4),
    ("eval.prompts", ("a",)), ("eval.sample_temperature", 1.0), ("train.patience", 3),
])  # fmt: skip
def test_a_key_that_is_not_read_is_named(key, value):
    with refused(f"config.{key} .* is for stages pretrain and sft"):
        check_config(config_with(**{key: value}))


def test_what_says_that_nothing_is_sampled_passes():
    check_config(config_with(**{"eval.sample_tokens": 0}))
