"""A small Kimi K2 that sees continues from fine-tuning by rewards: it reads words, and counts and locates shapes.

Reproduces: Kimi K2.5's visual reinforcement learning (section 4.4.2), not its scale: soft F1 of boxes under the best
assignment, edit distance of words, and how near a count is, in one run, on pictures that are drawn with exact labels.
Tower, projector and decoder learn together.
Expected: from step 1,400 of a fine-tuning at a rate of 3e-3 the mean reward of held-out questions rose by 12 points
sampled and 7 greedily in 50 iterations, from ends of fine-tunings by 4 to 8 points sampled; in 100 iterations from a
start that still learns by 15 and 7 (docs/vision.md, "Reinforcement learning"). Not run from the fine-tuning below.

    python -m k2jax.train --config=experiments/pretrain/nano_vision_text.py --workdir=runs/nano-vision-text
    python -m k2jax.train --config=experiments/sft/nano_vision_describe.py --workdir=runs/sft-nano-vision-describe
    python -m k2jax.train --config=experiments/sft/nano_vision.py --workdir=runs/sft-nano-vision
    python -m k2jax.rl --config=experiments/rl/nano_vision.py --workdir=runs/rl-nano-vision
"""

from k2jax.config import defaults, task


def get_config():
    """The experiment; model, chat format and sizes of pictures are those of the fine-tuning."""
    config = defaults("rl", model="micro", vision="nano_vision")
    config.init_from = "runs/sft-nano-vision"
    config.model.vocab = 262  # bytes, two tokens around documents, four around images
    config.model.layers = 5
    config.data.tokenizer.kind = "bytes"
    config.data.tokenizer.media = True
    config.data.chat_format = "plain"
    config.data.sequence_length = 256
    config.data.images.patches = 288
    shapes = ("kinds=count+locate", "count=10000", "side=84")
    words = ("kinds=read", "count=5000", "side=112", "height=28")
    config.rl.tasks = {
        "shapes": task(dataset="pictures", options=shapes, weight=2.0, max_tokens=80),
        "words": task(dataset="pictures", options=words, max_tokens=24),
    }
    config.rl.rollout.update({"prompts": 128, "samples": 8, "max_length": 160})
    config.rl.packing.layout = "tree"  # answers are a tenth of what they share with their question and its picture
    config.rl.skip_flat_groups = True
    config.rl.eval_prompts = 60
    config.rl.eval_samples = 4
    config.train.steps = 50
    config.train.batch_size = 16
    config.optimizer.learning_rate = 1e-3  # Muon's updates are as large where the gradient is noise
    config.optimizer.tower_rate = 0.3
    config.optimizer.projector_rate = 0.5
    config.optimizer.weight_decay = 0.0
    config.optimizer.schedule.warmup_steps = 2
    config.router.bias_rate = config.router.bias_rate_final = 0.0  # the routes of the policy rest
    config.checkpoint.every = 10
    config.eval.every = 20
    return config
