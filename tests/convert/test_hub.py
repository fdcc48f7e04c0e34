"""Models by their name on the hub: what is asked for, what is said, and what there is without a network."""

import shutil
from types import SimpleNamespace

import huggingface_hub
from huggingface_hub.errors import DryRunError, LocalEntryNotFoundError, RepositoryNotFoundError
import numpy as np
import pytest

import k2jax
from k2jax.convert import hub
from k2jax.convert.hf_config import read_config
from k2jax.convert.importing import import_folder
from k2jax.convert.mapping import hf_shape
from k2jax.errors import UserError
from k2jax.model import model_specs
from k2jax.params import hf_tensors, named_specs
from k2jax.text import byte_tokenizer
from tests.convert.folders import write_folder

NAME = "hub:somebody/tiny@v1"
QWEN2 = {
    "model_type": "qwen2", "vocab_size": 258, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": True, "max_position_embeddings": 64,
}  # fmt: skip


class Hub:
    """A fake of ``snapshot_download``: a repository, a cache, and whether there is a network.

    Attributes:
        asked: arguments of every download that was no dry run.
    """

    def __init__(self, repository, cache, error=None):
        self.repository, self.cache, self.error, self.asked = repository, cache, error, []

    def snapshot_download(self, name, *, dry_run=False, **files):
        if dry_run:
            if self.error:
                raise DryRunError("cannot be accessed") from self.error
            sizes = [file.stat().st_size for file in self.repository.iterdir()]
            return [SimpleNamespace(file_size=size, will_download=not self.cache.exists()) for size in sizes]
        self.asked.append((name, files))
        if self.cache.exists():
            return str(self.cache)
        if self.error:
            raise self.error
        return shutil.copytree(self.repository, self.cache)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A hub with a tiny model."""
    hub._downloaded.cache_clear()
    fake = Hub(tmp_path / "repository", tmp_path / "cache")
    write_folder(fake.repository, QWEN2, {})
    specs = dict(named_specs(model_specs(read_config(fake.repository).model)))
    tensors = {name: np.zeros(hf_shape(spec), np.float32) for spec in specs.values() for name, _ in hf_tensors(spec)}
    write_folder(fake.repository, QWEN2, tensors)
    byte_tokenizer().save(fake.repository)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    yield fake
    hub._downloaded.cache_clear()


def test_a_name_stands_for_weights_and_tokenizer_and_is_downloaded_once(served, tmp_path, capsys):
    model, _ = k2jax.from_pretrained(NAME)
    assert model.config.gqa.qkv_bias and k2jax.load_tokenizer(NAME).fingerprint == byte_tokenizer().fingerprint
    download, folder = capsys.readouterr().out.splitlines()
    files = list(served.repository.iterdir())
    size = sum(file.stat().st_size for file in files)
    assert f"downloading {len(files)} files of somebody/tiny@v1" in download and f"{size / 1000:,.1f} kB" in download
    assert download.endswith(f"to {huggingface_hub.constants.HF_HUB_CACHE}")
    assert folder == f"{NAME} is {served.cache}"
    [(name, asked)] = served.asked
    assert (name, asked["revision"]) == ("somebody/tiny", "v1")
    assert set(asked["allow_patterns"]) == {"*.json", "*.safetensors", "tiktoken.model"}
    import_folder(NAME, tmp_path / "run")
    assert len(served.asked) == 1 and k2jax.load_tokenizer(tmp_path / "run").fingerprint


def test_what_is_cached_needs_no_network_and_is_not_said_to_be_downloaded(served, capsys):
    shutil.copytree(served.repository, served.cache)
    served.error = LocalEntryNotFoundError("no network")
    assert k2jax.load_tokenizer(NAME).fingerprint == byte_tokenizer().fingerprint
    assert capsys.readouterr().out.splitlines() == [f"{NAME} is {served.cache}"]


@pytest.mark.parametrize(
    "error",
    [
        LocalEntryNotFoundError("An error happened.\n\nPlease check your connection"),
        RepositoryNotFoundError(
            "404 Client Error.\nNo such repository", response=SimpleNamespace(headers={}, request=None)
        ),
        OSError("No space left on device"),
    ],
)
def test_what_cannot_be_downloaded_is_one_line_that_names_model_cause_and_way_out(served, error):
    served.error = error
    with pytest.raises(UserError) as refused:
        k2jax.from_pretrained(NAME)
    [line] = str(refused.value).splitlines()
    assert line.startswith(NAME) and str(error).splitlines()[0].strip(".") in line and "name the folder" in line
