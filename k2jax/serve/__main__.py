"""Serves a model over OpenAI's HTTP API.

Example:
    python -m k2jax.serve --checkpoint=smollm2
    curl localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{"model": "smollm2", "prompt": "Once"}'

    python -m k2jax.serve --checkpoint=runs/moonlight --expert=4 --data=2 --slots=64

The last command uses 8 devices and distributes the experts over groups of 4. If --api_keys_file or the variable
K2JAX_API_KEYS contains keys, every route except /health requires one. SIGTERM lets running requests finish within the
grace period and then ends the server with exit code 0.
"""

from __future__ import annotations

from pathlib import Path
import sys
from typing import TYPE_CHECKING

from absl import flags

from k2jax import cli, runtime
from k2jax.errors import UserError

if TYPE_CHECKING:
    from k2jax.agents.api.model_card import ModelCard
    from k2jax.data.images.urls import URL
    from k2jax.inference.engine import Engine
    from k2jax.inference.worker import Worker
    from k2jax.rl.broadcast.weight_server import WeightServer
    from k2jax.serve.following import WeightFollower, WeightSource


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("checkpoint", None, "Workdir, step of one, Hugging Face folder, hub:ORG/NAME or smollm2.", **to)
    text = "Serve what a running k2jax.rl keeps in memory (rl.rollout.publish), not its last checkpoint."
    flags.DEFINE_bool("published", False, text, **to)
    text = "With --published or --published_at: go on with every later version, a moment after it is published."
    flags.DEFINE_bool("follow", False, text, **to)
    text = (
        "Serve what a run of other hosts publishes (rl.rollout.publish_listen), or what a server there has "
        "(--publish_listen): HOST:PORT, one for each process of the run."
    )
    flags.DEFINE_list("published_at", [], text, **to)
    text = "File with the run's key, its workdir's publish.key; with --publish_listen written where there is none."
    flags.DEFINE_string("published_key", None, text, **to)
    text = "Give the weights that are served to others there, HOST:PORT, which start with --published_at."
    flags.DEFINE_string("publish_listen", None, text, **to)
    flags.DEFINE_enum("dtype", None, ("float32", "bfloat16"), "Data type of the weights; default: as stored.", **to)
    flags.DEFINE_string("model_name", None, "Name of the model in requests; default: the checkpoint's name.", **to)
    flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.", **to)
    flags.DEFINE_integer("port", 8000, "Port to listen on; 0: any free port.", **to, lower_bound=0, upper_bound=65535)
    flags.DEFINE_string("api_keys_file", None, "File with one API key per line.", **to)
    flags.DEFINE_bool("allow_unauthenticated", False, "Serve other machines without API keys.", **to)
    text = "Names by which a server without API keys may be called, beside its own: of a proxy or a service."
    flags.DEFINE_list("allowed_hosts", [], text, **to)
    flags.DEFINE_integer("slots", 16, "Sequences that run at the same time, over all devices.", **to, lower_bound=1)
    flags.DEFINE_integer("expert", 1, "Devices over which the experts are distributed.", **to, lower_bound=1)
    flags.DEFINE_integer("data", 1, "Data-parallel groups of devices.", **to, lower_bound=1)
    flags.DEFINE_integer("max_length", 4096, "Longest sequence, prompt and response together [tokens].", **to)
    flags.DEFINE_integer("max_queue", 256, "Most choices that wait for a slot.", **to, lower_bound=0)
    text = "Longest request body [bytes]; default: 8 MiB, 32 MiB for a model that reads images."
    flags.DEFINE_integer("max_body_bytes", None, text, **to, lower_bound=1)
    flags.DEFINE_float("grace_seconds", 30.0, "Time for running requests after SIGTERM [s].", **to, lower_bound=0.0)
    flags.DEFINE_integer("max_images", 64, "Most images and frames of video of a request.", **to, lower_bound=0)
    flags.DEFINE_float("max_megapixels", 50.0, "Most pixels of all images of a request [10^6].", **to, lower_bound=0.0)
    text = "Largest file of an image [10^6 bytes]."
    flags.DEFINE_float("max_image_megabytes", 20.0, text, **to, lower_bound=0.0)
    text = "Hosts whose http and https URLs of images are opened, HOST or HOST:PORT; default: none, data URLs alone."
    flags.DEFINE_list("image_hosts", [], text, **to)
    text = "Longest download of an image [s]."
    flags.DEFINE_float("image_seconds", 10.0, text, **to, lower_bound=0.001)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "checkpoint")
    _check_published(values)
    runtime.pause_collection()
    runtime.prepare()
    try:
        from k2jax.agents.web.server import open_socket, run_server
    except ModuleNotFoundError as error:
        raise UserError(f'{error.name} is not installed: pip install -e ".[serve]"') from None
    from k2jax.client.keys import check_exposure, read_keys
    from k2jax.data.images.urls import urls_of_hosts

    # What needs neither the model nor its weights is checked before they are loaded.
    keys = read_keys(values.api_keys_file)
    check_exposure(values.host, keys, values.allow_unauthenticated)
    urls = urls_of_hosts(values.image_hosts)
    sock = open_socket(values.host, values.port)
    engine, card, source = _open_model(values, urls)
    from k2jax.agents.web.arrivals import longest_body
    from k2jax.serve.app import make_app
    from k2jax.serve.hosts import ServedHosts
    from k2jax.serve.service import Service

    service = Service(engine, card, values.max_queue)
    hosts = ServedHosts(values.host, values.allowed_hosts)
    app = make_app(service, keys, longest_body(values.max_body_bytes, card.media is not None), hosts)
    runtime.resume_collection()
    follower = _follow(engine, source) if values.follow else None
    giving = _give(engine, values) if values.publish_listen and source is None else None
    run_server(app, service, sock, values.grace_seconds, f"serving {card.name} at {{url}}/v1")
    if follower is not None:
        follower.stop()
    elif source is not None:
        source.close()
    if giving is not None:
        giving.close()
    engine.stop()


def _check_published(values: flags.FlagValues) -> None:
    """Rejects flags of published weights that do not go together."""
    if values.published and values.published_at:
        raise UserError("--published is of a run on this machine and --published_at of one on others: give one of them")
    if values.follow and not (values.published or values.published_at):
        raise UserError(
            "--follow goes on with the weights that a run publishes: give --published or --published_at, too"
        )
    if values.publish_listen and values.published:
        raise UserError(
            "--publish_listen gives nothing with --published: set rl.rollout.publish_listen of the run, which gives "
            "its weights itself"
        )
    if bool(values.published_key) != bool(values.published_at or values.publish_listen):
        raise UserError("--published_key is the key for --published_at and --publish_listen: give it with them")


def _open_model(values: flags.FlagValues, urls: tuple[URL, ...]) -> tuple[Worker, ModelCard, WeightSource | None]:
    """The engine, which has run its first programs, what requests need to know of its model, and a source of weights.

    Modules and the tokenizer are loaded while other threads read weights and compiled programs. URLs of images are
    opened where they begin as one of ``urls``. Where a run publishes the weights they come from there alone.
    """
    from k2jax.inference.loading import open_engine
    from k2jax.inference.mesh import make_engine_mesh
    from k2jax.inference.shapes import PREFILL_WIDTHS

    mesh = make_engine_mesh(values.data, values.expert)
    sizes = {"slots": values.slots, "max_length": values.max_length}
    sources: list[WeightSource] = []

    def fill(engine: Engine) -> None:
        sources.append(source := _source(values, engine))
        version, leaves = source.load()
        engine.update_params(leaves, version)
        print(f"serving version {version} of the weights, which {values.checkpoint} publishes", file=sys.stderr)

    filled = {"fill": fill} if values.published or values.published_at else {}
    with open_engine(values.checkpoint, values.dtype, mesh, vision=True, **filled, **sizes) as engine:
        from k2jax.agents.api.model_card import ModelCard, chat_format_or_none
        from k2jax.checkpoint import run_folder
        from k2jax.client import Sampling
        from k2jax.convert.loading import tokenizer_of
        from k2jax.data.images.download import DownloadLimits
        from k2jax.inference.worker import Worker
        import k2jax.serve.app  # noqa: F401
        from k2jax.serve.media_readers import media_reader

        tokenizer = tokenizer_of(values.checkpoint)
        name = values.model_name or run_folder(values.checkpoint).name
        files = DownloadLimits(urls, values.max_image_megabytes, values.image_seconds)
        media = media_reader(
            values.checkpoint, engine.model.vision, tokenizer, values.max_images, values.max_megapixels, files
        )
        chat = chat_format_or_none(tokenizer)
        card = ModelCard(name, tokenizer, engine.model.vocab, values.max_length, chat=chat, media=media)
    engine.grammars = card.grammars
    if not engine.has_kept_programs:
        print("compiling the first programs", file=sys.stderr)
        # A prompt of two chunks and a token after it; a later start loads what they need in this order.
        engine.generate([[tokenizer.bos] * (PREFILL_WIDTHS[0] + 2)], Sampling(max_tokens=2))
    return Worker(engine), card, sources[0] if sources else None


def _source(values: flags.FlagValues, engine: Engine) -> WeightSource:
    """Where the published weights come from."""
    if values.published_at:
        from k2jax.rl.broadcast.peers import parse_address, read_key
        from k2jax.rl.broadcast.received_weights import ReceivedWeights

        addresses = [parse_address(text, "--published_at") for text in values.published_at]
        key = read_key(Path(values.published_key))
        listen = parse_address(values.publish_listen, "--publish_listen") if values.publish_listen else None
        return ReceivedWeights(addresses, key, engine.weights, _say, listen)
    from k2jax.checkpoint import run_folder
    from k2jax.rl.sync.checkpoint_engine import store_folder
    from k2jax.serve.following import StoredWeights

    return StoredWeights(store_folder(run_folder(values.checkpoint)))


def _give(engine: Worker, values: flags.FlagValues) -> WeightServer:
    """Gives the weights of a checkpoint to other servers, so that they need not read it."""
    import secrets

    from k2jax.rl.broadcast.holdings import EngineVersion, engine_manifest
    from k2jax.rl.broadcast.peers import make_key, parse_address, text_of
    from k2jax.rl.broadcast.weight_server import WeightServer

    listen, key = parse_address(values.publish_listen, "--publish_listen"), make_key(Path(values.published_key))
    server = WeightServer(listen, key, _say)
    weights = engine.engine.weights
    server.offer(EngineVersion(engine_manifest(weights, secrets.token_hex(8), engine.engine.version), weights))
    _say(f"giving the weights to others at {text_of(server.address)}, with the key {values.published_key}")
    return server


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _follow(engine: Worker, source: WeightSource) -> WeightFollower:
    """Has an engine go on with what the run publishes."""
    from k2jax.serve.following import WeightFollower

    return WeightFollower(engine, source, _say)


if __name__ == "__main__":
    cli.run(main, define, __doc__)
