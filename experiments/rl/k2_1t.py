r"""Kimi K2: reinforcement learning of 1.04T parameters, training and rollouts on the same TPU pod.

Reproduces: the colocated architecture of Kimi K2 (section 3.3): training as in experiments/pretrain/k2_1t.py (16
pipeline stages, 16-way expert parallelism, ZeRO-1), the engine on the same chips with the experts over 64 of them.
Expected: nothing was trained with it. The command compiles the weight sync, the training step, prefill and decode, and
says what a chip's memory holds in each phase and how long the switch takes by arithmetic; K2 reports less than 30 s.

    python -m k2jax.aot --config=experiments/rl/k2_1t.py --topology=v5p:8x8x16 --mode=sync

The tokenizer's file is not here: name yours, as below.
"""

from k2jax.config import defaults


def get_config():
    """The experiment."""
    config = defaults("rl", model="k2")
    config.model.yarn.factor = 1.0
    config.data.sequence_length = 4096
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    config.train.batch_size = 16384
    config.train.micro_batches = 256
    config.parallel.stage = 16
    config.parallel.virtual_stages = 4
    config.parallel.expert = 16
    config.parallel.expert_chunks = 2
    config.rl.rollout.prompts = 2048
    config.rl.rollout.samples = 8
    config.rl.rollout.max_length = 4096
    config.rl.rollout.slots = 16384
    config.rl.rollout.data = 16
    config.rl.rollout.expert = 64
    config.rl.rollout.offload_state = True
    config.eval.sample_tokens = 0
    return config
