"""Suites of one evaluation: the next is asked while the last answers of the one before are waited for."""

import asyncio
import contextlib
from pathlib import Path

from k2jax.errors import InfrastructureError
from k2jax.evaluate import evaluation, suite_run
from k2jax.evaluate.answerers import Given, failed_episode
from k2jax.evaluate.evaluation import Evaluation
from k2jax.evaluate.models import ModelChoice


def test_a_suite_begins_while_the_last_answers_of_the_one_before_are_waited_for(tmp_path, monkeypatch):
    begun, under_way = [], set()
    late = asyncio.Event()

    class Slow:
        def __init__(self, suite):
            self.name = suite.options[1]

        async def answer(self, task, place, sample):
            begun.append((self.name, place))
            under_way.add((self.name, task.id))
            assert len(under_way) <= 2
            if begun == [("count=6", 0)]:
                await asyncio.wait_for(late.wait(), 10)  # for the second suite's last task
            elif (self.name, place) == ("count=4", 3):
                late.set()
            await asyncio.sleep(0)
            under_way.remove((self.name, task.id))
            return Given(failed_episode(task, place, sample, InfrastructureError("none")), 0, 0)

    @contextlib.asynccontextmanager
    async def opened(*arguments):
        yield Slow

    monkeypatch.setattr(evaluation, "open_model", opened)
    monkeypatch.setattr(suite_run, "_judged", lambda *arguments: asyncio.sleep(0, ""))
    names = []
    for count in (6, 4):
        names.append(str(tmp_path / f"of{count}.py"))
        text = "from k2jax.evaluate.suite import suite\ndef get_config():\n    return suite(options=('kinds=add3', "
        Path(names[-1]).write_text(f"{text}'count={count}'))\n")
    choice = ModelChoice(model="oracle")
    asyncio.run(Evaluation(str(tmp_path / "run"), names, choice, changes={}).run(2))
    assert begun == [("count=6", place) for place in range(6)] + [("count=4", place) for place in range(4)]
