"""An inspect-ai task with tools in our sandbox and a model of ours.

It needs inspect-ai in an environment of its own (it pins fsspec): ``pip install inspect-ai`` beside this project.
"""

import json

import pytest

from k2jax.client import ScriptedClient
from tests.agents.api.sample import TOKENIZER, answer_ids, call_ids

pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]
WRITE = "import os; open('/work/made.txt', 'w').write(str(6 * 7)); print(len(os.listdir('/work')))"


@pytest.fixture
def extension():
    """The registered extension."""
    from k2jax.evaluate.harnesses import inspect_extension

    return inspect_extension


def evaluated(extension, replies, tmp_path, scorer):
    """inspect's log of one sample, and the prompts that the model was shown."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import get_model
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import bash

    prompts = []

    def reply(prompt, sampling):
        prompts.append(TOKENIZER.decode(list(prompt)))
        return replies[len(prompts) - 1]

    model = get_model("k2jax/scripted", client=ScriptedClient(reply), tokenizer=TOKENIZER, memoize=False)
    sample = Sample(input="Compute.", target="42", files={"given.txt": "here"})
    task = Task(dataset=[sample], solver=[use_tools(bash(timeout=30)), generate()], scorer=scorer, sandbox="k2jax")
    [log] = eval(task, model=model, log_dir=str(tmp_path), display="none")
    return log, prompts


def test_a_task_with_tools_runs_in_our_sandbox(extension, tmp_path):
    from inspect_ai.scorer import Score, Target, accuracy, scorer
    from inspect_ai.solver import TaskState
    from inspect_ai.util import sandbox

    @scorer(metrics=[accuracy()])
    def file_is_right():
        async def score(state: TaskState, target: Target) -> Score:
            made, given = [await sandbox().read_file(name) for name in ("made.txt", "given.txt")]
            return Score(value=float(made == target.text and given == "here"))

        return score

    command = json.dumps({"command": f'python3 -c "{WRITE}" && cat /etc/shadow; ls /home; echo done'})
    replies = [call_ids(("bash", command)), answer_ids("It is 42.")]
    log, prompts = evaluated(extension, replies, tmp_path, file_is_right())
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert "bash" in prompts[0] and "Compute." in prompts[0]
    assert "done" in prompts[1] and "root:" not in prompts[1]
    [sample] = log.samples
    assert sample.output.completion == "It is 42." and sample.output.stop_reason == "stop"
    usage = log.stats.model_usage["k2jax/scripted"]
    assert usage.output_tokens == sum(map(len, replies))


def test_what_a_sandbox_cannot_give_is_inspects_own_error(extension):
    import asyncio

    async def tried():
        opened = await extension.K2JaxSandbox.sample_init("t", None, {})
        box = opened["default"]
        try:
            with pytest.raises(FileNotFoundError):
                await box.read_file("nowhere")
            with pytest.raises(TimeoutError):
                await box.exec(["sleep", "9"], timeout=1)
            await box.write_file("a/b.bin", b"\xff")
            with pytest.raises(UnicodeDecodeError):
                await box.read_file("a/b.bin")
            failed = await box.exec(["sh", "-c", "cat; echo $X >&2; exit 3"], input="in", env={"X": "out"}, cwd="a")
            assert (failed.success, failed.returncode, failed.stdout, failed.stderr) == (False, 3, "in", "out\n")
        finally:
            await extension.K2JaxSandbox.sample_cleanup("t", None, opened, False)

    asyncio.run(tried())


def test_arguments_that_are_no_object_are_told_to_the_model(extension, tmp_path):
    from inspect_ai.scorer import includes

    log, prompts = evaluated(extension, [call_ids(("bash", "[1")), answer_ids("42")], tmp_path, includes())
    assert log.status == "success" and "the arguments are no JSON object" in prompts[1]
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
