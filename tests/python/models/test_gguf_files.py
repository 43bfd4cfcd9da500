"""GGUF files: their headers, which are checked before anything is believed, and the numbers of their tensors."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest

from mha_native.models.files.gguf.element_types import ELEMENT_TYPES
from mha_native.models.files.gguf.file import GGUFFile

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"]


def opened(path: Path, raw: bytes) -> GGUFFile:
    file = path / "model.gguf"
    file.write_bytes(raw)
    with GGUFFile(file) as opened_file:
        return opened_file


def refused(path: Path, raw: bytes, *words: str) -> None:
    with pytest.raises(ValueError, match=r"model\.gguf is not a valid GGUF file: ") as error:
        opened(path, raw)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert len(message.splitlines()) == 1
    assert len(message) < len(str(path)) + 400


def element(raw: bytes, kind: str, index: int) -> float:
    """One element of a tensor, as the format describes it: in float64, by itself."""
    if kind in ("F32", "F16"):
        return struct.unpack_from("<f" if kind == "F32" else "<e", raw, index * (4 if kind == "F32" else 2))[0]
    if kind == "BF16":
        return struct.unpack("<f", b"\0\0" + raw[2 * index : 2 * index + 2])[0]
    block, place = divmod(index, 32)
    if kind == "Q8_0":
        scale, integers = (
            struct.unpack_from("<e32b", raw, 34 * block)[0],
            struct.unpack_from("<e32b", raw, 34 * block)[1:],
        )
        return scale * integers[place]
    size = 18 if kind == "Q4_0" else 20
    header = struct.unpack_from("<e" if kind == "Q4_0" else "<ee", raw, size * block)
    byte = raw[size * block + size - 16 + place % 16]
    nibble = byte & 15 if place < 16 else byte >> 4
    return header[0] * (nibble - 8) if kind == "Q4_0" else header[0] * nibble + header[1]


@pytest.mark.parametrize("kind", KINDS)
def test_each_element_of_each_type_is_read(kind: str, rng: np.random.Generator, tmp_path: Path) -> None:
    numbers = rng.standard_normal((5, 96), np.float32)
    raw = gguf_files.quantized(numbers, kind)
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf_files.contents({}, {"before": np.ones(3), "it": (numbers, kind), "behind": np.ones(5)}))
    with GGUFFile(file) as opened_file:
        assert opened_file.entries["it"].dtype == kind
        tensor = opened_file.read("it")
        assert np.array_equal(opened_file.read("behind"), np.ones(5))
    assert tensor.dtype == np.float32
    expected = np.array([element(raw, kind, i) for i in range(numbers.size)]).reshape(numbers.shape)
    assert np.array_equal(tensor, expected.astype(np.float32))
    assert np.abs(tensor - numbers).max() < (0.4 if "4" in kind else 0.05)  # they are the numbers, in their order


# The integers of IQ4_NL, and of MXFP4 in halves, by their codes.
IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def element_of_block(block: bytes, kind: str, i: int) -> float:
    """One element of a block of 32 with five bits or a table, or of 256, as the format describes it."""
    if kind in ("IQ4_NL", "MXFP4"):
        byte = block[len(block) - 16 + i % 16]
        code = byte & 15 if i < 16 else byte >> 4
        if kind == "IQ4_NL":
            return struct.unpack_from("<e", block)[0] * IQ4_NL[code]
        return 2.0 ** (block[0] - 127) * MXFP4[code] / 2
    numbers = [struct.unpack_from("<e", block, place)[0] for place in gguf_files.BLOCKS[kind][2]]
    if kind in ("Q5_0", "Q5_1"):
        byte = block[len(block) - 16 + i % 16]
        bit = struct.unpack_from("<I", block, len(block) - 20)[0] >> i & 1
        integer = (byte & 15 if i < 16 else byte >> 4) + 16 * bit
        return numbers[0] * (integer - 16) if kind == "Q5_0" else numbers[0] * integer + numbers[1]
    if kind == "Q6_K":
        half, place = divmod(i, 128)
        quarter, place = divmod(place, 32)
        low = block[64 * half + place + 32 * (quarter % 2)] >> (4 * (quarter // 2)) & 15
        high = block[128 + 32 * half + place] >> (2 * quarter) & 3
        scale = struct.unpack_from("<b", block, 192 + i // 16)[0]
        return numbers[0] * scale * (low + 16 * high - 32)
    part, place = divmod(i, 32)
    packed = block[4:16]
    if part < 4:
        scale, offset = packed[part] & 63, packed[part + 4] & 63
    else:
        scale = (packed[part + 4] & 15) + 16 * (packed[part - 4] >> 6)
        offset = (packed[part + 4] >> 4) + 16 * (packed[part] >> 6)
    integer = block[len(block) - 128 + 32 * (part // 2) + place] >> (4 * (part % 2)) & 15
    if kind == "Q5_K":
        integer += 16 * (block[16 + place] >> part & 1)
    return numbers[0] * scale * integer - numbers[1] * offset


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"])
def test_each_element_of_blocks_of_any_bytes(kind: str, rng: np.random.Generator, tmp_path: Path) -> None:
    elements, size, _ = gguf_files.BLOCKS[kind]
    raw = gguf_files.random_blocks(kind, 20, rng)
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf_files.contents({}, {"it": (raw, kind, 5, 4 * elements)}))
    with GGUFFile(file) as opened_file:
        tensor = opened_file.read("it")
    expected = [element_of_block(raw[size * k :][:size], kind, i) for k in range(20) for i in range(elements)]
    assert np.array_equal(tensor, np.array(expected).astype(np.float32).reshape(5, 4 * elements))


@pytest.mark.parametrize("kind", gguf_files.BLOCKS)
def test_blocks_are_those_of_the_package_gguf(kind: str, rng: np.random.Generator, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "model.gguf"
    elements, _, _ = gguf_files.BLOCKS[kind]
    raw = gguf_files.random_blocks(kind, 40, rng)
    file.write_bytes(gguf_files.contents({"general.architecture": "x"}, {"it": (raw, kind, 4, 10 * elements)}))
    (theirs,) = gguf.GGUFReader(file).tensors
    with GGUFFile(file) as opened_file:
        assert np.array_equal(opened_file.read("it"), gguf.dequantize(theirs.data, theirs.tensor_type))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_package_gguf(kind: str, rng: np.random.Generator, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "model.gguf"
    numbers = rng.standard_normal((3, 64), np.float32)
    file.write_bytes(gguf_files.contents({"general.architecture": "x"}, {"it": (numbers, kind)}))
    (theirs,) = gguf.GGUFReader(file).tensors
    with GGUFFile(file) as opened_file:
        assert np.array_equal(opened_file.read("it"), gguf.dequantize(theirs.data, theirs.tensor_type))


def test_sizes_of_types_are_those_of_the_package_gguf() -> None:
    gguf = pytest.importorskip("gguf")
    theirs = {kind.value: (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    known = {number: tuple(kind) for number, kind in ELEMENT_TYPES.items()}
    assert known == {number: theirs.get(number, kind) for number, kind in known.items()}


def test_metadata_of_every_type(tmp_path: Path) -> None:
    numbers = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60000), 3: ("h", -300), 4: ("I", 2**31), 5: ("i", -(2**31)),
               6: ("f", 0.5), 7: ("?", True), 10: ("Q", 2**63), 11: ("q", -(2**63)), 12: ("d", 0.1)}  # fmt: skip
    metadata: dict[str, Any] = {
        f"n{kind}": struct.pack(f"<I{form}", kind, value) for kind, (form, value) in numbers.items()
    }
    metadata |= {
        f"a{kind}": struct.pack(f"<IIQ2{form}", 9, kind, 2, value, value) for kind, (form, value) in numbers.items()
    }
    metadata |= {"text": "é\n", "texts": ["a", "", "\U0001f600"]}
    found = opened(tmp_path, gguf_files.contents(metadata, {})).metadata
    for kind, (_, value) in numbers.items():
        assert found[f"n{kind}"] == value
        assert type(found[f"n{kind}"]) is type(value)
        assert found[f"a{kind}"].tolist() == [value, value]
    assert (found["text"], found["texts"]) == ("é\n", ["a", "", "\U0001f600"])


@pytest.mark.parametrize("alignment", [32, 64, 8])
@pytest.mark.parametrize("version", [2, 3])
def test_versions_and_alignments(version: int, alignment: int, tmp_path: Path) -> None:
    raw = gguf_files.contents(
        {"general.alignment": alignment}, {"a": np.arange(3.0), "b": np.arange(5.0)}, version, alignment
    )
    file = tmp_path / "model.gguf"
    file.write_bytes(raw)
    with GGUFFile(file) as opened_file:
        assert np.array_equal(opened_file.read("b"), np.arange(5.0))


def test_the_last_tensor_needs_no_padding(tmp_path: Path) -> None:
    raw = gguf_files.contents({}, {"a": np.arange(3.0)}, pad=False)
    assert opened(tmp_path, raw).entries["a"].shape == (3,)


def header(num_tensors: int, num_entries: int, rest: bytes = b"", version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_entries) + rest


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return gguf_files.string(name) + sizes + struct.pack("<IQ", kind, offset)


ENTRY = gguf_files.string("k")
HUGE = 2**64 - 1


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["it has 0 bytes"]),
        (b"GGU", ["it has 3 bytes", "byte 4"]),
        (header(0, 0, magic=b"GGML"), ["must begin with GGUF", "GGML"]),
        (header(0, 0, version=1), ["version 2 or 3", "got 1"]),
        (header(0, 0, version=4), ["version 2 or 3", "got 4"]),
        (header(0, 0, version=3 << 24), ["version 2 or 3", "byte order"]),
        (header(HUGE, 0), ["tensors", str(HUGE)]),
        (header(0, HUGE), ["metadata", str(HUGE)]),
        (header(3000, 0), ["its header goes on"]),
        (header(0, 1, struct.pack("<Q", HUGE)), ["its header goes on"]),
        (header(0, 1, struct.pack("<Q", 2) + b"\xff\xfe"), ["name of an entry", "UTF-8"]),
        (header(0, 1, ENTRY + struct.pack("<I", 13)), ["'k'", "types 0 to 12", "got 13"]),
        (header(0, 1, ENTRY + struct.pack("<IQ", 8, HUGE)), ["its header goes on"]),
        (header(0, 1, ENTRY + struct.pack("<IQ", 8, 1) + b"\xff"), ["'k'", "UTF-8"]),
        (header(0, 1, ENTRY + struct.pack("<IB", 7, 2)), ["'k'", "true or false", "got 2"]),
        (header(0, 1, ENTRY + struct.pack("<IIQ", 9, 4, HUGE)), ["'k'", "at most"]),
        (header(0, 1, ENTRY + struct.pack("<IIQ", 9, 4, 1 << 26)), ["its header goes on"]),
        (header(0, 1, ENTRY + struct.pack("<IIQ", 9, 8, 1 << 26)), ["its header goes on"]),
        (header(0, 1, ENTRY + struct.pack("<IIQQ", 9, 8, 1, HUGE)), ["its header goes on"]),
        (header(0, 1, ENTRY + struct.pack("<IIQ", 9, 9, 1)), ["'k'", "array of arrays"]),
        (header(0, 1, ENTRY + struct.pack("<IIQ", 9, 99, 0)), ["'k'", "got 99"]),
        (header(0, 2, (ENTRY + struct.pack("<II", 4, 1)) * 2), ["'k'", "more than once"]),
        (gguf_files.contents({"general.alignment": 0}, {}), ["general.alignment", "got 0"]),
        (gguf_files.contents({"general.alignment": 12}, {}), ["general.alignment", "got 12"]),
        (gguf_files.contents({"general.alignment": "x"}, {}), ["general.alignment"]),
        (gguf_files.contents({"general.alignment": 1 << 30}, {}), ["general.alignment"]),
        (header(1, 0, tensor("t", (1,) * 5, 0, 0)), ["'t'", "at most 4 axes", "got 5"]),
        (header(1, 0, tensor("t", (HUGE, HUGE), 0, 0)), ["'t'", "2^63"]),
        (header(1, 0, tensor("t", (0, HUGE), 0, 0)), ["'t'", "2^63"]),
        (header(1, 0, tensor("t", (1 << 40,), 0, 0)), ["'t'", "ends at"]),
        (header(1, 0, tensor("t", (32,), 4, 0)), ["'t'", "known type", "got 4"]),
        (header(1, 0, tensor("t", (33,), 8, 0)), ["'t'", "multiple of 32", "Q8_0"]),
        (header(1, 0, tensor("t", (8,), 0, 16)), ["'t'", "multiple of 32 bytes", "got 16"]),
        (header(1, 0, tensor("t", (8,), 0, HUGE // 32 * 32)), ["'t'", "2^63"]),
        (header(2, 0, tensor("t", (1,), 0, 0) * 2), ["'t'", "more than once"]),
        (header(2, 0, tensor("t", (9,), 0, 0) + tensor("u", (1,), 0, 32)) + bytes(999), ["'u'", "after", "'t'"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(raw: bytes, words: list[str], tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        refused(tmp_path, raw, *words)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20  # whatever sizes it speaks of
    finally:
        tracemalloc.stop()


def test_a_header_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    raw = header(0, 1, ENTRY + struct.pack("<IQ", 8, 1 << 30))
    with open(tmp_path / "model.gguf", "wb") as file:
        file.write(raw)
        file.truncate(1 << 31)  # zeros that take no room
    with pytest.raises(ValueError, match="its header must have at most 64 MiB"):
        GGUFFile(tmp_path / "model.gguf")


def test_a_file_that_is_cut_short_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_files.contents({}, {"t": np.arange(10000.0)}))
    with GGUFFile(path) as file:
        with open(path, "r+b") as again:
            again.truncate(200)
        with pytest.raises(ValueError, match=r"model\.gguf has been cut short: t has \d+ of its 40000 bytes"):
            file.read("t")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist, or is not a file"):
        GGUFFile(tmp_path)
