"""``python -m tests.rl.engines.elsewhere [here] --follow=WORKDIR``: an engine as if on another machine than the run.

With ``here`` it is on the run's machine, as it is.
"""

import sys

from k2jax import cli
from k2jax.rl.engines import run_record
from k2jax.rollout import engine
from tests.emulated import dispatch_at_once

if __name__ == "__main__":
    dispatch_at_once()
    if sys.argv[1] == "here":
        del sys.argv[1]
    else:
        run_record.this_machine = lambda: "another"
    cli.run(engine.main, engine.define, engine.__doc__)
