"""Layers and models in float16 and bfloat16: how they are made, kept and read. Accuracy is with all types."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from element_types import BFLOAT16, HALF
from matrix import is_best_of_its_own, is_own, matrix
from random_layers import randomized
from safetensors import safe_open
from safetensors.numpy import save_file
from tiny_bert import tensors
from tolerance import LEAST_COSINE, assert_same_bits

from mha_native import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    KVCache,
    LayerNorm,
    MultiHeadAttention,
    RMSNorm,
    _core,
    generate,
    reference,
)
from mha_native.__main__ import main
from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, np.dtype[Any]]
ROOT = Path(__file__).parents[3]
each_half = pytest.mark.parametrize("half", HALF, ids=["f16", "bf16"])

MAKERS: dict[str, Any] = {
    "MultiHeadAttention": lambda **keywords: MultiHeadAttention(24, 4, num_kv_heads=2, add_bias_kv=True, **keywords),
    "MultiHeadAttention of other widths": lambda **keywords: MultiHeadAttention(24, 4, kdim=7, vdim=9, **keywords),
    "LayerNorm": lambda seed=0, **keywords: LayerNorm(24, **keywords),
    "RMSNorm": lambda seed=0, **keywords: RMSNorm(24, unit_offset=True, **keywords),
    "FeedForward": lambda **keywords: FeedForward(24, 10, activation="gelu", **keywords),
    "EncoderLayer": lambda **keywords: EncoderLayer(24, 4, 10, **keywords),
    "DecoderLayer": lambda **keywords: DecoderLayer(24, 4, 10, memory_dim=17, **keywords),
    "Encoder": lambda **keywords: Encoder(2, 24, 4, 10, final_norm=True, **keywords),
    "Decoder": lambda **keywords: Decoder(2, 24, 4, 10, bias=False, **keywords),
}
every_module = pytest.mark.parametrize("name", MAKERS)


def _assert_same_state(module: Any, expected: dict[str, Array]) -> None:
    state = module.state_dict()
    assert list(state) == list(expected)
    for name, array in state.items():
        assert_same_bits(array, expected[name], label=name)


@each_half
@every_module
def test_weights_are_rounded_once(name: str, half: Any) -> None:
    wide = randomized(MAKERS[name](seed=0))
    module = wide.astype(half)
    assert type(module) is type(wide)
    assert module.dtype == half
    assert module.weight_dtype == np.dtype(half).name
    _assert_same_state(module, {which: x.astype(half) for which, x in wide.state_dict().items()})
    for exact in ("float32", np.float64):
        _assert_same_state(module.astype(exact), {n: x.astype(exact) for n, x in module.state_dict().items()})
    other = HALF[half == HALF[0]]
    _assert_same_state(
        module.astype(other), {n: x.astype(np.float32).astype(other) for n, x in module.state_dict().items()}
    )


def test_from_float64_to_bfloat16_is_one_rounding() -> None:
    # Above the middle of two numbers of bfloat16 by less than float32 tells.
    norm = LayerNorm(1, dtype="float64")
    norm.load_state_dict({"weight": np.array([1 + 2.0**-8 + 2.0**-40]), "bias": np.zeros(1)})
    assert norm.astype("bfloat16").state_dict()["weight"][0] == 1 + 2.0**-7


@each_half
@every_module
def test_initial_weights_are_those_of_float32(name: str, half: Any) -> None:
    _assert_same_state(MAKERS[name](seed=3, dtype=half), MAKERS[name](seed=3).astype(half).state_dict())
    by_name = MAKERS[name](seed=3, dtype=np.dtype(half).name)
    _assert_same_state(by_name, MAKERS[name](seed=3).astype(half).state_dict())
    assert f"dtype='{np.dtype(half).name}')" in repr(by_name)


@every_module
def test_the_same_dtype_is_a_copy(name: str) -> None:
    module = MAKERS[name](seed=0, dtype="bfloat16")
    other = module.astype("bfloat16")
    before = module.state_dict()
    other.load_state_dict(MAKERS[name](seed=1, dtype="bfloat16").state_dict())
    _assert_same_state(module, before)


def test_quantized_weights() -> None:
    layer = FeedForward(24, 10, seed=0, weight_dtype="int8")
    assert layer.astype("float32").weight_dtype == "int8"
    numbers = layer.quantize("float32").state_dict()
    _assert_same_state(layer.astype("bfloat16"), {n: x.astype(BFLOAT16) for n, x in numbers.items()})
    for how in (
        layer.astype("bfloat16").quantize,
        lambda which: FeedForward(2, 3, dtype="float16", weight_dtype=which),
    ):
        with pytest.raises(TypeError, match=r"weight_dtype of a layer in b?float16 must be 'b?float16'; got 'int8'"):
            how("int8")


@each_half
def test_a_state_in_another_dtype_is_refused(half: Any) -> None:
    module = Encoder(1, 24, 4, 10, dtype=half, seed=0)
    before = module.state_dict()
    words = rf"Encoder.load_state_dict: the layer is {np.dtype(half).name}; got .* float32.*: the astype of a layer"
    with pytest.raises(TypeError, match=words):
        module.load_state_dict(module.astype("float32").state_dict())
    _assert_same_state(module, before)
    with pytest.raises(TypeError, match="dtype must be float32 or float64 or float16 or bfloat16; got int64"):
        module.astype(np.int64)


@each_half
def test_copies(half: Any) -> None:
    module, cache = Decoder(1, 24, 4, 10, dtype=half, seed=0), KVCache(1, 2, 5, 3, dtype=half)
    cache.append(*np.random.default_rng(0).standard_normal((2, 1, 2, 3, 3)).astype(half))
    for how in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        _assert_same_state(how(module), module.state_dict())
        assert repr(how(module)) == repr(module)
        state = how(cache).state_dict()
        for name, array in cache.state_dict().items():
            assert_same_bits(state[name], array, label=name)


@each_half
def test_averaged_weights_are_summed_in_float32(half: Any) -> None:
    layer = MultiHeadAttention(64, 32, dtype=half, seed=0)
    x = np.random.default_rng(0).standard_normal((9, 64)).astype(half)
    _, per_head = layer(x, need_weights=True)
    _, averaged = layer(x, need_weights=True, average_attn_weights=True)
    assert_same_bits(averaged, per_head.astype(np.float32).mean(0).astype(half))


@each_half
@pytest.mark.parametrize("with_memory", [False, True], ids=["encoder", "decoder"])
def test_generated_tokens_are_those_from_scratch(with_memory: bool, half: Any, isa: str) -> None:
    make = Decoder if with_memory else Encoder
    model = randomized(make(2, 32, 4, 48, norm_first=True, final_norm=True, dtype=half, seed=0))
    rng = np.random.default_rng(1)
    table, memory = rng.standard_normal((50, 32)).astype(half), rng.standard_normal((1, 5, 32)).astype(half)
    keywords = {"memory": memory} if with_memory else {}
    steps = list(generate(model, np.array([[3, 1, 4]]), table, max_new_tokens=4, positions=None, **keywords))
    tokens = [3, 1, 4]
    for step in steps:
        x = table[tokens][None]
        y = model(x, memory) if with_memory else model(x, is_causal=True)
        logits = table.astype(np.float32) @ y[0, -1].astype(np.float32)
        assert_same_bits(step.logits[0], logits)
        tokens.append(int(step.tokens[0]))
        assert tokens[-1] == logits.argmax()


@each_half
def test_means_of_rows_are_float32(half: Any) -> None:
    rows = np.random.default_rng(0).standard_normal((7, 5)).astype(half)
    means = _core.mean_pool(rows, np.array([0, 3, 7]), False, None, None)
    sums = np.stack([rows[:3].astype(np.float64).sum(0), rows[3:].astype(np.float64).sum(0)])
    assert_same_bits(means, (sums * (1 / np.array([[3.0], [4.0]]))).astype(np.float32))
    out = np.full((2, 5), np.nan, np.float32)
    assert _core.mean_pool(rows, np.array([0, 3, 7]), False, out, None) is out
    assert_same_bits(out, means)


@each_half
def test_checkpoints_in_16_bits(half: Any, tmp_path: Path) -> None:
    settings = tiny_bert.config()
    weights = {name: x.astype(half) for name, x in tensors(settings).items()}
    directory = tiny_bert.write(tmp_path, settings, {name: x.astype(np.float32) for name, x in weights.items()})
    expected = SentenceEncoder.from_pretrained(directory).encode(["the dog", "a cat !"])
    of_half = SentenceEncoder.from_pretrained(directory, dtype=half).encode(["the dog", "a cat !"])
    path = directory / "model.safetensors"
    save_file({name: x.view(np.uint16) if half == BFLOAT16 else x for name, x in weights.items()}, path)
    written = path.read_bytes()
    size = int.from_bytes(written[:8], "little")
    if half == BFLOAT16:  # which safetensors does not take from NumPy
        header = written[8 : 8 + size].replace(b'"U16"', b'"BF16"')
        path.write_bytes(len(header).to_bytes(8, "little") + header + written[8 + size :])
    with safe_open(path, "numpy") as file:
        assert {file.get_slice(name).get_dtype() for name in weights} == {"BF16" if half == BFLOAT16 else "F16"}
    assert_same_bits(SentenceEncoder.from_pretrained(directory).encode(["the dog", "a cat !"]), expected)
    assert_same_bits(SentenceEncoder.from_pretrained(directory, dtype=half).encode(["the dog", "a cat !"]), of_half)


@each_half
def test_a_model_in_16_bits(half: Any, tmp_path: Path, isa: str) -> None:
    directory = tiny_bert.write(tmp_path)
    wide = SentenceEncoder.from_pretrained(directory)
    model = SentenceEncoder.from_pretrained(directory, dtype=half)
    assert model.dtype == half
    assert wide.astype(half).dtype == half
    assert f"dtype='{np.dtype(half).name}'" in repr(model)
    texts = ["the dog", "", "a b c d e f g h", "the cat !"]
    embeddings = model.encode(texts)
    assert embeddings.dtype == np.float32
    assert_same_bits(wide.astype(half).encode(texts), embeddings)
    for text, alone in zip(texts, embeddings, strict=True):
        assert_same_bits(model.encode(text), alone, label=text)
    assert ((embeddings * wide.encode(texts)).sum(1) > LEAST_COSINE[np.dtype(half).name]).all()
    _, weights = model.attention_weights("the dog")
    assert weights.dtype == np.float32


@each_half
def test_the_command_line(half: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, name = str(tiny_bert.write(tmp_path)), np.dtype(half).name
    assert main(["embed", "--model", directory, "--dtype", name, "the dog"]) == 0
    expected = SentenceEncoder.from_pretrained(directory, dtype=name).encode("the dog")
    assert_same_bits(np.array(json.loads(capsys.readouterr().out)["embedding"], np.float32), expected)
    assert main(["embed", "--model", directory, "--dtype", name, "--weight-dtype", "int8", "the dog"]) != 0
    assert f"weight_dtype of a layer in {name} must be '{name}'; got 'int8'" in capsys.readouterr().err


def _sentences() -> list[str]:
    """Of the documentation: long ones and short ones, with code and numbers in them."""
    prose = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    sentences = re.split(r"(?<=[.:])\s+", re.sub(r"```.*?```|^[|#].*?$", "", prose, flags=re.DOTALL | re.MULTILINE))
    return [sentence for sentence in sentences if 8 < len(sentence) < 160]


# Each instruction set with kernels of its own for the type; by day the best of these, since all are tested with
# test_a_model_in_16_bits.
@matrix(
    half=HALF,
    where=lambda isa, half: is_own(isa, half),
    by_day=lambda isa, half: is_best_of_its_own(isa, half),
)
def test_the_pretrained_model_gives_nearly_the_embeddings_of_float32(
    half: Any, model_directory: Path, isa: str
) -> None:
    sentences = _sentences()
    sentences = sentences[:: len(sentences) // 200][:200]
    assert len(sentences) == 200
    wide = SentenceEncoder.from_pretrained(model_directory)
    cosines = (wide.astype(half).encode(sentences) * wide.encode(sentences)).sum(1)
    assert (cosines > LEAST_COSINE[np.dtype(half).name]).all(), cosines.min()


WITHOUT_ML_DTYPES = """
import copy, pickle, sys

sys.modules["ml_dtypes"] = None
import dlpack_tensor
import numpy as np
from dlpack_tensor import Tensor

import mha_native

bits = (np.random.default_rng(0).standard_normal((2, 9, 16), dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
layer = mha_native.Encoder(2, 16, 2, 24, dtype="bfloat16", seed=0, norm_first=True)
assert "dtype='bfloat16'" in repr(layer), repr(layer)
out = layer(Tensor(bits), is_causal=True)
same = [pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), layer.astype("float32").astype("bfloat16")]
other = mha_native.Encoder(2, 16, 2, 24, dtype="bfloat16", seed=1, norm_first=True)
other.load_state_dict(layer.state_dict())
for module in (*same, other):
    assert np.array_equal(module(Tensor(bits), is_causal=True).bits, out.bits)
caches = layer.new_caches(2, 9)
layer(Tensor(bits[:, :4]), caches=caches, is_causal=True)
caches = pickle.loads(pickle.dumps(caches))
rest = layer(Tensor(bits[:, 4:]), caches=caches, is_causal=True)
assert np.array_equal(rest.bits, out.bits[:, 4:])
assert "bfloat16" in repr(caches[0])
numbers = layer.astype("float32").state_dict()["layers.0.linear1.weight"]
assert numbers.dtype == np.float32 and not (numbers.view(np.uint32) & 0xFFFF).any()
try:
    layer.load_state_dict({name: np.zeros(x.shape, "V2") for name, x in layer.state_dict().items()})
except TypeError as error:
    assert "|V2" in str(error), error
else:
    raise AssertionError("bytes were taken for numbers")
tokens = [step.tokens[0] for step in mha_native.generate(layer, [3, 1], Tensor(bits[0]), max_new_tokens=3)]
np.savez(sys.argv[1], out=out.bits, tokens=tokens)
"""


def test_without_ml_dtypes(tmp_path: Path) -> None:
    saved = tmp_path / "saved.npz"
    environment = {"PYTHONPATH": str(ROOT / "tests" / "python" / "support")}
    subprocess.run([sys.executable, "-c", WITHOUT_ML_DTYPES, str(saved)], check=True, env=environment)
    bits = np.random.default_rng(0).standard_normal((2, 9, 16), dtype=np.float32).view(np.uint32) >> 16
    x = bits.astype(np.uint16).view(BFLOAT16)
    layer = Encoder(2, 16, 2, 24, dtype="bfloat16", seed=0, norm_first=True)
    found = np.load(saved)
    assert_same_bits(found["out"], layer(x, is_causal=True).view(np.uint16))
    assert found["tokens"].tolist() == [step.tokens[0] for step in generate(layer, [3, 1], x[0], max_new_tokens=3)]


@each_half
def test_the_reference_takes_a_state_in_16_bits(half: Any) -> None:
    layer = MultiHeadAttention(24, 4, dtype=half, seed=0)
    x = np.random.default_rng(0).standard_normal((5, 24)).astype(half)
    wide = {name: array.astype(np.float64) for name, array in layer.state_dict().items()}
    exact = reference.multi_head_attention(x, x, x, layer.state_dict(), 4)
    assert_same_bits(exact, reference.multi_head_attention(*[x.astype(np.float64)] * 3, wide, 4))
