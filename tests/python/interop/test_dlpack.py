"""Tensors of other libraries: over the same memory, given back once, and results of the same kind. Most in bfloat16."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import dlpack_tensor
import numpy as np
import pytest
from dlpack_tensor import BFLOAT, FLOAT, IS_COPIED, READ_ONLY, ExchangedTensor, Tensor
from element_types import BFLOAT16
from tolerance import assert_same_bits

from mha_native import (
    KVCache,
    _core,
    attention_gradient,
    attention_statistics,
    attention_weights,
    scaled_dot_product_attention,
    scaled_dot_product_attention_varlen,
)
from mha_native.functions.arrays import like, to_numpy

Array = np.ndarray[Any, np.dtype[Any]]


def _bits(x: Array) -> Array:
    return x.view(f"u{x.itemsize}")


def _array(*shape: int, dtype: Any = BFLOAT16, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


@pytest.fixture
def arrays() -> list[Array]:
    return [_array(2, 4, 9, 16), _array(2, 2, 13, 16), _array(2, 2, 13, 8)]


@pytest.mark.parametrize("version", [None, 1])
def test_attention(version: int | None, arrays: list[Array]) -> None:
    expected = scaled_dot_product_attention(*arrays, return_lse=True)
    tensors = [Tensor(_bits(x), version=version) for x in arrays]
    out, lse = scaled_dot_product_attention(*tensors, return_lse=True)
    assert type(out) is type(lse) is Tensor
    assert (out.code, lse.code) == (BFLOAT, FLOAT)
    assert_same_bits(out.bits, _bits(expected[0]))
    assert_same_bits(lse.bits, _bits(expected[1]))


def test_every_function(arrays: list[Array]) -> None:
    query, key, value = (Tensor(_bits(x)) for x in arrays)
    assert_same_bits(attention_weights(query, key).bits, _bits(attention_weights(*arrays[:2])))
    for actual, expected in zip(attention_statistics(query, key), attention_statistics(*arrays[:2]), strict=True):
        assert_same_bits(actual.bits, _bits(expected))
    out, lse = scaled_dot_product_attention(*arrays, return_lse=True)
    gradients = attention_gradient(query, key, value, Tensor(_bits(out)), lse, Tensor(_bits(out)))
    for actual, expected in zip(gradients[:3], attention_gradient(*arrays, out, lse, out)[:3], strict=True):
        assert_same_bits(actual.bits, _bits(expected))
    rows = [x[0].swapaxes(0, 1) for x in arrays]
    offsets = np.array([0, 9]), np.array([0, 13])
    ragged = scaled_dot_product_attention_varlen(*(Tensor(_bits(x)) for x in rows), *offsets)
    assert_same_bits(ragged.bits, _bits(scaled_dot_product_attention_varlen(*rows, *offsets)))
    cache = KVCache(2, 2, 20, 16, 8, dtype="bfloat16")
    cache.append(key, value)
    assert cache.keys.dtype == cache.dtype == BFLOAT16
    assert_same_bits(cache.keys[:, :, :13], arrays[1])
    over_cache = scaled_dot_product_attention(query, cache.keys, cache.values, key_lengths=cache.lengths)
    assert_same_bits(over_cache.bits, _bits(scaled_dot_product_attention(*arrays)))
    mask = _array(9, 13)
    assert_same_bits(
        attention_weights(query, key, Tensor(_bits(mask))).bits, _bits(attention_weights(*arrays[:2], mask))
    )


def test_every_option_may_be_a_tensor(arrays: list[Array]) -> None:
    query, key, value = (x.astype(np.float32) for x in arrays)
    given = {"attn_mask": _array(9, 13, dtype=np.float32)}
    given |= {name: np.abs(_array(4, dtype=np.float32)) for name in ("alibi_slopes", "sinks")}
    given["position_bias"] = _array(4, 11, dtype=np.float32)
    tensors = {name: Tensor(_bits(x), FLOAT) for name, x in given.items()}
    unchanged = dict(tensors)
    assert_same_bits(
        scaled_dot_product_attention(query, key, value, **tensors),
        scaled_dot_product_attention(query, key, value, **given),
    )
    assert_same_bits(attention_weights(query, key, **tensors), attention_weights(query, key, **given))
    for actual, expected in zip(
        attention_statistics(query, key, **tensors), attention_statistics(query, key, **given), strict=True
    ):
        assert_same_bits(actual, expected)
    assert tensors == unchanged


def test_memory_as_it_lies(arrays: list[Array]) -> None:
    query, key, value = arrays
    expected = scaled_dot_product_attention(*arrays)
    views = [
        query.swapaxes(1, 2).copy().swapaxes(1, 2),
        np.ascontiguousarray(key[:, :, ::-1])[:, :, ::-1],
        np.repeat(value, 3, -1)[..., 1::3],
    ]
    out = scaled_dot_product_attention(*(Tensor(_bits(x)) for x in views))
    assert_same_bits(out.bits, _bits(expected))
    offset = Tensor(_bits(query), data=_bits(query).ctypes.data - 12, byte_offset=12, strides=None)
    assert_same_bits(scaled_dot_product_attention(offset, key, value).bits, _bits(expected))


def test_tensors_are_not_copied_and_given_back(arrays: list[Array]) -> None:
    bits = _bits(arrays[0])
    address = bits.ctypes.data
    array = _core.from_dlpack(Tensor(bits).__dlpack__(max_version=(1, 0)))
    assert array.ctypes.data == address
    assert array.dtype == BFLOAT16
    part = array[1]
    before = dlpack_tensor.given_back.count(address)
    del array
    gc.collect()
    assert dlpack_tensor.given_back.count(address) == before
    del part
    gc.collect()
    assert dlpack_tensor.given_back.count(address) == before + 1


def test_what_cannot_be_read_is_not_taken(arrays: list[Array]) -> None:
    bits = _bits(arrays[0])
    for wrong in ({"lanes": 2}, {"code": 3}, {"code": 5}, {"version": 2}):
        capsule = Tensor(bits, **wrong).__dlpack__(max_version=(1, 0))  # type: ignore[arg-type]
        before = len(dlpack_tensor.given_back)
        for _ in range(2):
            with pytest.raises(TypeError, match=r"DLPack"):
                _core.from_dlpack(capsule)
        assert len(dlpack_tensor.given_back) == before
    capsule = Tensor(bits).__dlpack__()
    _core.from_dlpack(capsule)
    with pytest.raises(ValueError, match="PyCapsule"):
        _core.from_dlpack(capsule)
    with pytest.raises(ValueError, match="PyCapsule"):
        _core.from_dlpack(bits)


def test_results_outlive_their_arrays() -> None:
    array = _array(3, 5)
    expected = array.copy()
    exporter = _core.DLPackArray(array)
    tensors = [dlpack_tensor.from_dlpack(exporter, max_version=version) for version in (None, (0, 8), (1, 0), (2, 1))]
    assert [tensor.version for tensor in tensors] == [None, None, 1, 1]
    assert exporter.__dlpack_device__() == (1, 0)
    unused = exporter.__dlpack__()
    del array, exporter, unused
    gc.collect()
    for tensor in tensors:
        assert_same_bits(tensor.bits, _bits(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BFLOAT16, np.int64, np.int8, np.uint8, np.bool_])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (5,), ()], ids=str)
def test_there_and_back(shape: tuple[int, ...], dtype: Any) -> None:
    array = np.asarray(_array(*shape, dtype=dtype))
    back = _core.from_dlpack(_core.DLPackArray(array).__dlpack__(max_version=(1, 0)))
    assert back.dtype == array.dtype
    assert back.flags.writeable
    assert_same_bits(back, array)
    if array.size:
        assert np.shares_memory(back, array)
    if dtype != BFLOAT16:
        assert_same_bits(np.from_dlpack(_core.DLPackArray(array)), array)


def test_dtypes_that_dlpack_lacks() -> None:
    with pytest.raises(TypeError, match="DLPack has no elements of type datetime64"):
        _core.DLPackArray(np.zeros(2, "datetime64[s]")).__dlpack__()


@pytest.mark.parametrize(
    ("tensor", "is_writable"),
    [({}, True), ({"flags": READ_ONLY}, False), ({"flags": IS_COPIED}, False), ({"version": None}, False)],
    ids=str,
)
def test_what_may_be_written_to(tensor: dict[str, Any], is_writable: bool, arrays: list[Array]) -> None:
    # A tensor of the old version does not say, and what is written to a copy is lost.
    expected = scaled_dot_product_attention(*arrays)
    out = Tensor(_bits(np.full_like(expected, np.nan)), **tensor)
    inputs = [Tensor(_bits(x)) for x in arrays]
    if is_writable:
        assert scaled_dot_product_attention(*inputs, out=out) is out
        assert_same_bits(out.bits, _bits(expected))
    else:
        with pytest.raises(ValueError, match="out must be writable"):
            scaled_dot_product_attention(*inputs, out=out)


def test_tensors_are_exchanged_by_functions_in_c(arrays: list[Array]) -> None:
    expected = scaled_dot_product_attention(*arrays, return_lse=True)
    inputs = [ExchangedTensor(_bits(x)) for x in arrays]
    addresses = [x.bits.ctypes.data for x in inputs]
    before = len(dlpack_tensor.given_back)
    dlpack_tensor.exchanged.clear()
    out, lse = scaled_dot_product_attention(*inputs, return_lse=True)
    assert dlpack_tensor.exchanged == [*3 * ["export"], *2 * ["import"]]
    assert dlpack_tensor.given_back[before:] == addresses
    assert_same_bits(out.bits, _bits(expected[0]))
    assert_same_bits(lse.bits, _bits(expected[1]))
    target = ExchangedTensor(_bits(np.full_like(expected[0], np.nan)))
    assert scaled_dot_product_attention(*inputs, out=target) is target
    assert_same_bits(target.bits, _bits(expected[0]))


def test_what_is_exchanged_has_the_same_rules(arrays: list[Array]) -> None:
    inputs = [ExchangedTensor(_bits(x)) for x in arrays]
    before = len(dlpack_tensor.given_back)
    for fields, words in (
        ({"device_type": 2}, r"query \(dlpack_tensor.ExchangedTensor\) is on a device, DLPack type 2"),
        ({"data": None}, r"query .* it has no memory"),
        ({"lanes": 2}, r"query .* NumPy has no such elements"),
        ({"version": 2}, r"query .* its version of DLPack is 2"),
    ):
        with pytest.raises(TypeError, match=words):
            scaled_dot_product_attention(ExchangedTensor(_bits(arrays[0]), **fields), *inputs[1:])
    for flags in (READ_ONLY, IS_COPIED):
        out = ExchangedTensor(_bits(np.zeros_like(arrays[0][..., :8])), flags=flags)
        with pytest.raises(ValueError, match="out must be writable"):
            scaled_dot_product_attention(*inputs, out=out)
    assert len(dlpack_tensor.given_back) > before  # what was taken and refused is given back


def test_a_class_that_refuses_is_not_exchanged_as_its_base(arrays: list[Array]) -> None:
    class Private(ExchangedTensor):
        def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
            raise RuntimeError("these numbers are not to be read")

    with pytest.raises(TypeError, match=r"query .* not to be read"):
        scaled_dot_product_attention(Private(_bits(arrays[0])), *arrays[1:])


def test_an_exchange_of_another_version(arrays: list[Array]) -> None:
    class Newer(ExchangedTensor):
        __dlpack_c_exchange_api__ = dlpack_tensor.exchange_of_version(2)

        def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
            return super().__dlpack__(max_version=max_version)

    dlpack_tensor.exchanged.clear()
    array = to_numpy("f", "x", Newer(_bits(arrays[0])))
    assert_same_bits(_bits(array), _bits(arrays[0]))
    assert not dlpack_tensor.exchanged
    assert_same_bits(like(Newer(_bits(arrays[0])), array).bits, _bits(arrays[0]))


def test_tensors_on_a_device(arrays: list[Array]) -> None:
    there = Tensor(_bits(arrays[0]), device_type=2)
    with pytest.raises(TypeError, match=r"query \(dlpack_tensor.Tensor\) is on a device, DLPack type 2"):
        scaled_dot_product_attention(there, *arrays[1:])


@pytest.mark.parametrize("version", [None, 1])
@pytest.mark.parametrize("which", range(3))
def test_tensors_without_memory(which: int, version: int | None, arrays: list[Array]) -> None:
    name = ("query", "key", "value")[which]
    before = len(dlpack_tensor.given_back)
    arguments: list[Any] = list(arrays)
    arguments[which] = Tensor(_bits(arrays[which]), data=None, version=version)
    with pytest.raises(TypeError, match=rf"scaled_dot_product_attention: {name} .* it has no memory"):
        scaled_dot_product_attention(*arguments)
    assert len(dlpack_tensor.given_back) == before
    lengths = Tensor(np.full(2, 13).view(np.uint64), code=0, data=None)
    with pytest.raises(TypeError, match=r"scaled_dot_product_attention: key_lengths .* it has no memory"):
        scaled_dot_product_attention(*arrays, key_lengths=lengths)


def test_no_elements_need_no_memory(arrays: list[Array]) -> None:
    nothing = [Tensor(_bits(x[:, :, :0]), data=None) for x in arrays[1:]]
    out = scaled_dot_product_attention(arrays[0], *nothing)
    assert out.shape == (2, 4, 9, 8)
    assert not _bits(out).any()


def test_a_tensor_whose_memory_is_not_where_it_says(arrays: list[Array]) -> None:
    class Elsewhere(Tensor):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    there = Elsewhere(_bits(arrays[0]), device_type=2)
    with pytest.raises(TypeError, match=r"query \(.*Elsewhere.*\) .* its memory is on a device, DLPack type 2"):
        scaled_dot_product_attention(there, *arrays[1:])


def test_what_another_library_complains_of_is_cut_short(arrays: list[Array]) -> None:
    class Talkative(Tensor):
        def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
            raise RuntimeError("no. " * 10_000 + "\nreally")

    with pytest.raises(TypeError, match=r"query .* cannot be read by NumPy: no\. no\.") as error:
        scaled_dot_product_attention(Talkative(_bits(arrays[0])), *arrays[1:])
    assert len(str(error.value)) < 500


def test_mixed_dtypes_are_all_named(arrays: list[Array]) -> None:
    half = arrays[1].astype(np.float16)
    all_names = "got query bfloat16, key float16, value bfloat16"
    with pytest.raises(TypeError, match=f"key must be of the dtype of query, bfloat16; {all_names}"):
        scaled_dot_product_attention(Tensor(_bits(arrays[0])), half, arrays[2])
    with pytest.raises(TypeError, match=r"value must be of the dtype of query, float16; got .* value bfloat16"):
        scaled_dot_product_attention(half, half, arrays[2])
    with pytest.raises(TypeError, match=r"query must be float32, float64, float16 or bfloat16; got query \|V2, "):
        scaled_dot_product_attention(arrays[0].view("V2"), *arrays[1:])
    with pytest.raises(
        TypeError, match=r"alibi_slopes must be of the dtype of lse, float32; got .* alibi_slopes bfloat16"
    ):
        scaled_dot_product_attention(*arrays, alibi_slopes=_array(4))


WITHOUT_ML_DTYPES = """
import sys

import dlpack_tensor
import numpy as np
from dlpack_tensor import Tensor

import mha_native

{hide}
bits = np.random.default_rng(0).standard_normal((3, 2, 9, 16), dtype=np.float32).view(np.uint32) >> 16
query, key, value = (Tensor(x) for x in bits.astype(np.uint16))
out, lse = mha_native.scaled_dot_product_attention(query, key, value, return_lse=True)
mha_native.scaled_dot_product_attention(query, key, value, out=(same := Tensor(np.zeros_like(out.bits))))
assert np.array_equal(same.bits, out.bits)
assert "ml_dtypes" not in sys.modules or sys.modules["ml_dtypes"] is None, "loaded for a call that does not need it"

stand_in = mha_native._core.from_dlpack(query.__dlpack__())
for function in (stand_in.astype, np.zeros(3, stand_in.dtype).astype):
    try:
        function(np.float64)
    except (TypeError, ValueError):
        continue
    raise AssertionError("bytes were taken for numbers")
for wrong, words in (
    ((stand_in, stand_in, stand_in.view(np.float16)), "got query bfloat16, key bfloat16, value float16"),
    ((stand_in, np.zeros(stand_in.shape, "V2"), stand_in), "got query bfloat16, key |V2, value bfloat16"),
):
    try:
        mha_native.scaled_dot_product_attention(*wrong)
    except TypeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
np.save(sys.argv[1], out.bits)
{end}
"""
NEEDS_ML_DTYPES = """
for make in (
    lambda: mha_native.KVCache(1, 1, 4, 2, dtype="bfloat16"),
    lambda: mha_native.sinusoidal_positions(2, 4, dtype="bfloat16"),
):
    try:
        make()
    except TypeError as error:
        assert "takes the package ml_dtypes" in str(error), error
    else:
        raise AssertionError("there is no bfloat16 to give")
"""
LOADS_ML_DTYPES = """
import ml_dtypes

x = bits.astype(np.uint16).view(ml_dtypes.bfloat16)
mixed = mha_native.scaled_dot_product_attention(stand_in, x[1], x[2])
assert mixed.dtype == ml_dtypes.bfloat16
assert np.array_equal(mixed.view(np.uint16), out.bits)
assert mha_native.KVCache(1, 1, 4, 2, dtype="bfloat16").keys.dtype == ml_dtypes.bfloat16
"""


@pytest.mark.parametrize(
    ("hide", "end"),
    [('sys.modules["ml_dtypes"] = None', NEEDS_ML_DTYPES), ("", LOADS_ML_DTYPES)],
    ids=["absent", "loaded-later"],
)
def test_without_ml_dtypes(hide: str, end: str, tmp_path: Path) -> None:
    saved = tmp_path / "out.npy"
    program = WITHOUT_ML_DTYPES.format(hide=hide, end=end)
    environment = {"PYTHONPATH": str(Path(dlpack_tensor.__file__).parent)}
    subprocess.run([sys.executable, "-c", program, str(saved)], check=True, env=environment)
    bits = np.random.default_rng(0).standard_normal((3, 2, 9, 16), dtype=np.float32).view(np.uint32) >> 16
    expected = scaled_dot_product_attention(*bits.astype(np.uint16).view(BFLOAT16))
    assert_same_bits(np.load(saved), _bits(expected))


def test_a_name_for_the_dtype() -> None:
    assert KVCache(1, 1, 4, 2, dtype="bfloat16").dtype == BFLOAT16
    assert KVCache(1, 1, 4, 2, dtype=BFLOAT16).keys.dtype == BFLOAT16
    assert KVCache(1, 1, 4, 2, dtype="float16").keys.dtype == np.float16
