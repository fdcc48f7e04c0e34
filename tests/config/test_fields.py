"""Choices and ranges that stand in the types of the schema: what they admit, and that their consumers know the same."""

import dataclasses
import subprocess
import sys
from typing import Annotated, Literal, get_args

import pytest

from k2jax.config import defaults, replace_keys, resolve
from k2jax.config import schema as schemas
from k2jax.config.activations import POLICIES
from k2jax.config.fields import FieldType, field_type
from k2jax.config.ranges import Above, AtLeast, Between
from k2jax.config.reference import keys, reference_text
from k2jax.errors import UserError
from k2jax.model.attention import ATTENTION
from pallas_kernels.expert_exchange.exchange import Backend
from pallas_kernels.implementation import Impl
from pallas_kernels.routed_experts import CAPACITY_FACTOR

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("limits", "admitted", "refused", "words"),
    [
        (AtLeast(1), (1, 1.5, 10**9), (0, 0.99, -1, INF, -INF, NAN), "at least 1"),
        (Above(0), (1e-30, 5), (0, -1, INF, NAN), "above 0"),
        (Between(0, 1), (0, 0.5, 1), (-1e-9, 1.01, INF, NAN), "in [0, 1]"),
        (Between(0, 1, open_high=True), (0, 0.999), (1, -1, NAN), "in [0, 1)"),
        (Between(0, 1, open_low=True), (1e-9, 1), (0, 2, NAN), "in (0, 1]"),
    ],
)
def test_a_range_admits_its_numbers_alone(limits, admitted, refused, words):
    assert all(value in limits for value in admitted)
    assert not any(value in limits for value in refused)
    assert str(limits) == words


@pytest.mark.parametrize(
    ("hint", "expected", "words"),
    [
        (int, FieldType(int), "int"),
        (str | None, FieldType(str, optional=True), "str, or None"),
        (Literal["a", "b"], FieldType(str, choices=("a", "b")), "one of a, b"),
        (Annotated[int, AtLeast(1)], FieldType(int, limits=AtLeast(1)), "int at least 1"),
        (
            Annotated[int, AtLeast(1)] | None,
            FieldType(int, limits=AtLeast(1), optional=True),
            "int at least 1, or None",
        ),
        (tuple[int, ...], FieldType(int, is_tuple=True), "tuple of int"),
    ],
)
def test_an_annotation_is_read(hint, expected, words):
    assert field_type(hint) == expected
    assert str(field_type(hint)) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.attention": "mha"}, "config.model.attention is 'mha'; did you mean 'mla'?"),
        ({"model.mla.q_lora_rank": 0}, "config.model.mla.q_lora_rank must be at least 1, or None, not 0"),
        ({"model.moe.shared_experts": -1}, "config.model.moe.shared_experts must be at least 0, not -1"),
        ({"model.moe.capacity_factor": 0.0}, "config.model.moe.capacity_factor must be finite and above 0, not 0.0"),
        ({"data.held_out": 1.0}, "config.data.held_out must be in [0, 1), not 1.0"),
        ({"data.sequence_length": 1}, "config.data.sequence_length must be at least 2, not 1"),
        ({"train.compute_dtype": "fp16"}, "config.train.compute_dtype is 'fp16'; did you mean 'bfloat16'?"),
        ({"data.sources.stdlib.kind": "csv"}, "config.data.sources.stdlib.kind is 'csv'; there are"),
        ({"data.sources.stdlib.weight": 0.0}, "config.data.sources.stdlib.weight must be finite and above 0, not 0.0"),
        ({"parallel.expert_backend": "ring"}, "config.parallel.expert_backend is 'ring'; there are"),
    ],
)
def test_a_value_outside_its_type_is_refused_in_one_line(changes, words):
    config = defaults("pretrain")
    config.update_from_flattened_dict(changes)
    with pytest.raises(UserError) as error:
        resolve(config)
    assert str(error.value).startswith(words) and "\n" not in str(error.value)


def test_a_dataclass_is_checked_like_a_config_dict():
    config = replace_keys(resolve(defaults("pretrain")), {"train.steps": 0})
    with pytest.raises(UserError, match=r"config.train.steps must be at least 1, not 0"):
        resolve(config)


def test_no_number_of_a_group_of_widths_or_lengths_may_be_zero():
    """Every annotated field refuses a number below its range, whatever the other keys say."""
    limited = [key for key in keys() if "at least 1" in key.type and "NAME" not in key.path]
    assert len(limited) > 30
    for key in limited:
        config = replace_keys(resolve(defaults("pretrain")), {key.path: 0})
        with pytest.raises(UserError, match=rf"config\.{key.path} must be .*at least 1"):
            resolve(config)


def test_consumers_know_the_same_choices():
    assert get_args(schemas.Kernels) == get_args(Impl)
    assert set(get_args(schemas.ExpertBackend)) == set(get_args(Backend)) - {"dma"}  # which only the bench measures
    assert set(get_args(schemas.RematPolicy)) == set(POLICIES)
    attention = {field.name for field in dataclasses.fields(schemas.ModelConfig)} & set(get_args(schemas.AttentionKind))
    assert attention == set(get_args(schemas.AttentionKind))  # each kind has its group of keys
    assert set(ATTENTION) == attention
    assert schemas.MoEConfig().capacity_factor == CAPACITY_FACTOR
    dtypes = set(get_args(schemas.ComputeDtype))
    assert dtypes == {"auto", "float32", "bfloat16"}


def test_help_prints_choices_and_ranges():
    text = reference_text()
    assert "model.attention (one of mla, gqa, default 'mla')" in text
    assert "model.mla.q_lora_rank (int at least 1, or None, default 96)" in text
    assert "parallel.expert_slots (float in (0, 1], default 1.0)" in text


def test_configurations_load_without_jax():
    """Processes that hold no model read configurations too; jax and NumPy would cost them a second and 100 MB."""
    code = (
        "import sys, k2jax.config, k2jax.config.reference, k2jax.cli; "
        "k2jax.config.resolve(k2jax.config.defaults('pretrain')); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'jax', 'jaxlib', 'numpy', 'flax', 'torch'}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
