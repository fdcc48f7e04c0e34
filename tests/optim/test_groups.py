"""Every weight in exactly one group, by its role."""

import dataclasses

import pytest

from k2jax import params
from k2jax.config.schema import OptimizerConfig
from k2jax.optim.groups import group_of, group_table
from k2jax.params import ParamSpec, named_specs
from tests.optim.muonclip_reference import model_specs

CONFIG = OptimizerConfig()


def vector(role):
    return ParamSpec((3,), ("embed",), role, ("embed",), hf="w")


def test_the_table_of_a_model():
    """Muon for projections and experts only; embedding, head, router and norms to AdamW; decay on matrices only."""
    rows = {row.name: row for row in group_table(model_specs(), CONFIG)}
    assert set(rows) == {name for name, _ in named_specs(model_specs())}
    muon = {name for name, row in rows.items() if row.group == "muon"}
    attention = {
        f"{group}/attention/{name}" for group in ("dense", "moe") for name in ("q_a", "q_b", "kv_a", "kv_b", "o")
    }
    ffn = {f"{place}/{name}" for place in ("dense/ffn", "moe/experts", "moe/shared") for name in ("w13", "w2")}
    assert muon == attention | ffn
    assert {name for name, row in rows.items() if row.group == "balance"} == {"moe/router_bias"}
    assert {name for name, row in rows.items() if row.decays} == muon | {"embed", "head", "moe/router"}
    assert rows["embed"].shape == (20, 12)


@pytest.mark.parametrize("role", params.ROLES)
@pytest.mark.parametrize("name", ["muonclip", "muon", "adamw"])
def test_every_role_has_one_group(role, name):
    config = dataclasses.replace(CONFIG, name=name)
    group = group_of(vector(role), config)
    if role == "router_bias":
        assert group == "balance"
    elif name != "adamw" and role == "matrix":
        assert group == "muon"
    else:
        assert group == "adamw"


def test_a_role_without_a_group_is_an_error(monkeypatch):
    """A weight that no rule updates would be frozen silently."""
    monkeypatch.setattr(params, "ROLES", (*params.ROLES, "gate"))
    with pytest.raises(ValueError, match="no optimizer group"):
        group_of(vector("gate"), CONFIG)
