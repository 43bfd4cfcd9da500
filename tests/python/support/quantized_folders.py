"""Folders of models in AWQ and GPTQ, packed integer by integer as the programs that write them do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tiny_generators
from checkpoints import write_folder

Array = np.ndarray[Any, Any]

# AWQ packs eight neighbours in this order, from the low bits on.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

SIZES = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256}


class Grouped(NamedTuple):
    """A matrix [out, in] of ``scale (code - zero)``."""

    codes: Array  # [out, in], from 0 to 15
    zeros: Array  # [out, groups]
    scales: Array  # [out, groups], float16

    @property
    def weight(self) -> Array:
        size = self.codes.shape[1] // self.zeros.shape[1]
        zeros, scales = (np.repeat(x.astype(np.float64), size, axis=1) for x in (self.zeros, self.scales))
        return (scales * (self.codes - zeros)).astype(np.float32)  # 11 bits times 5 bits: exact

    def tensors(self, method: str) -> dict[str, Array]:
        """The tensors of the matrix in a file: method "awq", "gptq" or "gptq_v2"."""
        is_awq = method == "awq"
        order = AWQ_ORDER if is_awq else range(8)
        stored = self.zeros - (method == "gptq")
        tensors = {
            "qweight": packed(self.codes.T, 1 if is_awq else 0, order),
            "qzeros": packed(stored.T, 1, order),
            "scales": np.ascontiguousarray(self.scales.T),
        }
        features = self.codes.shape[1]
        if not is_awq:
            tensors["g_idx"] = (np.arange(features) // (features // self.zeros.shape[1])).astype(np.int32)
        return tensors


def packed(integers: Array, axis: int, order: Any) -> Array:
    """Eight neighbours along an axis in one integer of 32 bits."""
    eights = (integers if axis else integers.T).astype(np.uint32)
    eights = eights.reshape(len(eights), -1, 8)
    result = np.zeros(eights.shape[:2], np.uint32)
    for nibble, neighbour in enumerate(order):
        result |= eights[:, :, neighbour] << np.uint32(4 * nibble)
    return np.ascontiguousarray(result if axis else result.T).view(np.int32)


def grouped(rng: np.random.Generator, rows: int, features: int, size: int, symmetric: bool = False) -> Grouped:
    """A random matrix, whose elements are about as large as those of trained models."""
    groups = features // size
    zeros = np.full((rows, groups), 8) if symmetric else rng.integers(1, 16, (rows, groups))
    scales = (rng.uniform(0.5, 2, (rows, groups)) / 8 / np.sqrt(features)).astype(np.float16)
    return Grouped(rng.integers(0, 16, (rows, features)), zeros, scales)


def write(
    folder: Path,
    method: str,
    size: int = 128,
    symmetric: bool = False,
    files: dict[str, Any] | None = None,
    changes: dict[str, Array | None] | None = None,
    vocabulary: int = tiny_generators.VOCABULARY,
    **options: Any,
) -> tuple[Path, Path]:
    """A tiny llama in `folder`/quantized, and the same weights in float32 in `folder`/plain.

    `options` are entries of quantization_config, `changes` tensors that differ; None for one that is missing.
    """
    settings = tiny_generators.config("llama", **SIZES, vocab_size=vocabulary)
    plain, tensors = tiny_generators.tensors(settings), {}
    rng = np.random.default_rng(size)
    for name, weight in list(plain.items()):
        if weight.ndim == 2 and "layers." in name:
            matrix = grouped(rng, *weight.shape, min(size, weight.shape[1]), symmetric)
            plain[name] = matrix.weight
            stem = name.removesuffix("weight")
            tensors |= {stem + part: array for part, array in matrix.tensors(method).items()}
        else:
            tensors[name] = weight
    quantization = {"quant_method": method.removesuffix("_v2"), "bits": 4, "group_size": size}
    if method == "gptq_v2":
        quantization["checkpoint_format"] = method
    tensors |= changes or {}
    present = {name: array for name, array in tensors.items() if array is not None}
    quantized = {"config.json": settings | {"quantization_config": quantization | options}, **(files or {})}
    return (
        write_folder(folder / "quantized", quantized, present),
        write_folder(folder / "plain", {"config.json": settings, **(files or {})}, plain),
    )
