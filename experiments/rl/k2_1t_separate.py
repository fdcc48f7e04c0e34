r"""Kimi K2: the reinforcement learning of k2_1t.py with engines on slices of their own, which generate while it trains.

Reproduces: the recipe of k2_1t.py on the other architecture, without a switch between training and rollouts: the
trainer on one slice as there, each engine on 64 chips with the experts over all of them, episodes in a pool of workers.
Tokens are at most one version behind the weights that they train; IcePop leaves out those on which trainer and engine
differ by far. A checkpoint every 10 iterations: at the default of 200 a lost host would cost hours (--mode=restart).
An engine is a process on each of the 16 hosts of its slice, and starts again by itself when one of them is lost:

    python -m k2jax.launch --backend=jobset --config=experiments/rl/k2_1t_separate.py --tpu=v5p:8x8x16 \
        --engines=v5p:4x4x4 --engine_slices=4 --workers=32 --machine=n2-standard-32 --workdir=gs://my-bucket/k2-rl \
        --project=my-project --zone=us-east5 --cluster=my-cluster \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run

Expected: nothing was trained with it. What the trainer and an engine take, and what a lost host costs:

    python -m k2jax.aot --config=experiments/rl/k2_1t_separate.py --topology=v5p:8x8x16
    python -m k2jax.aot --config=experiments/rl/k2_1t_separate.py --topology=v5p:4x4x4 --mode=decode \
        --context=4096 --slots=4096 --config.parallel.expert=64
    python -m k2jax.aot --config=experiments/rl/k2_1t_separate.py --topology=v5p:8x8x16 --mode=restart --engines=4 \
        --workers=32

Name your own checkpoint, tokenizer, corpora and pass rates, as for k2_1t.py.
"""

from k2jax.config import config_beside


def get_config():
    """The experiment."""
    config = config_beside(__file__, "k2_1t.py")
    rl = config.rl
    rl.engines.update({"placement": "separate", "start": 0})  # a launch says where they join
    rl.max_staleness = 1
    rl.loss.old = "recompute"
    rl.loss.icepop.on = True
    rl.rollout.update({"sampler": "workers", "workers": 1024, "ray": "auto", "token_cap": 0})
    rl.rollout.update({"data": 1, "expert": 64, "slots": 4096, "offload_state": False})  # of each engine
    config.checkpoint.every = 10
    return config
