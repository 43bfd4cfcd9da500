"""Models in GGUF files in their own formats: the bytes of the file, and results that no way of calling changes."""

from __future__ import annotations

import copy
import pickle
import random
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
from damage import damaged_bytes
from decoder_logits import logits, opened
from numpy.typing import NDArray

from mha_native import BlockMatrix
from mha_native.models import CausalLM
from mha_native.models.files.gguf.source import GGUFSource
from mha_native.models.generation.engine import Caches, NewTokens

KINDS = list(gguf_files.BLOCKS)
SEQUENCES = [np.random.default_rng(length).integers(0, gguf_files.V, length).tolist() for length in (1, 9, 40)]

# Of Q4_K_M and others: larger types for values and for the way down, a table of another type, and matrices without
# blocks: the head, and those called attn_output.
MIXED = {"token_embd": "Q8_0", "attn_v": "Q6_K", "ffn_down": "Q6_K", "output.": "F16", "": "Q4_K"}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of whole blocks of 256."""
    for name in ("E", "F"):
        monkeypatch.setattr(gguf_files, name, 256)


def in_blocks(architecture: str, kinds: dict[str, str], seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata and the tensors of a model, with matrices in random blocks of the types of `kinds`."""
    metadata, tensors = gguf_files.model(architecture, seed)
    rng = np.random.default_rng(seed)
    if any(name.startswith("output.") for name in kinds):
        tensors["output.weight"] = tensors["token_embd.weight"][::-1].copy()
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and name != "position_embd.weight":
            kind = next(kind for part, kind in kinds.items() if part in name)
            if kind in gguf_files.BLOCKS:
                tensors[name] = (blocks(kind, tensor.shape, rng), kind, *tensor.shape)
            else:
                tensors[name] = (tensor / 3, kind)
    return metadata, tensors


def blocks(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> bytes:
    """Random blocks, with elements of about 0.06."""
    largest = {"Q8_0": 127, "Q6_K": 4000, "Q4_K": 500, "Q5_K": 1000, "IQ4_NL": 127, "Q5_0": 16, "Q5_1": 16}.get(kind, 8)
    return gguf_files.random_blocks(kind, shape[0] * shape[1] // gguf_files.BLOCKS[kind][0], rng, 0.1 / largest)


def written(path: Path, architecture: str, kinds: dict[str, str]) -> Path:
    file = path / f"{architecture}.gguf"
    file.write_bytes(gguf_files.contents(*in_blocks(architecture, kinds)))
    return file


def expanded(file: Path) -> Path:
    """The same model in F32."""
    source = gguf_files.model(file.stem)[0]
    with gguf_file(file) as opened_file:
        tensors = {name: opened_file.read(name) for name in opened_file.entries}
    wide = file.with_name("wide.gguf")
    wide.write_bytes(gguf_files.contents(source, tensors))
    return wide


def gguf_file(path: Path) -> Any:
    from mha_native.models.files.gguf.file import GGUFFile

    return GGUFFile(path)


def error_of_rows(found: NDArray[Any], exact: NDArray[Any]) -> float:
    """The error of logits relative to their size. A product with rows of 8 bits has about 0.007."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def stepwise(model: Any, tokens: list[int], page_size: int | None = None) -> NDArray[Any]:
    """The logits of a text that is read token by token, over dense caches or pages."""
    options = {} if page_size is None else {"page_size": page_size}
    caches = Caches(model.cached(None), 1, len(tokens), len(tokens), **options).caches
    cached, rows = model.cached(None), []
    for place, token in enumerate(tokens):
        new = NewTokens(np.array([token]), np.array([place]), np.array([0, 1]), np.array([0]))
        rows.append(cached.read(new, caches))
    return model.logits(np.concatenate(rows), None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_keeps_the_blocks_of_its_file(kind: str, tmp_path: Path) -> None:
    """Token by token, over pages, and in a batch it has the bits of a text alone; near the results in float32."""
    file = written(tmp_path, "llama", {"": kind})
    model, wide = opened(GGUFSource(file)), opened(GGUFSource(file), weight_dtype="float32")
    stored = kind.lower()
    assert (model.weight_dtype, model.weight_bytes().keys()) == (stored, {stored})
    assert wide.weight_bytes().keys() == {"float32"}
    words = model.stacks[0].front_end
    offsets = np.array([0, 3])
    tokens_of_text = np.array([5, 0, 5])
    rows = wide.stacks[0].front_end(tokens_of_text, offsets, None)
    assert np.array_equal(words(tokens_of_text, offsets, None), rows)

    together = logits(model, SEQUENCES)
    for tokens, found, exact in zip(SEQUENCES, together, logits(wide, SEQUENCES), strict=True):
        assert np.array_equal(found, logits(model, [tokens])[0])
        assert 0 < error_of_rows(found, exact) < 0.04
    assert np.array_equal(stepwise(model, SEQUENCES[1]), together[1])
    assert np.array_equal(stepwise(model, SEQUENCES[1], page_size=64), together[1])
    # The bytes of the file, with rows of queries in the order of transformers.
    state = model.stacks[0].layers.state_dict()
    with gguf_file(file) as in_file, GGUFSource(file).tensors([("layers.1.mlp.down_proj.weight", (256, 256))]):
        down = state["layers.1.linear2.weight"]
        assert isinstance(down, BlockMatrix)
        assert down.data.tobytes() == in_file.bytes_of("blk.1.ffn_down.weight").tobytes()
        size = down.data.shape[1] // (256 // gguf_files.BLOCKS[kind][0])
        assert size == gguf_files.BLOCKS[kind][1]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2"])
def test_every_architecture_in_mixed_formats(architecture: str, tmp_path: Path) -> None:
    """An explicit format has the bits that a file in F32 has in it."""
    file = written(tmp_path, architecture, MIXED)
    model, wide = opened(GGUFSource(file)), GGUFSource(expanded(file))
    assert model.weight_bytes().keys() == {"q4_k", "q6_k", "q8_0", "float32"}
    assert model.weight_dtype == "mixed"
    exact = logits(opened(wide), SEQUENCES)
    for found, expected in zip(logits(model, SEQUENCES), exact, strict=True):
        assert 0 < error_of_rows(found, expected) < 0.06
    assert np.array_equal(stepwise(model, SEQUENCES[1]), logits(model, SEQUENCES)[1])
    for dtype, weight_dtype in (("float32", "float32"), ("float32", "int8"), ("bfloat16", None), ("float64", None)):
        if dtype == "bfloat16":
            pytest.importorskip("ml_dtypes")
        pairs = [opened(source, dtype, weight_dtype) for source in (GGUFSource(file), wide)]
        converted = model.astype(pairs[0].dtype) if weight_dtype is None else model.quantize(weight_dtype)
        one, other = (logits(each, SEQUENCES)[2] for each in pairs)
        assert np.array_equal(one, other), (dtype, weight_dtype)
        assert np.array_equal(logits(converted, SEQUENCES)[2], one), (dtype, weight_dtype)


def test_copies_and_pickles(tmp_path: Path) -> None:
    model = opened(GGUFSource(written(tmp_path, "gemma2", MIXED)))
    expected = logits(model, SEQUENCES)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), model.astype(np.dtype(np.float32))):
        assert other.weight_bytes() == model.weight_bytes()
        assert np.array_equal(logits(other, SEQUENCES)[2], expected[2])


def test_bytes_of_weights_in_fewer_bits(tmp_path: Path) -> None:
    file = written(tmp_path, "llama", {"": "Q8_0"})
    words = gguf_files.V * 256 * 4  # in float32
    numbers = opened(GGUFSource(file), weight_dtype="float32").weight_bytes()["float32"] // 4 - words // 4
    for weight_dtype, bits in (("bfloat16", 16), ("int8", 8), ("int4", 4.25)):
        found = opened(GGUFSource(file), weight_dtype=weight_dtype).weight_bytes()
        assert found == {weight_dtype: numbers * bits / 8, "float32": words}


def test_texts(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    file = written(tmp_path, "llama", MIXED)
    model = CausalLM.from_pretrained(file)
    assert model.weight_bytes["q4_k"] == 2 * (3 * 256 * 256 + 128 * 256) // 256 * 144
    assert "weight_dtype='mixed'" in repr(model)
    tokens = model.generate_tokens(["the cat", "12"], max_new_tokens=7)
    assert [each.tolist() for each in tokens] == [
        model.generate_tokens(text, max_new_tokens=7).tolist() for text in ("the cat", "12")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_scales_that_are_not_finite_are_refused(kind: str, tmp_path: Path) -> None:
    metadata, tensors = in_blocks("llama", {"": kind})
    raw, *others = tensors["blk.1.ffn_up.weight"]
    damaged = bytearray(raw)
    if kind == "MXFP4":
        damaged[0] = 254
    else:
        place = gguf_files.BLOCKS[kind][2][-1]
        damaged[place : place + 2] = np.float16(np.inf).tobytes()
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf_files.contents(metadata, tensors | {"blk.1.ffn_up.weight": (bytes(damaged), *others)}))
    for weight_dtype in (None, "float32"):
        with pytest.raises(ValueError, match=r"blk\.1\.ffn_up\.weight must hold finite numbers") as error:
            opened(GGUFSource(file), weight_dtype=weight_dtype)
        assert str(error.value).startswith(f"{file}: ")
        assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("times", [40, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_random_damage_loads_or_is_refused(times: int, tmp_path: Path) -> None:
    metadata, tensors = in_blocks("llama", MIXED)
    raw, refused = gguf_files.contents(metadata, tensors), 0
    file = tmp_path / "model.gguf"
    for seed in range(times):
        file.write_bytes(damaged_bytes(raw, random.Random(seed)))
        try:
            with np.errstate(all="ignore"):
                assert logits(opened(GGUFSource(file)), [[1, 2]])[0].shape == (2, gguf_files.V)
        except ValueError as error:
            refused, message = refused + 1, str(error)
            assert message.startswith(f"{file}"), (seed, message)
            assert len(message.splitlines()) == 1, (seed, message)
    assert times > refused > times // 10
