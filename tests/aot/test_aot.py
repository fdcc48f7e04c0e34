"""The command's mistakes get one line; what it prints comes from a config and a topology."""

import json

import pytest

from tests.command import run_command

NANO = "--config=experiments/pretrain/nano.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([NANO], "--topology is required"),
        (["--topology=v5e:2x4"], "--config is required"),
        ([NANO, "--topology=v5e:2x4", "--mode=tran"], "did you mean 'train'"),
        ([NANO, "--topology=v9:2x4"], "no TPU generation 'v9'"),
        ([NANO, "--topology=v5e:2x4", "--config.parallel.stage=3"], "devices"),
        ([NANO, "--topology=v5e:2x4", "--config.parallel.expert=5"], "devices"),
        ([NANO, "--topology=v5e:2x4", "--config.parallel.stag=3"], "did you mean"),
        ([NANO, "--topology=v5e:2x4", "--residuals"], "a pipeline of expert layers"),
        ([NANO, "--topology=v5e:2x4", "--taken_gb=3"], "of --residuals"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, message):
    done = run_command("k2jax.aot", *arguments)
    assert done.returncode == 2, done.stderr[-500:]
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_what_chunks_could_keep_is_printed_of_the_memory_and_time_that_are_given():
    config = ["--config=experiments/pretrain/k2_1t.py", "--topology=v5p:8x8x16", "--json"]
    done = run_command("k2jax.aot", *config, "--residuals", "--taken_gb=71.7", "--step_seconds=77.6")
    found = json.loads(done.stdout)
    assert (found["taken"], found["limit"]) == (71.7e9, 90e9) and found["residuals"][0]["slots"] == 72
    assert found["sets"][0]["seconds"] + found["sets"][0]["spared"] == 77.6
