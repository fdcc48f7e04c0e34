"""The command's mistakes get one line; what it prints comes from a config and a topology."""

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
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, message):
    done = run_command("k2jax.aot", *arguments)
    assert done.returncode == 2, done.stderr[-500:]
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
