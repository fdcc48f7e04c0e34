"""A checkpoint that is not what was saved is refused in one line, which names the step that is whole."""

import json
from pathlib import Path
import shutil
import tarfile

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts

from k2jax.checkpoint import Checkpoints, checkpoint_step
from k2jax.checkpoint.storage import array_metadata, create_array, open_array, read_all
from k2jax.checkpoint.streaming import ParamsReader, ParamsWriter, StoredArray
from k2jax.config import Config
from k2jax.config.build import to_json
from k2jax.config.identity import fixed_keys
from k2jax.errors import UserError
from tests.checkpoint.test_manager import same, shapes, state


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    """Steps 3 and 4 of a run, with leaves of several chunks."""
    folder = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(folder)
    for step in (3, 4):
        checkpoints.save(step, *large(step), {"tokens": 10 * step}, {"phase": [step]})
    checkpoints.close()
    return folder


@pytest.fixture
def saved(saved_once, tmp_path):
    shutil.copytree(saved_once, tmp_path / "run")
    return tmp_path / "run"


def large(number: int):
    values = np.random.default_rng(number).normal(size=(6, 200, 512)).astype(np.float32)
    params, optimizer = state(number)
    return params | {"large": jnp.asarray(values)}, optimizer | {"large": jnp.asarray(values[0], jnp.bfloat16)}


def restored(folder: Path, step: int = 4):
    checkpoints = Checkpoints(folder)
    try:
        return *checkpoints.restore(step, *shapes(large(0))), checkpoints.meta(step)["tokens"], checkpoints.extra(step)
    finally:
        checkpoints.close()


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        restored(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def data_files(folder: Path, step: int = 4) -> list[Path]:
    return sorted(
        path for path in (folder / "checkpoints" / str(step)).glob("*/**/d/*") if path.stat().st_size > 10_000
    )


def test_every_chunk_has_a_checksum_and_is_compressed(saved):
    array = open_array(saved / "checkpoints" / "4" / "params", "large")
    _, compression = array.spec().to_json()["metadata"]["codecs"]
    assert compression == {"name": "zstd", "configuration": {"level": 1, "checksum": True}}
    assert array.chunk_layout.read_chunk.shape != array.shape


def test_what_was_saved_comes_back(saved):
    params, optimizer, tokens, extra = restored(saved)
    same((params, optimizer), large(4))
    assert (tokens, extra) == (40, {"phase": [4]})


@pytest.mark.parametrize("place", [0.03, 0.5, 0.97])
def test_one_bit_of_any_weight_is_noticed(saved, place):
    for path in data_files(saved):
        content = bytearray(path.read_bytes())
        content[int(len(content) * place)] ^= 4
        path.write_bytes(content)
    message = refusal(saved)
    assert "checkpoints/4 is damaged (" in message  # by the digest of a chunk, or of the index that lies between chunks
    assert message.endswith("move it away to go on from step 3, which is whole")


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("values", [np.random.default_rng(0).normal(size=40), np.zeros(40), np.arange(90) // 30])
def test_no_bit_and_no_end_of_a_chunk_can_change_unnoticed(tmp_path, values, compress):
    """Every bit, also of the header that says whether there is a checksum, and every length of the file."""
    values, spec = values.astype(np.float32), {"driver": "zarr3", "kvstore": f"file://{tmp_path}/array/"}
    metadata = array_metadata(values.shape, values.shape, compress) | {"data_type": "float32"}
    stored = ts.open(spec | {"metadata": metadata, "store_data_equal_to_fill_value": True}, create=True).result()
    stored.write(values).result()
    [path] = (tmp_path / "array" / "c").iterdir()
    whole = path.read_bytes()
    flipped = [
        whole[:i] + bytes([whole[i] ^ (1 << bit)]) + whole[i + 1 :] for i in range(len(whole)) for bit in range(8)
    ]
    refused = 0
    for content in [*flipped, *(whole[:end] for end in range(len(whole)))]:
        path.write_bytes(content)
        try:
            found = ts.open(spec).result().read().result()
        except ValueError:
            refused += 1
        else:
            np.testing.assert_array_equal(found, values)
    assert refused > 0.98 * 9 * len(whole)  # a few bits of a frame's header say nothing of its content


def test_the_step_that_is_named_is_whole(saved):
    """The step before is damaged as well: no advice to go on from it."""
    for path in data_files(saved) + data_files(saved, 3):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert refusal(saved).endswith("no other step is whole")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda meta: meta | {"tokens": 41}, "meta is not what was saved"),
        (lambda meta: meta | {"step": 3}, "meta is not what was saved"),
        (lambda meta: {k: v for k, v in meta.items() if k != "extra"}, "meta is not what was saved"),
        (lambda meta: [meta], "not a JSON object"),
    ],
)
def test_altered_meta_is_noticed(saved, damage, words):
    path = saved / "checkpoints" / "4" / "meta" / "metadata"
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    assert words in refusal(saved)


def test_an_altered_extra_item_is_noticed(saved):
    path = saved / "checkpoints" / "4" / "extra" / "metadata"
    path.write_text(path.read_text().replace("[4]", "[5]"))
    assert "extra is not what was saved" in refusal(saved)


def test_steps_that_changed_places_are_refused(saved):
    folder = saved / "checkpoints"
    (folder / "4").rename(folder / "9")
    (folder / "3").rename(folder / "4")
    assert "it holds step 3" in refusal(saved)


@pytest.mark.parametrize("item", ["params", "optimizer", "meta"])
def test_an_item_of_another_step_is_refused(saved, item):
    folder = saved / "checkpoints"
    shutil.rmtree(folder / "4" / item)
    shutil.copytree(folder / "3" / item, folder / "4" / item)
    assert "checkpoints/4 is damaged" in refusal(saved)


def test_checkpoints_of_format_2_load_and_say_that_they_carry_no_checksums(tmp_path, capsys):
    """The archive was written by the version before checksums: ``save(3, *state(3), ..., {"phase": [1]})``."""
    with tarfile.open(Path(__file__).with_name("format_2.tar.gz")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        archive.extractall(tmp_path)
    checkpoints = Checkpoints(tmp_path)
    same(checkpoints.restore(3, *shapes(state(0))), state(3))
    assert (checkpoints.meta(3)["tokens"], checkpoints.extra(3)) == (30, {"phase": [1]})
    assert "carries no checksums" in capsys.readouterr().out
    reader = ParamsReader(tmp_path / "checkpoints" / "3", ["w", "n/b"])
    np.testing.assert_array_equal(reader.read("n/b", (slice(1, 3),)), [4.0, 5.0])
    read_all(tmp_path / "checkpoints" / "3" / "optimizer")


@pytest.fixture
def imported(tmp_path):
    config = Config()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(to_json(config))
    layouts = {"a/w": StoredArray((8, 32), np.dtype(ml_dtypes.bfloat16), (4, 32))}
    writer = ParamsWriter(tmp_path / "run" / "import", 0, layouts, {"config": fixed_keys(config)}, ["me"])
    writer.write("a/w", (slice(0, 8),), np.arange(256).reshape(8, 32).astype(ml_dtypes.bfloat16))
    writer.commit(tmp_path / "run")
    return tmp_path / "run"


def test_one_bit_of_a_weight_that_was_written_by_regions_is_noticed(imported):
    step = checkpoint_step(imported)
    assert ParamsReader(step, ["a/w"]).read("a/w", (slice(0, 8),))[1, 1] == 33
    for path in (step / "params").glob("d/*"):
        content = bytearray(path.read_bytes())
        if len(content) > 256:
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoints/0 is damaged .*a.w/.*no other step is whole"):
        ParamsReader(step, ["a/w"]).read("a/w", (slice(0, 8),))


def test_a_configuration_of_another_model_is_refused_by_its_key(imported):
    values = json.loads((imported / "config.json").read_text())
    values["model"]["norm_eps"] *= 2
    (imported / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"config\.model\.norm_eps is"):
        checkpoint_step(imported)


def test_missing_chunks_are_no_zeros(tmp_path):
    """Zeros are stored like other values, so that a chunk which is not there is an error."""
    (tmp_path / "_METADATA").write_text(json.dumps({"tree_metadata": {}, "use_zarr3": True}))
    create_array(tmp_path, "zeros", np.dtype(np.float32), array_metadata((4,), (2,)))
    open_array(tmp_path, "zeros")[:2].write(np.zeros(2, np.float32)).result()
    array = open_array(tmp_path, "zeros", ts.Context())
    assert (array[:2].read().result() == 0).all()
    with pytest.raises(ValueError, match="missing"):
        array[2:].read().result()
