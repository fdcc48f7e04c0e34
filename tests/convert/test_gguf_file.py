"""GGUF files as the gguf package writes and reads them."""

import gguf
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.convert.gguf_file import read_gguf
from tests.refusal import refused

METADATA = {
    "words": ["", "a", "Ġbc", "日本語"],
    "counts": [1, -2, 3],
    "scores": [0.5, -1.25],
    "flags": [True, False],
    "name": "small",
    "layers": 30,
    "epsilon": 0.5,
    "tied": True,
}
KINDS = (Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0)
SHAPE = (5, 3, 64)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file with every kind of metadata and of tensors."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in METADATA.items():
        add = {bool: writer.add_bool, str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add.get(type(value), writer.add_array)(key, value)
    rng = np.random.default_rng(0)
    for kind in KINDS:
        rows = gguf.quants.quantize(rng.normal(size=SHAPE).astype(np.float32), kind)
        writer.add_tensor(kind.name, rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_are_those_that_the_gguf_package_reads(written):
    file, reader = read_gguf(written), gguf.GGUFReader(written)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert file.metadata == expected
    assert METADATA.items() <= file.metadata.items()
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        ours = file.tensors[tensor.name]
        assert ours.shape == SHAPE and ours.dtype == np.float32
        assert ours.data.shape == (15, tensor.data.nbytes // 15)
        np.testing.assert_array_equal(ours.read(), values)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 18])
def test_rows_in_an_order_of_their_own_are_those_rows(written, chunk, monkeypatch):
    monkeypatch.setattr("k2jax.convert.gguf_file._CHUNK_BYTES", chunk)
    tensor = read_gguf(written).tensors["Q4_1"]._replace(shape=(15, 64))
    whole, order = tensor.read(), np.random.default_rng(1).permutation(15)
    np.testing.assert_array_equal(tensor.read(4, 11), whole[4:11])
    np.testing.assert_array_equal(tensor._replace(order=order).read(4, 11), whole[order[4:11]])


@given(part=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_a_file_that_is_cut_off_is_one_line(written, part):
    raw = written.read_bytes()
    cut = written.with_name("cut.gguf")
    cut.write_bytes(raw[: int((len(raw) - 32) * part)])  # fewer than 32 bytes at the end are padding
    with refused("fetch it again"):
        read_gguf(cut)


def test_another_file_is_one_line(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    with refused("is not a whole GGUF file of version 2 or 3"):
        read_gguf(tmp_path / "model.gguf")
