"""The keys that name files and folders: local ones, or for some of them places in object stores."""

from __future__ import annotations

from collections.abc import Iterator

from k2jax.config.schema import IN_STORES, Config
from k2jax.files.local import check_local, check_place


def check_paths(config: Config) -> None:
    """Rejects URLs in the place of files and folders, where a run starts: a config that is launched may be another.

    Raises:
        UserError: in one line that names the key.
    """
    for key, text in _paths(config):
        check_local(text, f"config.{key}")
    for key, text in _places(config):
        check_place(text, f"config.{key}")


def _places(config: Config) -> Iterator[tuple[str, str]]:
    """Every key that may also name what lies in an object store, with its value."""
    yield ("data.cache_dir", config.data.cache_dir or "")
    sources = config.data.sources.items()
    yield from (
        (f"data.sources.{name}.path", source.path or "") for name, source in sources if source.kind in IN_STORES
    )


def _paths(config: Config) -> Iterator[tuple[str, str]]:
    """Every other key that names a file or a folder, with its value."""
    data, rl = config.data, config.rl
    yield from (("init_from", config.init_from or ""), ("init_tower_from", config.init_tower_from or ""))
    yield ("data.tokenizer.path", data.tokenizer.path or "")
    yield from (
        (f"data.sources.{name}.path", source.path or "")
        for name, source in data.sources.items()
        if source.kind not in IN_STORES
    )
    yield from (("rl.images", rl.images), ("rl.critic.tokenizer", rl.critic.tokenizer))
    yield from (("rl.critic.rubrics", text) for text in rl.critic.rubrics)
    yield from (("rl.distill.teachers", text.partition("=")[2]) for text in rl.distill.teachers)
    yield ("rl.distill.table", rl.distill.table or "")
    yield from ((f"rl.tasks.{name}.pass_rates", task.pass_rates) for name, task in rl.tasks.items())
