"""GGUF files with damage: they load, or are refused by one sentence, quickly and without large memory."""

from __future__ import annotations

import random
import time
import tracemalloc
from pathlib import Path

import gguf_files
import pytest
from damage import damaged_bytes

from mha_native.models.files.gguf.file import GGUFFile
from mha_native.models.files.gguf.source import GGUFSource

try:
    import tokenizers
except ImportError:
    tokenizers = None

SECONDS, BYTES = 5, 16 << 20  # of one file of some 100 KiB: against hangs, and against sizes that are believed


def small(alignment: int = 32) -> bytes:
    """A file of every kind of entry, with a header of some 500 bytes."""
    metadata = {
        "general.alignment": alignment,
        "text": "abc",
        "number": 7,
        "fraction": 0.5,
        "flag": True,
        "texts": ["a", "bc", ""],
        "numbers": [1, 2, 3],
        "flags": [True, False],
    }
    vector = gguf_files.np.arange(32, dtype="f4")
    tensors = {"plain": vector, "blocks": (vector.reshape(1, 32), "Q4_1"), "half": (vector, "F16")}
    return gguf_files.contents(metadata, tensors)


def read_or_refused(path: Path, raw: bytes) -> bool:
    """Whether all of a file is read; otherwise it is refused by one sentence that names it."""
    path.write_bytes(raw)
    try:
        with GGUFFile(path) as file:
            for name, entry in file.entries.items():
                if entry.dtype in file.readable:
                    assert file.read(name).shape == entry.shape
        return True
    except ValueError as error:
        message = str(error)
        assert message.startswith(f"{path} "), message
        assert len(message.splitlines()) == 1, message
        assert len(message) < len(str(path)) + 500, message
        return False


def test_each_byte_of_the_header_with_other_values(tmp_path: Path) -> None:
    raw = small()
    path = tmp_path / "model.gguf"
    assert read_or_refused(path, raw)
    end = raw.index(b"\0" * 20, raw.index(b"half") + 20)
    began = time.monotonic()
    refused = 0
    for place in range(end):
        for value in {raw[place] ^ 1, raw[place] ^ 255} - {raw[place]}:
            refused += not read_or_refused(path, raw[:place] + bytes([value]) + raw[place + 1 :])
    assert time.monotonic() - began < 12 * SECONDS
    assert refused > end // 2


def test_cut_short_at_each_place(tmp_path: Path) -> None:
    raw = small()
    for count in [*range(raw.index(b"half") + 40), *range(raw.index(b"half") + 40, len(raw) - 32, 16)]:
        assert not read_or_refused(tmp_path / "model.gguf", raw[:count])


@pytest.mark.parametrize(
    "value", [2**31, 2**64 - 1, *(pytest.param(2**power, marks=pytest.mark.exhaustive) for power in (32, 62, 63))]
)
def test_huge_numbers_at_each_place(value: int, tmp_path: Path) -> None:
    raw = small()
    tracemalloc.start()
    for place in range(0, raw.index(b"half") + 40):
        read_or_refused(tmp_path / "model.gguf", raw[:place] + value.to_bytes(8, "little") + raw[place + 8 :])
    assert tracemalloc.get_traced_memory()[1] < BYTES
    tracemalloc.stop()


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("times", [60, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_a_damaged_model_loads_or_is_refused(architecture: str, times: int, tmp_path: Path) -> None:
    metadata, tensors = gguf_files.model(architecture)
    raw = gguf_files.contents(metadata, tensors)
    shapes = [("norm.weight" if architecture != "gpt2" else "ln_f.weight", (gguf_files.E,))]
    path = tmp_path / "model.gguf"
    refused = 0
    for seed in range(times):
        # Damage is where it changes what is read: in the header, which is some 9 KiB.
        header = len(raw) - sum(tensor.nbytes for tensor in tensors.values())
        damaged = damaged_bytes(raw[:header], random.Random(f"{architecture} {seed}")) + raw[header:]
        path.write_bytes(damaged)
        began = time.monotonic()
        try:
            source = GGUFSource(path)
            if tokenizers is not None:
                source.tokenizer().encode("the cat")
            with source.tensors(shapes) as opened:
                assert opened[shapes[0][0]].shape == shapes[0][1]
        except ValueError as error:
            refused += 1
            message = str(error)
            assert str(path) in message, (seed, message)
            assert len(message.splitlines()) == 1, (seed, message)
            assert len(message) < len(str(path)) + 600, (seed, message)
        assert time.monotonic() - began < SECONDS, seed
    assert refused > times // 10
