"""A run that a test plays: it publishes weights that it draws, and engines in processes of their own join it."""

from pathlib import Path
import tempfile

from k2jax.agents.collect.engine_address import tcp_listener
from k2jax.config.build import to_json
from k2jax.inference.weights import EngineWeights
from k2jax.rl.broadcast.peers import make_key, text_of
from k2jax.rl.broadcast.store_source import KEY_FILE, StoreSource
from k2jax.rl.engines.engine_pool import EnginePool
from k2jax.rl.engines.run_record import RunRecord, remove_record, this_machine
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine, store_folder
from tests.inference.tiny import weights
from tests.train.together import free_port, python

FLAGS = (
    "--xla_force_host_platform_device_count={} --xla_cpu_enable_concurrency_optimized_scheduler=false "
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def engine_of(workdir, count, devices, *, here=False, **more):
    """The processes of an engine on ``devices`` each, as if on another machine unless it is told to be ``here``."""
    environment = {"XLA_FLAGS": FLAGS.format(devices), "PJRT_NPROC": str(3 * count * devices)} | more
    if count == 1:
        environment |= dict.fromkeys(("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"), "")
    arguments, port = ["-m", "tests.rl.engines.elsewhere", *["here"] * here, f"--follow={workdir}"], free_port()
    return [python(arguments, index, count, port, **environment) for index in range(count)]


class PlayedRun:
    """A run of a config at work; ``publish`` and ``run`` are called by the test's thread.

    Attributes:
        pool: the engines.
        said: lines.
    """

    def __init__(self, workdir, config, opened):
        self.workdir, self.config, self.said = workdir, config, []
        workdir.mkdir()
        (workdir / "config.json").write_text(to_json(config))
        self._loop = opened.enter_context(EventLoop())
        self.store = CheckpointEngine(store_folder(workdir))
        opened.callback(self.store.remove)
        key = make_key(workdir / KEY_FILE)
        source = StoreSource(self.store.folder, ("127.0.0.1", 0), key, self.said.append)
        opened.callback(source.close)
        self._weights_at = text_of(source.server.address)
        self.pool = EnginePool(config.rl.rollout.max_length, config.rl.rollout.slots, self.said.append, "start one")
        self._sockets = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="k2jax-")))
        self._has_record = False
        self.run(self.pool.watch())
        opened.callback(lambda: self.run(self.pool.close()))
        opened.callback(remove_record, workdir)

    def run(self, coroutine):
        """The result of a coroutine on the run's event loop."""
        return self._loop.run(coroutine)

    def publish(self, version):
        """Publishes the weights of a seed under a number, as a trainer does."""
        held = EngineWeights(weights(self.config.model, version), self.config.model, None)
        self.pool.publish(version, held.digest())
        self.store.publish(held.leaves(), version)
        if not self._has_record:
            self._has_record = True
            listener, address = tcp_listener("127.0.0.1")
            self.run(self.pool.open(self._sockets / "engines", listener, address.key))
            record = RunRecord(this_machine(), str(self._sockets / "engines"), address.text, "float32")
            record._replace(weights=(self._weights_at,)).write(self.workdir)

    def has_engine(self):
        """Whether an engine has the version that was published last."""
        return any(each.version == self.pool.version for each in list(self.pool.engines.values()))
