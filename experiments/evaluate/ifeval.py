"""IFEval (Zhou et al. 2023): verifiable instructions, strictly and loosely, by prompt and by instruction.

Data: the published input_data.jsonl, as ifeval/input_data.jsonl below --data. The reward is strict accuracy of prompts,
part/loose the loose one; items/strict and items/loose are those of all instructions. Prompts about languages need
py3langid. Expected: the null policy scores 0.

    python -m k2jax.evaluate ifeval --model=runs/sft --data=/data/benchmarks --workdir=runs/ifeval
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(dataset="ifeval", options=("path={data}/ifeval/input_data.jsonl",), max_tokens=2048)
