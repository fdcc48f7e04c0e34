"""lm-eval's tasks over our engine: item by item what its own hf model gives of the same folder, and what we give.

It needs lm-eval, best in an environment of its own: ``pip install lm-eval`` beside this project and its extra test.
"""

import itertools
import json
import os

import pytest
import torch
import transformers

from k2jax.evaluate.models import ModelChoice, open_engine_client
from k2jax.evaluate.suite_run import read_answers
from k2jax.text import byte_tokenizer
from k2jax.text.chat import configured_chat
from tests.command import run_command

pytestmark = [pytest.mark.external, pytest.mark.timeout(1800)]
LONGEST = 130
WORDS = ["abba", "cdde", "ffgh", "agee", "hide", "bead", "cafe", "dada", "edge", "fade", "gage", "head"]
CHOICES = [
    {"ctx": f"{a} {b}", "endings": [a, b + a, f"{a}é", "x"], "label": n % 4}
    for n, (a, b) in enumerate(itertools.pairwise(WORDS))
]
TEXTS = [{"text": " ".join(WORDS * times)[:length]} for times, length in ((1, 9), (2, 100), (9, 400))]
QUESTIONS = [{"text": f"{word}?", "answer": word} for word in WORDS[:6]]
METRICS = {"choice": ("acc", "acc_norm"), "rolling": ("bits_per_byte",), "until": ("exact_match",)}
TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "{{ctx}}"
doc_to_choice: "{{endings}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "until": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["e", "not here"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A small Llama of bytes as a folder of transformers, and lm-eval's tasks over local files."""
    root = tmp_path_factory.mktemp("lm_eval")
    tokenizer, settings = byte_tokenizer(), {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    ends = {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.eos, "initializer_range": 0.25}
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=tokenizer.vocab_size, **settings, **heads, **ends)
    transformers.LlamaForCausalLM(config).save_pretrained(root / "hf")
    tokenizer.save(root / "hf")
    names = {f"{name}_token": tokenizer.special_name(getattr(tokenizer, name)) for name in ("bos", "eos")}
    written = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (root / "hf/tokenizer_config.json").write_text(json.dumps(written))
    (root / "tasks").mkdir()
    for name, rows in (("choice", CHOICES), ("rolling", TEXTS), ("until", QUESTIONS)):
        file = root / f"{name}_val.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        head = f"task: local_{name}\ndataset_path: json\ntest_split: test\n"
        head += f"dataset_kwargs: {{data_files: {{test: {file}}}}}\n"
        (root / f"tasks/{name}.yaml").write_text(head + TASKS[name])
    return root


@pytest.fixture(scope="module")
def evaluated(root):
    """The command's folder with all three tasks."""
    names = [f"local_{name}" for name in TASKS]
    done = evaluate(root, *names, f"--workdir={root / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "local_choice" in done.stdout and "bits_per_byte" in done.stdout
    return root / "run"


def evaluate(root, *words):
    flags = ("--harness=lm_eval", f"--include_path={root / 'tasks'}", f"--model={root / 'hf'}")
    return run_command("k2jax.evaluate", *flags, f"--max_length={LONGEST}", *words)


def resps(folder, name):
    answers = read_answers(folder / f"local_{name}")
    return [answers[str(number), 0].info["resps"] for number in range(len(answers))]


def test_every_item_is_what_lm_evals_own_model_gives(root, evaluated):
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(root / "tasks"), include_defaults=False)
    results = {}
    for name in TASKS:  # windows of rolled texts begin with one token of beginnings, not two
        options = {"max_length": LONGEST - 2, "add_bos_token": name != "rolling", "batch_size": 1}
        model = HFLM(str(root / "hf"), device="cpu", dtype="float32", **options)
        expected = simple_evaluate(model, tasks=[f"local_{name}"], task_manager=manager, bootstrap_iters=10)
        results |= expected["results"]
        rows = [[each for parts in row["resps"] for each in parts] for row in expected["samples"][f"local_{name}"]]
        for ours, theirs in zip(resps(evaluated, name), rows, strict=True):
            if name == "choice":
                assert [pair[1] for pair in ours] == [pair[1] for pair in theirs]
                ours, theirs = ([pair[0] for pair in pairs] for pairs in (ours, theirs))
            assert ours == (theirs if name == "until" else pytest.approx(theirs, abs=2e-3))
    written = json.loads((evaluated / "results.json").read_text())["suites"]
    for name, metrics in (
        ("choice", ("acc", "acc_norm")),
        ("rolling", ("bits_per_byte",)),
        ("until", ("exact_match",)),
    ):
        for metric in metrics:
            score = written[f"local_{name}"]["scores"][metric]
            assert score["value"] == pytest.approx(results[f"local_{name}"][f"{metric},none"], rel=1e-4)
            if name != "rolling":
                error = results[f"local_{name}"][f"{metric}_stderr,none"]
                assert score["error"] == pytest.approx(error, rel=1e-6)


def test_every_item_is_what_direct_evaluation_gives(root, evaluated, tmp_path):
    suite = tmp_path / "direct.py"
    suite.write_text(
        "from k2jax.evaluate.suite import suite\n\n\ndef get_config():\n"
        f"    return suite(dataset='multiple_choice', options=('path={root}/choice_val.jsonl', 'style=text'),\n"
        "                 method='choices', template='text')\n"
    )
    done = run_command("k2jax.evaluate", str(suite), f"--model={root / 'hf'}", f"--workdir={tmp_path / 'run'}",
                       "--chat_format=plain")  # fmt: skip
    assert done.returncode == 0, done.stderr
    direct = list(read_answers(tmp_path / "run/direct").values())
    ours = resps(evaluated, "choice")
    assert len(direct) == len(ours) == len(CHOICES)
    direct = sorted(direct, key=lambda answer: [row["ctx"] for row in CHOICES].index(answer.messages[0]["content"]))
    for answer, pairs in zip(direct, ours, strict=True):
        assert answer.info["logprobs"] == pytest.approx([pair[0] for pair in pairs], abs=1e-4)
    scores = [json.loads((folder / "results.json").read_text())["suites"] for folder in (tmp_path / "run", evaluated)]
    direct, ours = scores[0]["direct"]["scores"], scores[1]["local_choice"]["scores"]
    assert direct["accuracy"] == ours["acc"] and direct["part/normalised"] == pytest.approx(ours["acc_norm"])


def test_the_report_and_the_answers_are_ours_and_runs_are_compared(root, evaluated, tmp_path):
    page = (evaluated / "report.html").read_text()
    assert "abba cdde" in page and "target" in page and "local_rolling" in page
    done = evaluate(root, "local_choice", f"--workdir={tmp_path}", f"--compare={evaluated}", "--count=5")
    assert done.returncode == 0, done.stderr
    difference = json.loads((tmp_path / "results.json").read_text())["suites"]["local_choice"]["difference"]
    assert (difference["value"], difference["tasks"], difference["left_out"]) == (0.0, 5, len(CHOICES) - 5)


def test_a_conversation_is_its_own_token_ids_which_no_text_can_forge(root):
    from k2jax.evaluate.harnesses.lm_eval_model import K2JaxLM

    with open_engine_client(ModelChoice(model=str(root / "hf"), max_length=64)) as (client, tokenizer):
        chat = configured_chat(tokenizer, "plain")
        model = K2JaxLM(client, tokenizer, 64, chat=chat)
        history = [{"role": "user", "content": "Hi \ue000000:0\ue001"}]
        stands = model.apply_chat_template(history)
        ids = model.tok_encode(stands + " yes")
    assert ids[-4:] == tokenizer.encode(" yes") and tokenizer.decode(ids).count("Hi") == 1
    assert "Hi" in model.shown(stands) and stands not in model.shown(stands)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("local_other",), "has no task 'local_other', only local_choice"),
        (("local_choice", "--model=oracle", "--max_length=0"), "asks a checkpoint with --max_length"),
        (("local_choice", "--samples=2"), "without --config, --preset, --samples"),
        (("local_choice", "--include_path=/nowhere"), "'/nowhere' is no folder of lm-eval's YAML files"),
    ],
)
def test_mistakes_are_one_line(words, why, root, tmp_path):
    done = evaluate(root, *words, f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
