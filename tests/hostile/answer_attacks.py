"""Rows 37 and 38: patches that lie about tests, and answers that break who judges them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from k2jax.agents.task import Task
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.tasks.swe import calibration
from tests.agents.test_every_answer import CONTENTS, ENDLESS, FORMS, TASKS
from tests.hostile.attack import Attack, Outcome, Place, expect
from tests.tasks.swe_repositories import score_patch
from tests.tasks.test_swe_forgeries import FORGERIES, forged, small_task
from tests.tasks.test_swe_patches import BESIDE, NOT_APPLIED, binary

WORTH_NOTHING = "the reward is 0, and the sample is not masked"
_NAMES = [name for name in TASKS if name != "math"]


def _task(folder: Path) -> Task:
    return small_task(folder / "swe")


def _forged(name: str) -> Callable[[Place], Any]:
    async def run(place: Place) -> Outcome:
        calibration.BITS = 2  # two runs with changed tests for each file: what always lies is found in any of them
        reward = await score_patch(place.prepared, forged(name), place.backend)
        return expect(reward.value == 0, f"it is worth {reward.value}")

    return run


def _patches(patches: Callable[[], dict[str, str]], value: float) -> Callable[[Place], Any]:
    """Patches that are all worth the same: those that are to be right stand behind the right one."""

    async def run(place: Place) -> Outcome:
        wrong = []
        for name, patch in (await asyncio.to_thread(patches)).items():
            right = place.prepared.metadata["patch"] if value else ""
            reward = await score_patch(place.prepared, right + patch, place.backend)
            if reward.value != value:
                wrong.append(f"{name} is worth {reward.value}")
        return Outcome("; ".join(wrong)[:300])

    return run


def _judged(names: list[str], answers: Callable[[], list[str]]) -> Callable[[Place], Any]:
    async def run(place: Place) -> Outcome:
        wrong = []
        with VerifierPool(workers=2, timeout=1.0, retries=0) as pool:
            for name in names:
                for answer in answers():
                    reward = await pool.score_answer(TASKS[name], answer)
                    if not 0 <= reward.value < 1:
                        wrong.append(f"{name} gives {reward.value} to {answer[:40]!a}")
        return Outcome("; ".join(wrong)[:300])

    return run


def _in_all_forms() -> list[str]:
    return [form.format(content) for form in FORMS for content in (CONTENTS if form == "{}" else CONTENTS[:4])]


def _large() -> dict[str, str]:
    head = "diff --git a/f{0} b/f{0}\nnew file mode 100644\nindex 0000000..e69de29\n"
    return {
        "a file of a gigabyte": binary("words/big.bin", 1 << 30),
        "15,000 files": "".join(head.format(number) for number in range(15_000)),
        "12 files of 100 MB": "".join(binary(f"words/{number}.bin", 100 << 20) for number in range(12)),
    }


_IN_THE_WAY = {name: BESIDE[name] for name in ("no tests", "a link in place of a test", "a submodule")}
_IN_SANDBOX = {"prepare": _task, "in_sandbox": True, "seconds": 300.0}
ATTACKS = [
    *(Attack(37, f"a package that lies by {name}", WORTH_NOTHING, _forged(name), **_IN_SANDBOX) for name in FORGERIES),
    Attack(38, "patches that are none", WORTH_NOTHING, _patches(lambda: NOT_APPLIED, 0.0), **_IN_SANDBOX),
    Attack(38, "patches that do not fit", WORTH_NOTHING, _patches(_large, 0.0), **_IN_SANDBOX),
    Attack(
        38,
        "right patches in the way of the tests",
        "the reward is 1",
        _patches(lambda: _IN_THE_WAY, 1.0),
        **_IN_SANDBOX,
    ),
    *(
        Attack(38, name, WORTH_NOTHING, _judged(names, answers), seconds=300)
        for name, names, answers in (
            ("answers of every form to every verifier", _NAMES, _in_all_forms),
            ("boxes for math", ["math"], lambda: [rf"\boxed{{{content}}}" for content in CONTENTS]),
            ("expressions without an end for math", ["math"], lambda: [rf"\boxed{{{each}}}" for each in ENDLESS]),
        )
    ),
]
