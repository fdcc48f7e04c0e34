"""lm-eval's model ``hf`` in a process and an environment of its own: requests as JSON lines in, seconds out.

It imports nothing of this project: the environment has torch, transformers, gguf and lm-eval alone. Its first line has
the folder and the file of a GGUF checkpoint, each other one a kind of requests, a batch size and the requests.
"""

import json
import os
import sys
import time

LONGEST = 512  # tokens; with size auto lm-eval tries 16 sequences of it, five times in a call
MOST_AT_ONCE = 16  # requests that lm-eval's batch size auto tries


def main() -> None:
    """Answers lines of standard input until it ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    folder, name = json.loads(sys.stdin.readline())
    torch.set_num_threads(os.cpu_count() or 1)
    network = LlamaForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    models = {}
    for line in sys.stdin:
        kind, size, asked = json.loads(line)
        if size not in models:
            models[size] = _model(network, tokenizer, size)
        wall, processor = time.perf_counter(), time.process_time()
        answers = getattr(models[size], kind)(_instances(kind, asked), disable_tqdm=True)
        spent = time.perf_counter() - wall, time.process_time() - processor
        print(json.dumps([*spent, _numbers(kind, answers, tokenizer)]), file=out, flush=True)


def _model(network, tokenizer, size):
    from lm_eval.models.huggingface import HFLM

    return HFLM(
        pretrained=network,
        tokenizer=tokenizer,
        batch_size=size,
        max_batch_size=MOST_AT_ONCE,
        max_length=LONGEST,
        device="cpu",
        backend="causal",
    )


def _instances(kind, asked):
    from lm_eval.api.instance import Instance

    options = {"until": [], "do_sample": False}
    if kind == "generate_until":
        asked = [[text, options | {"max_gen_toks": most}] for text, most in asked]
    return [Instance(kind, {}, tuple(each), index) for index, each in enumerate(asked)]


def _numbers(kind, answers, tokenizer):
    """One of each answer, to compare: tokens of a text, or its log-probability."""
    if kind == "generate_until":
        return [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in answers]
    return [answer[0] if isinstance(answer, tuple) else answer for answer in answers]


if __name__ == "__main__":
    main()
