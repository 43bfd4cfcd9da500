"""Folders in AWQ and GPTQ: their numbers, their results, and sentences about folders that are quantized otherwise."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantized_folders
import tiny_language_model
from command_line import run
from damage import damaged_bytes, damaged_json
from decoder_logits import logits, opened

from mha_native import BlockMatrix
from mha_native.models import CausalLM
from mha_native.models.files.folder import FolderSource

METHODS = ["awq", "gptq", "gptq_v2"]
GATE, DOWN = "model.layers.1.mlp.gate_proj.", "model.layers.0.mlp.down_proj."
SEQUENCES = [[3, 1, 4, 1, 5, 9, 2, 6], [7]]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("method", "size"), [*((method, 128) for method in METHODS), ("awq", 32), ("gptq", 64)])
def test_numbers_are_scale_times_code_minus_zero(method: str, size: int, symmetric: bool, tmp_path: Path) -> None:
    """In float32 and in blocks; the blocks have 4 bits for each weight only where all zero points are 8."""
    quantized, plain = quantized_folders.write(tmp_path, method, size, symmetric)
    shapes = [("layers.1.mlp.gate_proj.weight", (256, 128)), ("layers.0.mlp.down_proj.weight", (128, 256))]
    exact, own = (FolderSource(folder).tensors(shapes, "model.") for folder in (plain, quantized))
    with exact as expected, own as found:
        for name, _ in shapes:
            blocks = found.matrix(name)
            assert isinstance(blocks, BlockMatrix)
            assert blocks.dtype == ("q4_0" if symmetric else "q5_0")
            assert np.array_equal(blocks.dequantize(), expected[name])
            assert np.array_equal(found[name], expected[name])
        assert "norm.weight" in found


@pytest.mark.parametrize("symmetric", [False, True])
def test_results(symmetric: bool, tmp_path: Path) -> None:
    """Weights in float32 have the bits of a folder in float32; blocks multiply rows of 8 bits."""
    quantized, plain = quantized_folders.write(tmp_path, "awq", symmetric=symmetric)
    expected = logits(opened(plain), SEQUENCES)
    for found, exact in zip(logits(opened(quantized, weight_dtype="float32"), SEQUENCES), expected, strict=True):
        assert np.array_equal(found, exact)
    own = opened(quantized)
    assert own.weight_dtype == ("q4_0" if symmetric else "q5_0")
    for found, exact in zip(logits(own, SEQUENCES), expected, strict=True):
        assert 0 < np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_scales_that_float16_lacks_give_weights_in_float32(tmp_path: Path) -> None:
    scales = np.full((1, 256), 1 / 3, np.float32)
    quantized, _ = quantized_folders.write(tmp_path, "gptq", changes={f"{GATE}scales": scales})
    with FolderSource(quantized).tensors([("layers.1.mlp.gate_proj.weight", (256, 128))], "model.") as tensors:
        matrix = tensors.matrix("layers.1.mlp.gate_proj.weight")
        assert isinstance(matrix, np.ndarray)
        assert np.isin(matrix * 3, np.arange(-16, 16)).mean() > 0.5


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        *(
            ("awq", {"quant_method": name}, f"be absent, or have quant_method 'awq' or 'gptq', not '{name}'")
            for name in ("bitsandbytes", "compressed-tensors", "fp8", "hqq", "quanto", "torchao", "auto-round")
        ),
        ("awq", {"quant_method": None}, "be absent, or have quant_method 'awq' or 'gptq'; got"),
        ("awq", {"bits": 3}, "have bits 4, not 3"),
        ("gptq", {"bits": 8}, "have bits 4, not 8"),
        ("gptq", {"bits": None}, "have bits 4, not None"),
        ("gptq", {"desc_act": True}, "have desc_act False, since the features of a group must be neighbours"),
        ("gptq", {"checkpoint_format": "marlin"}, "have checkpoint_format 'gptq' or 'gptq_v2', not 'marlin'"),
        ("gptq", {"dynamic": {"lm_head": {}}}, "have no dynamic"),
        ("gptq", {"pack_dtype": "int64"}, "have pack_dtype 'int32', not 'int64'"),
        ("awq", {"version": "GEMV"}, "have version 'gemm', not 'gemv'"),
        ("awq", {"group_size": 16}, "have a group_size of -1 or a multiple of 32, not 16"),
        ("awq", {"group_size": "128"}, "have a group_size of -1 or a multiple of 32, not '128'"),
    ],
)
def test_other_quantizations_are_refused_by_name(
    method: str, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    quantized, _ = quantized_folders.write(tmp_path, method, **options)
    with pytest.raises(ValueError, match="quantization_config must ") as error:
        opened(quantized)
    message = str(error.value)
    assert words in message
    assert message.startswith(f"{quantized / 'config.json'}: ")
    assert message.endswith("open the model's files in bfloat16, or a GGUF file of the model")
    assert len(message.splitlines()) == 1


def changed(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | entries), encoding="utf-8")


def test_quantized_tensors_without_their_config_are_named(tmp_path: Path) -> None:
    quantized, _ = quantized_folders.write(tmp_path, "awq")
    changed(quantized, quantization_config=None)
    with pytest.raises(ValueError, match=r"missing: .*q_proj\.weight, .*in its place: .*q_proj\.qweight, "):
        opened(quantized)
    changed(quantized, compression_config={"format": "pack-quantized"})
    with pytest.raises(ValueError, match="compression_config must be absent"):
        opened(quantized)


ZEROS_OF_15 = np.full((1, 32), 0x77F77777, np.int32)
TURNED = np.arange(128, dtype=np.int32)[::-1] // 64


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("awq", {f"{GATE}qzeros": None}, "must have qzeros of this matrix, too"),
        ("awq", {f"{GATE}scales": None}, "must have scales of this matrix, too"),
        ("awq", {f"{GATE}qweight": None}, "must belong to a matrix, with its qweight"),
        ("awq", {"model.layers.0.mlp.act.scales": np.ones(4, np.float16)}, "mlp.act.scales must belong to a matrix"),
        ("awq", {f"{GATE}weight": np.ones((256, 128), np.float32)}, "weight or .*qweight, not both"),
        ("awq", {f"{GATE}qweight": np.zeros((128, 31), np.int32)}, r"qzeros must be I32 \[1, 31\]; got I32 \[1, 32\]"),
        ("awq", {f"{GATE}qweight": np.zeros((96, 32), np.int32)}, "96 features in groups of 128"),
        ("awq", {f"{GATE}qweight": np.zeros((0, 32), np.int32)}, "two axes that are not empty"),
        ("awq", {f"{GATE}scales": np.ones((1, 256), np.int32)}, r"must be F16 or BF16 or F32 \[1, 256\]; got I32"),
        ("awq", {f"{GATE}scales": np.full((1, 256), np.nan, np.float16)}, "weight must hold finite numbers"),
        ("awq", {f"{DOWN}qweight": np.zeros((256, 8), np.int32), f"{DOWN}qzeros": np.zeros((2, 8), np.int32),
                 f"{DOWN}scales": np.ones((2, 64), np.float16)}, r"down_proj.weight \[64, 256\] instead"),
        ("gptq", {f"{GATE}qzeros": ZEROS_OF_15}, "qzeros must have integers below 15"),
        ("gptq", {f"{GATE}g_idx": TURNED}, "g_idx must number groups of neighbours"),
        ("gptq", {f"{GATE}g_idx": TURNED[:5].copy()}, r"g_idx must be I32 \[128\]; got I32 \[5\]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("weight_dtype", [None, "float32"])
def test_damaged_tensors(method: str, changes: dict[str, Any], words: str, weight_dtype: Any, tmp_path: Path) -> None:
    quantized, _ = quantized_folders.write(tmp_path, method, changes=changes)
    with pytest.raises(ValueError, match=words) as error:
        opened(quantized, weight_dtype=weight_dtype)
    assert str(quantized) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("times", [60, pytest.param(2000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("damaged", [damaged_bytes, damaged_json])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_random_damage_loads_or_is_refused(name: str, damaged: Any, times: int, tmp_path: Path) -> None:
    quantized, _ = quantized_folders.write(tmp_path, "gptq")
    raw, refused = (quantized / name).read_bytes(), 0
    for seed in range(times):
        (quantized / name).write_bytes(damaged(raw, random.Random(f"{name} {seed}")))
        try:
            assert logits(opened(quantized), SEQUENCES)[0].shape == (8, 45)
        except (ValueError, OSError) as error:
            refused, message = refused + 1, str(error)
            assert len(message.splitlines()) == 1, (seed, message)
            assert len(message) < 2000, (seed, message)
    assert refused > times // 10


def test_texts_of_a_quantized_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    files = {"tokenizer.json": tiny_language_model.tokenizer().to_str()}
    quantized, _ = quantized_folders.write(tmp_path, "awq", files=files, vocabulary=tiny_language_model.VOCABULARY)
    model = CausalLM.from_pretrained(quantized)
    assert model.generate_tokens("the", max_new_tokens=5).shape == (5,)
    assert model.weight_bytes.keys() == {"q5_0", "float32"}
    arguments = ["generate", "--model", str(quantized), "--prompt", "the", "--max-new-tokens", "5"]
    code, text, report = run(capsys, *arguments)
    assert (code, text) == (0, model.generate("the", max_new_tokens=5) + "\n")
    sizes = r"weights in the formats of the file: q5_0 0\.\d MB, float32 0\.\d MB; --weight-dtype float32 expands them"
    assert re.search(f"^mha_native: {sizes}$", report, re.M)
    assert "formats" not in run(capsys, *arguments, "--weight-dtype", "float32")[2]
