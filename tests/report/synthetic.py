"""Records as a short training run would write them."""

import numpy as np


def records(steps: int = 120, layers: int = 4, heads: int = 4, moe: int = 3, experts: int = 8) -> list[dict]:
    rng = np.random.default_rng(0)
    lines = []
    for step in range(1, steps + 1):
        logits_LH = 5 + step * rng.random((layers, heads))
        line = {
            "step": step,
            "loss": 2.5 + 6 * np.exp(-step / 30) + 0.1 * rng.normal(),
            "learning_rate": 2e-4 * min(1, step / 20),
            "grad_norm": float(rng.random()),
            "update_norm": float(rng.random()),
            "tokens_per_second": 300.0 if step == 1 else 6800.0,
            "mfu": 0.3,
            "memory_gb": 2.0,
            "max_logit": logits_LH.max(),
            "clipped_heads": int(step > steps - 3) * 2,
            "max_violation": 2.0 / step,
            "spikes": int(step > 50),
            "seconds": 0.5 * step,
            "tokens": 4096 * step,
        }
        if step % 10 == 0:
            line["max_logit_heads"] = logits_LH.tolist()
            line["expert_tokens"] = rng.integers(0, 100, (moe, experts)).tolist()
        if step % 40 == 0:
            line |= {"val_loss": 3.0 - step / 1000, "val_bits_per_byte": 1.5 - step / 1000}
        lines.append(line)
    return lines
