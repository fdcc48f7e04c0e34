"""A small model's spec tree and float64 NumPy references, written from the report's formulas and not from the code."""

import numpy as np

from k2jax.params import ParamSpec, map_specs

D, HEADS, NOPE, ROPE, V, Q_LORA, KV_LORA, FFN, EXPERTS, VOCAB = 12, 2, 4, 2, 4, 6, 5, 10, 3, 20


def _attention(layers, first, q_lora):
    def matrix(i, o, name):
        return ParamSpec(
            (layers, i, o), ("layers", "in", "out"), "matrix", ("out",), hf=name, inputs=("in",), first_layer=first
        )

    def norm(width, name):
        return ParamSpec(
            (layers, width), ("layers", "embed"), "norm", ("embed",), hf=name, init="ones", first_layer=first
        )

    def heads(i, segments, name):
        shape = (layers, i, HEADS, sum(width for _, width in segments))
        axes = ("layers", "in", "heads", "dim")
        return ParamSpec(
            shape,
            axes,
            "matrix",
            ("heads", "dim"),
            hf=name,
            inputs=("in",),
            first_layer=first,
            segments=tuple(segments),
        )

    q = heads(Q_LORA if q_lora else D, (("q_nope", NOPE), ("q_rope", ROPE)), "q")
    queries = {"q_a": matrix(D, Q_LORA, "q_a"), "q_norm": norm(Q_LORA, "q_norm"), "q_b": q} if q_lora else {"q": q}
    o_axes = ("layers", "heads", "dim", "embed")
    return {
        **queries,
        "kv_a": matrix(D, KV_LORA + ROPE, "kv_a"),
        "kv_norm": norm(KV_LORA, "kv_norm"),
        "kv_b": heads(KV_LORA, (("k_nope", NOPE), ("v", V)), "kv_b"),
        "o": ParamSpec(
            (layers, HEADS, V, D), o_axes, "matrix", ("embed",), hf="o", inputs=("heads", "dim"), first_layer=first
        ),
    }


def _ffn(layers, first, experts):
    stack, names = ((layers, experts), ("layers", "experts")) if experts else ((layers,), ("layers",))
    up = ParamSpec(
        (*stack, D, 2, FFN),
        (*names, "embed", "gate_up", "ffn"),
        "matrix",
        ("ffn",),
        hf="w13",
        inputs=("embed",),
        first_layer=first,
    )
    down = ParamSpec(
        (*stack, FFN, D), (*names, "ffn", "embed"), "matrix", ("embed",), hf="w2", inputs=("ffn",), first_layer=first
    )
    return {"w13": up, "w2": down}


def model_specs(dense=1, moe=2, q_lora=True):
    """The tree of a tiny Kimi K2: every role, every kind of stack."""
    router = {"role": "router", "outputs": ("experts",), "inputs": ("embed",), "first_layer": dense}
    return {
        "embed": ParamSpec((VOCAB, D), ("vocab", "embed"), "embedding", ("vocab",), hf="embed", inputs=("embed",)),
        "dense": {"attention": _attention(dense, 0, q_lora), "ffn": _ffn(dense, 0, 0)},
        "moe": {
            "attention": _attention(moe, dense, q_lora),
            "experts": _ffn(moe, dense, EXPERTS),
            "shared": _ffn(moe, dense, 0),
            "router": ParamSpec((moe, D, EXPERTS), ("layers", "embed", "experts"), hf="router", **router),
            "router_bias": ParamSpec(
                (moe, EXPERTS),
                ("layers", "experts"),
                "router_bias",
                ("experts",),
                hf="b",
                init="zeros",
                first_layer=dense,
            ),
        },
        "final_norm": ParamSpec((D,), ("embed",), "norm", ("embed",), hf="final_norm", init="ones"),
        "head": ParamSpec((VOCAB, D), ("vocab", "embed"), "head", ("vocab",), hf="head", inputs=("embed",)),
    }


def random_like(specs, seed, scale=1.0):
    """Tree of normal float32 leaves."""
    rng = np.random.default_rng(seed)
    return map_specs(lambda spec: np.float32(scale) * rng.standard_normal(spec.shape).astype(np.float32), specs)


def newton_schulz(matrix, steps=5):
    """Newton-Schulz with the quintic on a float64 matrix."""
    x = np.asarray(matrix, np.float64)
    x = x / (np.sqrt((x * x).sum()) + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if tall else x


class Muon:
    """One matrix, float64: momentum, Newton-Schulz, 0.2 sqrt(max(n, m)), decoupled decay."""

    def __init__(self, weight, rate, decay=0.1, momentum=0.95):
        self.weight = np.asarray(weight, np.float64)
        self.moment = np.zeros_like(self.weight)
        self.rate, self.decay, self.momentum = rate, decay, momentum

    def step(self, gradient):
        gradient = np.asarray(gradient, np.float64)
        self.moment = self.momentum * self.moment + gradient
        update = newton_schulz(self.moment) * 0.2 * np.sqrt(max(self.weight.shape))
        self.weight = self.weight - self.rate * (update + self.decay * self.weight)


def qk_clip(attention, max_logit_LH, tau, alpha=0.5):
    """Scales copies of one group's q and kv_b weights head by head, in float64."""
    attention = {name: np.array(w, np.float64) for name, w in attention.items()}
    q = attention["q_b"] if "q_b" in attention else attention["q"]
    kv = attention["kv_b"]
    for layer, row in enumerate(max_logit_LH):
        for head, s in enumerate(row):
            if s > tau:
                gamma = tau / s
                q[layer, :, head, :NOPE] *= gamma**alpha
                q[layer, :, head, NOPE:] *= gamma
                kv[layer, :, head, :NOPE] *= gamma ** (1 - alpha)
    return attention


def qk_clip_gqa(attention, max_logit_LH, tau):
    """Scales copies of the queries of a grouped-query group head by head, their biases too, in float64."""
    attention = {name: np.array(w, np.float64) for name, w in attention.items()}
    for layer, row in enumerate(max_logit_LH):
        for head, s in enumerate(row):
            if s > tau:
                attention["q"][layer, :, head] *= tau / s
                if "q_bias" in attention:
                    attention["q_bias"][layer, head] *= tau / s
    return attention
