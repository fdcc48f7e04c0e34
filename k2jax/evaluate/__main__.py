r"""Evaluates a model on suites: scores with errors, every answer with its verdict, and the difference from another run.

Example:
    python -m k2jax.evaluate characters --model=runs/sft-nano --workdir=runs/evaluation
    python -m k2jax.evaluate characters --model=runs/rl-nano --workdir=runs/evaluation-rl --compare=runs/evaluation
    python -m k2jax.evaluate mmlu gsm8k --model=http://localhost:8000 --served_model=k2 --api=tokens \
        --tokenizer=runs/sft-nano --data=/data/benchmarks --workdir=runs/evaluation-served
    python -m k2jax.evaluate reasoning --model=https://api.example.com --served_model=k2 --preset=k2.5 \
        --workdir=runs/evaluation-api

    python -m k2jax.evaluate local_arc --harness=lm_eval --include_path=tasks --model=runs/pretrain --max_length=2048 \
        --workdir=runs/arc
    python -m k2jax.evaluate --config=experiments/rl/nano.py --model=runs/rl-nano --workdir=runs/held-out

A suite is a file of experiments/evaluate, by its name, or a file of your own; --config adds the held-out tasks of a
run of reinforcement learning, as it is evaluated on them itself. The model is a checkpoint argument, or a
server's URL without /v1: by text over OpenAI's chat completions, or --api=completions, responses or Anthropic's
messages, or with --api=tokens by token ids, which likelihoods need; $OPENAI_API_KEY is sent to it, of messages
$ANTHROPIC_API_KEY. The models oracle and null are the programs that solve a data set and say nothing.

Nothing is downloaded: suites of published benchmarks read their files below --data. A command that was stopped or
killed goes on when it is given again. The workdir gets results.json, report.html and lm_eval/ in lm-eval's form.
"""

from collections.abc import Sequence
import json
from typing import Any

from absl import flags

from k2jax import cli
from k2jax.errors import UserError

APIS = ("chat", "completions", "responses", "messages", "tokens")
MOST_SUITES = 32
INTERRUPTED = 130


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("workdir", None, "Folder of the evaluation.", **to)
    flags.DEFINE_string("model", None, "A checkpoint argument, a server's URL without /v1, oracle, or null.", **to)
    cli.define_config(values)
    flags.DEFINE_string("compare", "", "Workdir of another evaluation, to subtract its scores.", **to)
    flags.DEFINE_string("preset", "", "Settings of a report that replace those of the suites: k2, k2.5, kat, ...", **to)
    flags.DEFINE_integer("count", None, "Ask the first so many tasks of each suite; 0 asks all.", **to, lower_bound=0)
    flags.DEFINE_integer("samples", None, "Answers to each task.", **to, lower_bound=1)
    flags.DEFINE_integer("max_tokens", None, "Most tokens of an answer.", **to, lower_bound=1)
    flags.DEFINE_integer("token_budget", None, "Tokens, read and written, that end each suite.", **to, lower_bound=0)
    flags.DEFINE_string("data", "data", "Folder that stands for {data} in the options of suites.", **to)
    flags.DEFINE_enum("api", "chat", APIS, "What is asked of a server: text, or token ids.", **to)
    flags.DEFINE_string("served_model", "", "The server's name for its model.", **to)
    flags.DEFINE_string("tokenizer", "", "With --api=tokens: a checkpoint or file with the model's vocabulary.", **to)
    flags.DEFINE_enum("chat_format", "", ("", "auto", "plain", "compact"), "Empty: the checkpoint's own.", **to)
    flags.DEFINE_string("request", "{}", "JSON object of fields of requests by text; null leaves one out.", **to)
    flags.DEFINE_enum("harness", "", ("", "lm_eval"), "Whose tasks the SUITEs are; empty: this project's.", **to)
    flags.DEFINE_string("include_path", "", "Of --harness=lm_eval: folder of its YAML files of tasks.", **to)
    flags.DEFINE_integer("at_once", 32, "Answers at a time.", **to, lower_bound=1)
    flags.DEFINE_integer("slots", 16, "Sequences that an engine runs at a time.", **to, lower_bound=1)
    flags.DEFINE_integer("max_length", 0, "Of an engine's sequences; 0: as answers need.", **to, lower_bound=0)
    flags.DEFINE_string("sandbox", "bubblewrap", "Backend of sandboxes.", **to)
    flags.DEFINE_string("images", "", "What tasks may choose their images from: a folder; empty refuses all.", **to)
    flags.DEFINE_list("hosts", [], "Hosts that sandboxes of tasks may reach that ask for them.", **to)
    flags.DEFINE_string("judge_url", "", "Server of verifiers that ask a model, without /v1.", **to)
    flags.DEFINE_string("judge_model", "", "That server's name for its model.", **to)
    flags.DEFINE_float("price_read", 0.0, "Price of a million tokens of prompts.", **to, lower_bound=0.0)
    flags.DEFINE_float("price_written", 0.0, "Price of a million tokens of answers.", **to, lower_bound=0.0)


def main(values: flags.FlagValues, *names: str) -> int:
    """Runs the command; returns its exit code."""
    cli.require(values, "workdir", "model")
    if not (names or values.config):
        raise UserError("name a SUITE, or with --config a run whose held-out tasks are asked")
    from k2jax.agents.collect.event_loop import run
    from k2jax.evaluate.evaluation import Evaluation
    from k2jax.evaluate.held_out import HeldOutSuites
    from k2jax.evaluate.models import ModelChoice
    from k2jax.evaluate.scores import Price
    from k2jax.evaluate.suite import preset_fields

    named = ("model", "api", "served_model", "tokenizer", "chat_format", "slots", "max_length")
    choice = ModelChoice(**{name: values[name].value for name in named}, fields=_object(values.request))
    held_out = HeldOutSuites(cli.config_of(values)) if values.config else None
    if held_out is not None:
        choice = choice.with_length(held_out.max_length)
    if not (choice.is_server or choice.is_program):
        from k2jax import runtime

        runtime.prepare()
    if values.harness:
        return _with_lm_eval(values, choice, names)
    changes = preset_fields(values.preset)
    replaced = ("count", "samples", "max_tokens", "token_budget")
    changes |= {name: values[name].value for name in replaced if values[name].value is not None}
    options = {"changes": changes, "data": values.data, "compare": values.compare, "held_out": held_out}
    evaluation = Evaluation(values.workdir, names, choice, **options)
    services = {name: values[name].value for name in ("sandbox", "images", "hosts", "judge_url", "judge_model")}
    try:
        run(evaluation.run(values.at_once, **services))
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on")
        return INTERRUPTED
    for line in evaluation.write(Price(values.price_read, values.price_written)):
        print(line)
    return 0


def _with_lm_eval(values: flags.FlagValues, choice: Any, names: Sequence[str]) -> int:
    """Runs lm-eval's tasks."""
    from k2jax.evaluate.harnesses.lm_eval_run import LMEvalTasks, evaluate_with_lm_eval

    unread = [name for name in ("config", "preset", "samples", "max_tokens", "token_budget") if values[name].value]
    if not names or unread:
        raise UserError(f"--harness=lm_eval asks SUITEs of --include_path{''.join(f', without --{n}' for n in unread)}")
    asked = LMEvalTasks(values.include_path, names, values.count or 0, bool(values.chat_format))
    options = {"compared_with": values.compare, "at_once": values.at_once}
    for line in evaluate_with_lm_eval(asked, choice, values.workdir, **options):
        print(line)
    return 0


def _object(text: str) -> dict:
    """The JSON object of a flag."""
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise UserError('--request is no JSON object, such as \'{"chat_template_kwargs": {"thinking": false}}\'')
    return fields


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("SUITE",) * MOST_SUITES, optional=MOST_SUITES)
