"""Generated folders compute what transformers computes with them, or are refused by the name of what is unsupported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import k2jax
from k2jax.convert.source import open_folder
from k2jax.errors import UserError
from k2jax.model.rope import inverse_frequencies, rotary_factor, softmax_scale
from tests.convert.folders import logits
from tests.convert.generated import FAMILIES, VARIANTS, base_folder, write_case

TOKENS = np.random.default_rng(0).integers(0, 97, (1, 96))
APART = 3  # variants that are compared without logits, whose computation takes longer than all else
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    return {family: base_folder(folder / family, family) for family in FAMILIES}


def outcomes(family, variants, base, folder, compare):
    """Compares every variant; gives the number of those that were read."""
    read = 0
    for variant in variants:
        case = write_case(family, variant, base, folder / f"{family}_{variant}")
        try:
            open_folder(case.folder)
        except UserError as error:
            words = str(error)
            assert case.refusals and any(name in words for name in case.refusals), (variant, words)
            assert "\n" not in words
            continue
        assert not case.refusals, (variant, case.refusals)
        compare(variant, case, *k2jax.from_pretrained(case.folder, dtype=jnp.float32))
        read += 1
    return read


def of_transformers(case):
    import torch
    import transformers

    torch.set_num_threads(1)
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(case.reference, attn_implementation="eager", dtype=torch.float32).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_rotations_and_heads_are_those_of_transformers(family, bases, tmp_path):
    """For a sample of the folders; it takes no computation of the model."""

    def compare(variant, case, model, params):
        network, config = of_transformers(case), model.config
        rotary = network.model.rotary_emb
        np.testing.assert_allclose(
            inverse_frequencies(config), rotary.inv_freq.numpy(), rtol=1e-5, err_msg=str(variant)
        )
        assert rotary_factor(config.yarn) == pytest.approx(rotary.attention_scaling), variant
        if config.attention == "mla":
            assert softmax_scale(config) == pytest.approx(network.model.layers[0].self_attn.scaling), variant
        head = network.get_output_embeddings().weight.detach().numpy()
        ours = np.asarray(params["embed" if config.tied_head else "head"])
        np.testing.assert_array_equal(ours, head, err_msg=str(variant))

    variants = range(list(FAMILIES).index(family) % APART, VARIANTS, APART)  # all occur in one of the families
    assert outcomes(family, variants, bases[family], tmp_path, compare) >= len(variants) // 3


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_generated_folders_are_those_of_transformers(family, bases, tmp_path):
    """Without compilation: operations that one variant has compiled serve all others."""

    def compare(variant, case, model, params):
        with jax.disable_jit():
            ours = np.asarray(model.apply({"params": params}, jnp.asarray(TOKENS)).logits)
        difference = float(np.abs(ours - logits(of_transformers(case), TOKENS)).max())
        assert difference <= TOLERANCE, (variant, difference)

    assert outcomes(family, range(VARIANTS), bases[family], tmp_path, compare) >= VARIANTS // 3
