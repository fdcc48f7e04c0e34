"""The SwiGLU MLP of each expert on its own rows, and its explicit backward pass."""

import jax
import jax.numpy as jnp


def accumulator_dtype(dtype) -> jnp.dtype:
    """Dtype in which products of ``dtype`` are summed: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


def preactivation(xs_ECD: jax.Array, w13_ED2F: jax.Array) -> jax.Array:
    """Multiplies rows with gate and up weights in one pass; returns ``[E, C, 2F]`` (gate, then up) in their dtype."""
    return _einsum("ecd,edf->ecf", xs_ECD, _merged(w13_ED2F)).astype(xs_ECD.dtype)


def output(h13_EC2F: jax.Array, w2_EFD: jax.Array) -> jax.Array:
    """Applies SwiGLU and the down projection; returns ``[E, C, D]`` in the accumulator's dtype."""
    return _einsum("ecf,efd->ecd", activation(h13_EC2F), w2_EFD)


def activation(h13_EC2F: jax.Array) -> jax.Array:
    """SwiGLU's ``silu(gate) * up``, ``[E, C, F]`` in the dtype of the pre-activation."""
    gate_ECF, up_ECF = _split(h13_EC2F)
    return (jax.nn.silu(gate_ECF) * up_ECF).astype(h13_EC2F.dtype)


def backward(xs_ECD, h13_EC2F, dys_ECD, weight_EC, w13_ED2F, w2_EFD):
    """Differentiates ``weight_EC * output(preactivation(xs_ECD, w13_ED2F), w2_EFD)`` from its pre-activation.

    The gradient of the weight is ``<ys, dys> = <a w2, dys> = <a, dys w2^T>``, which does not need ys.

    Returns:
        (dxs ``[E, C, D]``, dw13 ``[E, D, 2, F]``, dw2 ``[E, F, D]``, dweight ``[E, C]``) in the accumulator's dtype.
    """
    gate_ECF, up_ECF = _split(h13_EC2F)
    weight_EC1 = weight_EC[..., None].astype(gate_ECF.dtype)
    sigmoid_ECF = jax.nn.sigmoid(gate_ECF)
    silu_ECF = gate_ECF * sigmoid_ECF
    a_ECF = silu_ECF * up_ECF
    da_ECF = _einsum("ecd,efd->ecf", dys_ECD, w2_EFD)
    dweight_EC = jnp.sum(a_ECF * da_ECF, axis=-1)
    dw2_EFD = _einsum("ecf,ecd->efd", (weight_EC1 * a_ECF).astype(dys_ECD.dtype), dys_ECD)
    da_ECF = weight_EC1 * da_ECF
    dgate_ECF = da_ECF * up_ECF * (sigmoid_ECF + silu_ECF * (1 - sigmoid_ECF))
    dh13_EC2F = jnp.concatenate([dgate_ECF, da_ECF * silu_ECF], axis=-1).astype(h13_EC2F.dtype)
    dw13_ED2F = _einsum("ecd,ecf->edf", xs_ECD, dh13_EC2F).reshape(w13_ED2F.shape)
    dxs_ECD = _einsum("ecf,edf->ecd", dh13_EC2F, _merged(w13_ED2F))
    return dxs_ECD, dw13_ED2F, dw2_EFD, dweight_EC


def _einsum(pattern, a, b):
    return jnp.einsum(pattern, a, b, preferred_element_type=accumulator_dtype(a.dtype))


def _merged(w13_ED2F):
    return w13_ED2F.reshape(*w13_ED2F.shape[:2], -1)


def _split(h13_EC2F):
    return jnp.split(h13_EC2F.astype(accumulator_dtype(h13_EC2F.dtype)), 2, axis=-1)
