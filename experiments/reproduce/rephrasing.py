"""Ten passes over a text against ten rephrasings of it, read once each (Kimi K2, section 2.2, table 1, in miniature).

Reproduces: table 1 of the report, where an early checkpoint answers 23.8 % of SimpleQA after ten passes over raw
texts, 27.4 % after ten over one rephrasing, and 28.9 % after one over each of ten. Here a micro model
without experts first learns to read from texts about other people and questions about them. It goes on with texts about
100 people of whom it knows nothing, each ten times, beside as much of what it had before; the questions about these
people it never sees. Six facts of each are asked with the book closed, as a choice among the 8 to 12 answers of their
kind. Texts and rephrasings are made by ``python -m k2jax.synthesize``; its programs word them, so that no rephrasing is
unfaithful.
Expected, written before the first run: all three lie above chance (10 %) and the start; ten rephrasings come first, by
more than the seeds differ; one rephrasing ten times is about as good as the raw text, since here both are one wording.

    python -m k2jax.reproduce rephrasing --workdir=runs/rephrasing
"""

from k2jax.config import defaults, source
from k2jax.report.style import new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary
from k2jax.reproduce.closed_book import chance, known_answers, questions_about, write_people, write_questions
from k2jax.reproduce.figures import seed_bars
from k2jax.reproduce.seeds import SeedRecords, for_seeds

SEEDS = (0, 1, 2)
OTHERS, NEW, PASSES = 200, 100, 10
FIRST_STEPS, STEPS = 300, 60
MEASURED = 300
"""Questions about the new people; a fifth as many are asked about the others."""
LABELS = {
    "start": "start, other people alone",
    "raw": "raw text, 10 passes",
    "one": "one rephrasing, 10 passes",
    "ten": "ten rephrasings, 1 pass",
}
KINDS = ("born", "works", "trade", "plays", "studied", "keeps")


def get_config():
    """The first run; those that go on from it override sources and steps."""
    config = defaults("pretrain", model="micro")
    del config.data.sources.stdlib
    for name, weight in (("others", 0.25), ("questions", 0.25), ("new", 0.5)):
        config.data.sources[name] = source(kind="jsonl", path=name, weight=weight)
    config.model.layers = config.model.dense_layers = 2
    config.data.tokenizer.vocab = config.model.vocab = 1024
    config.data.held_out = 0.0
    config.data.sequence_length = 256
    config.train.batch_size = 8
    config.train.steps = FIRST_STEPS
    config.optimizer.learning_rate = 8e-3
    config.eval.every = FIRST_STEPS
    config.eval.sample_tokens = 0
    config.checkpoint.every = FIRST_STEPS
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    return config


def runs():
    """Of every seed the start, then the three ways to go on."""
    return for_seeds(SEEDS, _of_seed)


def _of_seed(seed: int) -> dict[str, dict]:
    others, new, start = f"{{workdir}}/others{seed}", f"{{workdir}}/new{seed}", f"{{workdir}}/seed{seed}_start"
    known = {
        "data.sources.others.path": f"{others}/rephrasings",
        "data.sources.questions.path": f"{{workdir}}/questions{seed}.jsonl",
    }
    on = known | {
        "init_from": start,
        "data.tokenizer.kind": "file",
        "data.tokenizer.path": start,
        "data.sources.new.max_epochs": PASSES,
        "train.steps": STEPS,
        "optimizer.learning_rate": 4e-3,
    }
    ten = {"data.sources.new.path": f"{new}/rephrasings", "data.sources.new.max_epochs": 1}
    return {
        "start": known | {"data.sources.new.path": f"{others}/raw.jsonl", "data.sources.new.weight": 0.1},
        "raw": on | {"data.sources.new.path": f"{new}/raw.jsonl"},
        "one": on | {"data.sources.new.path": f"{new}/rephrasings/00.jsonl"},
        "ten": on | ten,
    }


def prepare(workdir):
    """Texts, rephrasings and questions of every seed."""
    for seed in SEEDS:
        write_people(workdir / f"others{seed}", OTHERS, PASSES, 1000 + seed)
        write_people(workdir / f"new{seed}", NEW, PASSES, seed)
        write_questions(workdir / f"questions{seed}.jsonl", questions_about(OTHERS, 1000 + seed))


def new_questions(seed: int) -> list:
    """The questions about the new people, but those who have the name of one of the others."""
    others = {question["question"] for question in questions_about(OTHERS, 1000 + seed)}
    return [question for question in questions_about(NEW, seed) if question["question"] not in others]


def evaluate(config, workdir):
    """The share of the questions about the new people that the run answers, and of those about others."""
    seed = config.train.seed
    new = known_answers(workdir, new_questions(seed)[:MEASURED], 64)
    return new | {"others": known_answers(workdir, questions_about(OTHERS, 1000 + seed)[: MEASURED // 5], 64)["known"]}


def summarize(results: dict[str, RunResult]) -> Summary:
    """A table over the seeds, and bars."""
    measured = SeedRecords.of(results, LABELS)
    columns = {"known": "new people", "others": "other people"} | {f"known/{kind}": kind for kind in KINDS}
    rows = [(label, *(measured.spread(run, key) for key in columns)) for run, label in LABELS.items()]
    gains = {run: measured.gain(run, "known", "raw") for run in ("ten", "one")}
    text = (
        f"Against ten passes over the raw text, ten rephrasings change the answers that are known by {gains['ten']} "
        f"points, ten passes over one rephrasing by {gains['one']}. Guessing knows {chance():.3f}.\n\n"
        f"{markdown_table(('run', *columns.values()), rows)}\n"
        f"Shares of {MEASURED} questions about the new people; cells are mean (lowest to highest) over "
        f"{len(measured.seeds)} seeds.\n"
    )
    figure, axes = new_figure(1, 1, height=3.4)
    seed_bars(axes[0, 0], measured, LABELS, {"known": "new people", "others": "other people"})
    style_axes(axes[0, 0], title="Closed-book questions that are answered", x="share")
    return Summary(text, figure)


STUDY = Study(get_config, runs, summarize, prepare=prepare, evaluate=evaluate)
