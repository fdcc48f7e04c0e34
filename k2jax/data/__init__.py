"""Tokenised corpora, packed into rows and mixed; ``prepare_data`` builds all data of a training run.

The names below are loaded when they are first used: who only prepares images for a model does not wait for grain.

In reading order: ``training_data`` (all data of a run), ``sources`` over ``source_files`` (documents by name),
``vocabulary`` (the tokenizer), ``build_shards`` with ``split``, ``split_writer``, ``shards``, ``manifest``,
``index_files``, ``paged``, ``blocks``, ``disk_files`` and ``cache`` (documents on disk, built once), ``named_shards``,
``stored_files`` and ``stored_folder`` (documents in an object store), ``packing`` and ``conversation_rows`` over
``best_fit`` (rows), ``filled_mixture`` over ``filling`` (shares, and text in rows with images), ``loader`` (batches as
functions of seed and step) over ``planned_rows``. ``chat_records`` with ``chat_rendering``, ``token_rows`` and
``tokenised`` render records, ``measure`` compresses text for comparison, ``vision_share`` and ``images`` are for models
with vision, ``processes`` prepare in parallel. ``kept_corpora``, ``retired``, ``storage`` and ``batch_preview`` serve
``python -m k2jax.data``, ``document_files`` are what ``duplicates`` and ``contamination`` are looked for in, and
``synthetic`` are corpora of any size for tests.
"""

from importlib import import_module
from typing import Any

_LAZY = {
    "DataLoader": "k2jax.data.loader",
    "HeldOut": "k2jax.data.loader",
    "RowSource": "k2jax.data.packing",
    "TrainingData": "k2jax.data.training_data",
    "bits_per_byte": "k2jax.data.packing",
    "prepare_data": "k2jax.data.training_data",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
