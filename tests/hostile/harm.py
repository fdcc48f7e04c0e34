"""An attack that succeeds, for the test of what sees it."""

import time

from tests.hostile.attack import Attack, Outcome, Place


async def _harms(place: Place) -> Outcome:
    """Stands still, and takes memory."""
    held = b"x" * 350_000_000
    time.sleep(0.8)
    return Outcome("" if held else "nothing is held", (200, 503))


ATTACKS = [Attack(0, "a process that harms itself", "it does not", _harms)]
