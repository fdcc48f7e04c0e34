"""Checkpoints of the Hugging Face hub by their name, ``hub:ORG/NAME`` or ``hub:ORG/NAME@REVISION``.

The files of a model are downloaded once into the hub's own cache, which other programs share. Nothing of it is run.
"""

from __future__ import annotations

import functools
from pathlib import Path

from rich import filesize

from k2jax import processes
from k2jax.errors import UserError, abbreviate

PREFIX = "hub:"
FILES = ("*.json", "*.safetensors", "tiktoken.model")
"""What a checkpoint is read from: configurations, weights and vocabularies; those in subfolders are other models'."""


def local(checkpoint: str | Path) -> str | Path:
    """A checkpoint argument as a local one: of a name of the hub the folder that its files were downloaded to.

    A line says what is downloaded and where to; what the cache has already is also used without a network.

    Raises:
        UserError: there is no such model, it is not open to this user, or neither the hub nor the cache has it.
    """
    name = str(checkpoint)
    return _downloaded(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else checkpoint


@functools.cache  # weights, tokenizer and limits of images are opened one after the other
def _downloaded(name: str) -> Path:
    try:
        import huggingface_hub as hub
        from huggingface_hub.constants import HF_HUB_CACHE
        from huggingface_hub.errors import DryRunError
    except ModuleNotFoundError as error:
        raise UserError(f'{PREFIX}{name}: {error.name} is not installed: pip install -e ".[hub]"') from None
    model, _, revision = name.partition("@")
    files = {"revision": revision or None, "allow_patterns": list(FILES), "ignore_patterns": ["*/*"]}
    try:
        try:
            missing = [
                file.file_size for file in hub.snapshot_download(model, dry_run=True, **files) if file.will_download
            ]
        except DryRunError:  # the hub cannot be reached: the cache may have the model
            missing = []
        if missing:
            size = filesize.decimal(sum(missing))
            _say(f"downloading {len(missing)} files of {name} from the Hugging Face hub, {size}, to {HF_HUB_CACHE}")
        folder = hub.snapshot_download(model, **files)
    except Exception as error:  # the hub's client raises many kinds
        raise UserError(
            f"{PREFIX}{name} is not in {HF_HUB_CACHE} and cannot be downloaded: {_first_line(error)}; on a machine "
            "without a network, copy the model's folder there and name the folder"
        ) from None
    _say(f"{PREFIX}{name} is {folder}")
    return Path(folder)


def _say(text: str) -> None:
    if processes.is_first():
        print(text, flush=True)


def _first_line(error: Exception) -> str:
    lines = [line.strip(" .") for line in str(error).splitlines() if line.strip()]
    return abbreviate(lines[0] if lines else type(error).__name__, 200)
