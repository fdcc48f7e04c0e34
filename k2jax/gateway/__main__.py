r"""Serves a model to black-box agents and records every token that they sample.

Example:
    python -m k2jax.gateway --checkpoint=runs/agent-nano --workdir=runs/agents
    curl localhost:8001/rollouts -H "Authorization: Bearer $(cat runs/agents/operator.key)" \
        -H 'Content-Type: application/json' -d '{"task": "fix-1", "sampling": {"max_tokens": 1024}}'

The second command opens a rollout; its answer holds the path and the key that the agent needs. The workdir keeps a log
of every rollout, with which a gateway that was killed goes on, and the trajectories of rollouts that have ended.
"""

from pathlib import Path
import sys

from absl import flags

from k2jax import cli, runtime
from k2jax.errors import UserError

KEY_FILE = "operator.key"


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("checkpoint", None, "Workdir, step of one, Hugging Face folder, hub:ORG/NAME or smollm2.", **to)
    flags.DEFINE_string("workdir", None, "Folder of the logs, the trajectories and the operator's key.", **to)
    flags.DEFINE_enum("dtype", None, ("float32", "bfloat16"), "Data type of the weights; default: as stored.", **to)
    flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.", **to)
    flags.DEFINE_integer("port", 8001, "Port to listen on; 0: any free port.", **to, lower_bound=0, upper_bound=65535)
    flags.DEFINE_integer("slots", 16, "Sequences that run at the same time, over all devices.", **to, lower_bound=1)
    flags.DEFINE_integer("max_length", 32768, "Longest sequence, prompt and answer together [tokens].", **to)
    text = "Longest request body [bytes]; default: 8 MiB, 32 MiB for a model that reads images."
    flags.DEFINE_integer("max_body_bytes", None, text, **to, lower_bound=1)
    flags.DEFINE_integer("max_running", 1024, "Most answers that are generated or wait.", **to, lower_bound=1)
    flags.DEFINE_float("answer_seconds", 600.0, "Time that the model has for one answer [s].", **to, lower_bound=0.1)
    flags.DEFINE_float("grace_seconds", 30.0, "Time for running requests after SIGTERM [s].", **to, lower_bound=0.0)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "checkpoint", "workdir")
    runtime.prepare()
    try:
        from k2jax.agents.gateway.app import make_gateway_app
        from k2jax.agents.web.server import open_socket, run_server
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed: pip install -e ".[serve]"') from None
    from k2jax.agents.api.model_card import ModelCard
    from k2jax.agents.gateway.gateway import Gateway
    from k2jax.checkpoint import run_folder
    from k2jax.client import Sampling
    from k2jax.client.keys import ApiKeys, kept_key
    from k2jax.convert.loading import tokenizer_of
    from k2jax.inference.client import EngineClient
    from k2jax.inference.loading import load_engine
    from k2jax.inference.worker import Worker
    from k2jax.serve.media_readers import media_reader
    from k2jax.text import chat_format

    folder = Path(values.workdir)
    keys = ApiKeys([kept_key(folder / KEY_FILE)])
    sock = open_socket(values.host, values.port)
    tokenizer = tokenizer_of(values.checkpoint)
    chat = chat_format(tokenizer)  # said before the weights are loaded
    sizes = {"slots": values.slots, "max_length": values.max_length}
    engine = load_engine(values.checkpoint, values.dtype, vision=True, **sizes)
    name = run_folder(values.checkpoint).name
    media = media_reader(values.checkpoint, engine.model.vision, tokenizer)
    card = ModelCard(name, tokenizer, engine.model.vocab, values.max_length, chat=chat, media=media)
    worker = Worker(engine)
    gateway = Gateway(EngineClient(worker), card, folder, answer_seconds=values.answer_seconds)
    tokenizer.save(folder / "tokenizer")  # for pages of the trajectories
    print("compiling the first programs", file=sys.stderr)
    engine.generate([[tokenizer.bos]], Sampling(max_tokens=2))
    app = make_gateway_app(gateway, keys, max_body_bytes=values.max_body_bytes, max_running=values.max_running)
    run_server(app, gateway, sock, values.grace_seconds, f"gateway for {name} at {{url}}")
    worker.stop()
    gateway.release_folder()


if __name__ == "__main__":
    cli.run(main, define, __doc__)
