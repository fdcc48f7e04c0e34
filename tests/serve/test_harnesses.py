"""Evaluation harnesses against the server give the scores of direct evaluation.

``pip install "lm-eval[api]" inspect-ai openai && pytest -n0 -m external tests/serve/test_harnesses.py``
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.config import replace_keys
from k2jax.inference.engine import Engine
from k2jax.model import K2, model_specs
from k2jax.params import initialize
from k2jax.text.tokenizer import byte_tokenizer
from tests.agents.api.sample import NAME
from tests.serve.fakes import live
from tests.serve.test_engine import TINY
from tests.text import kimi

pytestmark = pytest.mark.external
LENGTH = 512
QUESTIONS = [f"{a} plus {b} makes" for a in (1, 2, 3) for b in (4, 5, 6)]
CHOICES = ["five", "six", "seven", "many"]


class Served:
    """A tiny random model, its server, and what it computes without one."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.model = replace_keys(TINY, {"vocab": tokenizer.vocab_size})
        self.params = initialize(model_specs(self.model), jax.random.key(0), TINY.init_std)
        self.engine = Engine(self.model, self.params, slots=4, max_length=LENGTH)
        self._logits = jax.jit(lambda ids: K2(self.model).apply({"params": self.params}, ids).logits[0])

    def continuation(self, context: str, text: str) -> tuple[float, bool]:
        """Log-likelihood of a text after a context, and whether it is what greedy decoding gives."""
        ids, new = self.tokenizer.encode(context + text), len(self.tokenizer.encode(text))
        padded = np.zeros((1, LENGTH), np.int32)
        padded[0, : len(ids)] = ids
        rows = jax.nn.log_softmax(self._logits(jnp.asarray(padded)))[len(ids) - new - 1 : len(ids) - 1]
        chosen = rows[jnp.arange(new), jnp.asarray(ids[-new:])]
        return float(chosen.sum()), bool((rows.argmax(-1) == jnp.asarray(ids[-new:])).all())

    def greedy(self, text: str, tokens: int) -> str:
        """What the engine generates after a text."""
        alone = Engine(self.model, self.params, slots=1, max_length=LENGTH)
        stops = (self.tokenizer.eos,)
        asked = Sampling(max_tokens=tokens, temperature=0.0, stop_tokens=stops)
        [request] = alone.generate([self.tokenizer.encode(text)], asked)
        return self.tokenizer.decode(request.tokens)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}, "test_split": "test"}


def test_lm_eval_gives_the_scores_of_direct_evaluation(tmp_path, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval")
    import datasets
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    import transformers

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    served = Served(byte_tokenizer())
    served.tokenizer.save(tmp_path / "tokenizer")
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer" / "tokenizer.json"), bos_token="[BOS]", eos_token="[EOS]"
    ).save_pretrained(tmp_path / "tokenizer")

    best = [max(CHOICES, key=lambda choice, q=q: served.continuation(q, f" {choice}")[0]) for q in QUESTIONS]
    texts = [served.greedy(f"{q} ", 12) for q in QUESTIONS]
    rows = [  # two of three answers are the model's own
        {
            "question": question,
            "choices": CHOICES,
            "answer": (CHOICES.index(best[i]) + (i % 3 == 0)) % len(CHOICES),
            "text": texts[i] if i % 3 else "another text",
        }
        for i, question in enumerate(QUESTIONS)
    ]
    data = write_lines(tmp_path / "rows.jsonl", rows)
    tasks = [
        data | {"task": "choice", "output_type": "multiple_choice", "doc_to_text": "{{question}}",
                "doc_to_choice": "choices", "doc_to_target": "answer", "metric_list": [{"metric": "acc"}]},
        data | {"task": "score", "output_type": "loglikelihood", "doc_to_text": "{{question}}",
                "doc_to_target": " {{choices[answer]}}", "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]},
        data | {"task": "write", "output_type": "generate_until", "doc_to_text": "{{question}} ",
                "doc_to_target": "{{text}}", "metric_list": [{"metric": "exact_match"}],
                "generation_kwargs": {"max_gen_toks": 12, "do_sample": False, "until": ["never in any text"]}},
    ]  # fmt: skip
    with live(served.engine, served.tokenizer, vocab=served.model.vocab, max_length=LENGTH) as server:
        model = LocalCompletionsAPI(
            model=NAME, base_url=f"{server.url}/v1/completions", tokenizer=str(tmp_path / "tokenizer"),
            tokenizer_backend="huggingface", max_length=LENGTH, num_concurrent=4, max_retries=1,
        )  # fmt: skip
        found = lm_eval.simple_evaluate(model=model, tasks=tasks, bootstrap_iters=0, log_samples=True)
    for sample in found["samples"]["choice"]:
        for choice, [(value, greedy)] in zip(CHOICES, sample["resps"], strict=True):
            wanted = served.continuation(sample["doc"]["question"], f" {choice}")
            assert abs(float(value) - wanted[0]) < 1e-3 and greedy == wanted[1]
    assert found["results"]["choice"]["acc,none"] == pytest.approx(6 / 9)
    direct = [served.continuation(row["question"], f" {CHOICES[row['answer']]}")[0] for row in rows]
    assert found["results"]["score"]["perplexity,none"] == pytest.approx(np.exp(-np.mean(direct)), rel=1e-3)
    assert found["results"]["write"]["exact_match,none"] == pytest.approx(6 / 9)


def test_inspect_gives_the_scores_of_direct_evaluation(tmp_path, monkeypatch):
    inspect_ai = pytest.importorskip("inspect_ai")
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import match

    served = Served(kimi.tokenizer())
    options = {"temperature": 0.0, "max_tokens": 8}
    with live(served.engine, served.tokenizer, vocab=served.model.vocab, max_length=LENGTH) as server:
        client = server.openai()
        answers = [
            client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": q}], **options)
            for q in QUESTIONS
        ]
        texts = [answer.choices[0].message.content for answer in answers]
        samples = [Sample(q, target=texts[i] if i % 3 else "another text") for i, q in enumerate(QUESTIONS)]
        monkeypatch.setenv("LOCAL_API_KEY", "none")
        [log] = inspect_ai.eval(
            inspect_ai.Task(samples, scorer=match(location="exact")), model=f"openai-api/local/{NAME}",
            model_base_url=f"{server.url}/v1", log_dir=str(tmp_path), display="none", **options,
        )  # fmt: skip
    assert log.status == "success", log.error
    assert [sample.output.completion for sample in log.samples] == texts
    [metric] = [score.metrics["accuracy"].value for score in log.results.scores]
    assert metric == pytest.approx(6 / 9)
