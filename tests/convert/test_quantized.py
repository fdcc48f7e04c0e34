"""FP8 and INT4 folders, their bytes spelled out here, decode to the numbers that the formats define."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest

from k2jax.convert.quantized import logical_tensors
from k2jax.convert.tensors import read_folder
from tests.refusal import refused

INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 32}}},
}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def write(folder, entries):
    """A safetensors file from (name, dtype code, shape, bytes), without any library."""
    header, data = {}, b""
    for name, code, shape, content in entries:
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return read_folder(folder)


def test_int4_by_hand(tmp_path):
    """Nibble k of a word is value k plus 8, lowest first; one scale for 32 columns."""
    word = 0x0F8_7_9_1_2_3  # nibbles from the low end: 3 2 1 9 7 8 F 0
    row = struct.pack("<I", 0x0F879123) * 5
    assert word == 0x0F879123
    scales = struct.pack("<HH", 0x3F80, 0x4000)  # bfloat16 1.0 and 2.0
    stored = write(
        tmp_path,
        [
            ("x.weight_packed", "I32", [1, 5], row),
            ("x.weight_scale", "BF16", [1, 2], scales),
            ("x.weight_shape", "I64", [2], struct.pack("<qq", 1, 37)),
        ],
    )
    tensors = logical_tensors(stored, INT4)
    assert list(tensors) == ["x.weight"] and tensors["x.weight"].shape == (1, 37)
    values = [-5, -6, -7, 1, -1, 0, 7, -8]
    expected = np.array([values * 4 + [2 * v for v in values[:5]]], np.float32)
    got = tensors["x.weight"].read()
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32), expected)


def test_fp8_by_hand(tmp_path):
    """Every row and column takes the scale of its 128 x 128 block; edge blocks are partial; values are multiplied."""
    rows, columns = 130, 129
    codes = np.full((rows, columns), 0x38, np.uint8)  # 1.0 in float8_e4m3fn
    codes[127, 127], codes[129, 128], codes[0, 0] = 0xC0, 0x7E, 0x01  # -2, 448 and 2^-9
    scales = struct.pack("<4f", 0.5, 3.0, 5.0, 0.25)
    stored = write(
        tmp_path,
        [("x.weight", "F8_E4M3", [rows, columns], codes.tobytes()), ("x.weight_scale_inv", "F32", [2, 2], scales)],
    )
    tensor = logical_tensors(stored, FP8)["x.weight"]
    expected = np.ones((rows, columns), np.float32)
    expected[127, 127], expected[129, 128], expected[0, 0] = -2.0, 448.0, 2.0**-9
    expected[:128, :128] *= 0.5
    expected[:128, 128:] *= 3.0
    expected[128:, :128] *= 5.0
    expected[128:, 128:] *= 0.25
    np.testing.assert_array_equal(tensor.read().astype(np.float32), expected)
    for start, stop in ((0, 1), (100, 130), (127, 129), (129, 130)):
        np.testing.assert_array_equal(tensor.read(start, stop).astype(np.float32), expected[start:stop])


def test_the_product_is_rounded_once(tmp_path):
    """1.125 x 1.00390625 is no bfloat16: the float32 product rounds to the nearest one."""
    stored = write(
        tmp_path,
        [
            ("x.weight", "F8_E4M3", [1, 1], b"\x39"),
            ("x.weight_scale_inv", "F32", [1, 1], struct.pack("<f", 1.01171875)),
        ],
    )
    got = float(logical_tensors(stored, FP8)["x.weight"].read()[0, 0])
    assert got == 1.140625  # 1.13818359375 lies between 1.1328125 and 1.140625
    assert abs(got - 1.125 * 1.01171875) < abs(1.1328125 - 1.125 * 1.01171875)


def scale_only(tmp_path, **changes):
    entries = {
        "x.weight_packed": ["I32", [2, 8], bytes(64)],
        "x.weight_scale": ["BF16", [2, 2], bytes(8)],
        "x.weight_shape": ["I64", [2], struct.pack("<qq", 2, 64)],
    }
    entries |= changes
    return write(tmp_path, [(name, *entry) for name, entry in entries.items() if entry])


@pytest.mark.parametrize(
    ("stored", "config", "words"),
    [
        (lambda p: scale_only(p, **{"x.weight_scale": None}), INT4, "x.weight_packed has no x.weight_scale"),
        (lambda p: scale_only(p, **{"x.weight_scale": ["BF16", [2, 1], bytes(4)]}), INT4, "do not fit the shape"),
        (lambda p: write(p, [("x.weight", "F8_E4M3", [1, 1], b"1")]), FP8, "x.weight_scale_inv is missing"),
        (lambda p: write(p, [("x.weight", "F8_E4M3", [1, 1], b"1")]), None, "no weight_block_size"),
        (
            lambda p: write(
                p, [("x.weight", "F8_E4M3", [1, 1], b"1"), ("x.weight_scale_inv", "F32", [1, 2], bytes(8))]
            ),
            FP8,
            r"x.weight_scale_inv has shape \(1, 2\)",
        ),
        (scale_only, {"quant_method": "gptq"}, "'gptq' is not supported"),
        (
            scale_only,
            INT4 | {"config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "symmetric": False}}}},
            "only symmetric INT4",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, stored, config, words):
    with refused(words):
        logical_tensors(stored(tmp_path), config)
