"""Files and folders are local: a URL in the place of one is refused by every command, and never a folder ``gs:``."""

from pathlib import Path
import re
import sys

from absl import flags
import pytest

from k2jax import cli
from k2jax.config import defaults, resolve, source
from k2jax.config.paths import check_paths
from k2jax.files.local import check_local
from k2jax.train.workdir import open_workdir
from tests.refusal import refused

ROOT = Path(__file__).parents[2]
ELSEWHERE = frozenset({
    "allowed_hosts", "arguments", "assume", "band", "by", "cluster", "domain", "encoder", "endpoint", "engine_topology",
    "engines", "env", "environments",
    "filters", "format", "host", "hosts", "image", "image_hosts", "judge_model", "judge_url", "kinds", "limits",
    "machine", "mode", "model", "model_name", "module", "name", "only", "options", "preset", "project", "prompt",
    "publish_listen", "published_at", "ray", "reason", "request", "reservation", "sandbox", "search", "secret",
    "served_model", "service_account", "topologies", "tools", "topology", "tpu", "url", "video", "zone",
})  # fmt: skip
"""Flags that name no file or folder of this machine, or, as ``image``, may be URLs."""


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("gs://bucket/x", "mount it (gcsfuse, as k2jax.launch does on every host) and name the local folder"),
        ("S3://bucket/x", "mount it (mount-s3) and name the local folder"),
        ("gs:/bucket/x", "mount it (gcsfuse"),
        ("https://example.com/x", "copy or mount it, and name the local folder"),
        ("hf://owner/name", "copy or mount it"),
        ("file:///tmp/x", "leave file: away"),
        ("file:/tmp/x", "leave file: away"),
    ],
)
def test_a_url_is_refused_with_what_to_do_instead(text, remedy):
    with refused(f"--to '{re.escape(text)}' is a URL, .*{re.escape(remedy)}"):
        check_local(text, "--to")


@pytest.mark.parametrize("text", ["runs/a", "/tmp/a:b", "C:/runs", "a:b//c", "./gs:/x", "", "smollm2", "~/x"])
def test_every_other_name_is_one_of_a_file(text):
    check_local(text, "--to")


def commands() -> list[str]:
    """Modules with a command line of their own."""
    files = [path for path in (ROOT / "k2jax").rglob("*.py") if "cli.run(" in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(files) if path.name != "cli.py"]


@pytest.mark.parametrize("module", commands())
def test_every_flag_that_names_a_file_is_checked(module):
    """A new flag is either one of ``cli.PATHS``, or is listed here because it names none."""
    text = Path(ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
    names = set(re.findall(r"DEFINE_(?:string|list|multi_string)\(\s*\"(\w+)\"", text))
    assert names <= set(cli.PATHS) | ELSEWHERE
    assert "launch" in module or module == "k2jax.data.__main__" or "remote=" not in text


@pytest.mark.parametrize("name", cli.PATHS)
def test_a_command_refuses_a_url_before_it_does_anything(monkeypatch, capsys, name):
    monkeypatch.setattr(sys, "argv", ["command", f"--{name}=gs://bucket/x"])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    define = lambda values: flags.DEFINE_string(name, None, "A folder.", flag_values=values)  # noqa: E731
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda values: 0, define, "A command.")
    assert ended.value.code == cli.USER_ERROR
    assert capsys.readouterr().err.startswith(f"error: --{name} 'gs://bucket/x' is a URL")
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda values: 0, define, "A command.", remote=(name,))
    assert ended.value.code == 0


KEYS = ("init_from", "data.tokenizer.path", "rl.images", "rl.critic.tokenizer", "rl.distill.table")


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_names_a_folder_refuses_a_url(key):
    config = defaults("rl", model="micro")
    config.update_from_flattened_dict({key: "s3://bucket/x"})
    with refused(f"config.{key} 's3://bucket/x' is a URL"):
        check_paths(resolve(config))


@pytest.mark.parametrize("url", ["s3://bucket/x", "GS://bucket/x", "file:///tmp/x"])
def test_a_corpus_may_lie_in_a_store(url):
    config = defaults("pretrain", model="micro")
    config.data.cache_dir = url
    config.data.sources.a = source(kind="jsonl", path=url)
    check_paths(resolve(config))


@pytest.mark.parametrize("url", ["https://example.com/x", "hf://owner/name", "file:/tmp/x", "gs:/bucket/x"])
def test_what_is_not_read_by_its_url_is_refused(url):
    config = defaults("pretrain", model="micro")
    config.data.cache_dir = url
    with refused(f"config.data.cache_dir '{url}' is a URL"):
        check_paths(resolve(config))


def test_a_kind_that_reads_no_store_refuses_a_url():
    config = defaults("pretrain", model="micro")
    config.data.sources.a = source(kind="huggingface", path="s3://bucket/x")
    with refused("config.data.sources.a.path 's3://bucket/x' is a URL"):
        check_paths(resolve(config))


def test_a_run_makes_no_folder_that_is_named_like_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused("--workdir 'gs://bucket/x' is a URL"):
        open_workdir("gs://bucket/x", resolve(defaults("rl", model="micro")))
    assert not list(tmp_path.iterdir())
