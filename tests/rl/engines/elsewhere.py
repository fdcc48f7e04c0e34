"""``python -m tests.rl.engines.elsewhere --follow=WORKDIR``: an engine as if on another machine than the run."""

from k2jax import cli
from k2jax.rl.engines import run_record
from k2jax.rollout import engine
from tests.emulated import dispatch_at_once

if __name__ == "__main__":
    dispatch_at_once()
    run_record.this_machine = lambda: "another"
    cli.run(engine.main, engine.define, engine.__doc__)
