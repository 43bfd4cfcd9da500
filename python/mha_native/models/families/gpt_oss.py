"""gpt-oss: experts with biases and a clamped activation, sinks of heads, and windows in every other layer."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ...functions.block_matrix import BlockMatrix, rows_of
from ..architecture.config import ATTENTION, FEED_FORWARD, BlockConfig, ExpertsConfig, ModelConfig
from ..architecture.family import GENERATION, Family, described
from ..architecture.norms import in_dtype
from ..architecture.tensor_names import BlockNames
from ..files.block_scales import is_finite
from ..files.entries import Entries
from ..files.source import Matrix, Shapes, Tensors
from .gemma2 import is_sliding
from .llama import FAMILY as LLAMA
from .mistral import window

# The two tensors of all experts, and the products whose rows they have by turns.
_STACKED = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}

_BLOCK = 32  # the numbers of MXFP4 that have one scale


class Names(BlockNames):
    """The names of a layer, whose experts may be stacked in two tensors, [N, in, out] or in blocks of MXFP4."""

    def shapes(self, config: BlockConfig, i: int) -> Shapes:
        yield from super().shapes(config, i)
        if config.experts is None or not config.experts.layout:
            return
        count, inner, width = config.experts.num_experts, config.experts.feedforward_dim, config.embed_dim
        for stacked, (rows, columns) in {"gate_up_proj": (2 * inner, width), "down_proj": (width, inner)}.items():
            name = self._stacked(stacked, i)
            yield f"{name}_bias", (count, rows)
            if config.experts.layout == "mxfp4":
                blocks = count, rows, columns // _BLOCK
                yield from ((f"{name}_blocks", (*blocks, _BLOCK // 2)), (f"{name}_scales", blocks))
            else:
                yield name, (count, columns, rows)

    def read(self, config: BlockConfig, i: int, tensors: Tensors, dtype: np.dtype[Any]) -> dict[str, Matrix]:
        weights = super().read(config, i, tensors, dtype)
        if config.experts is None or not config.experts.layout:
            return weights
        for stacked, parts in _STACKED.items():
            name = self._stacked(stacked, i)
            is_packed = config.experts.layout == "mxfp4"
            matrices: Iterable[Matrix] = _in_blocks(tensors, name) if is_packed else tensors[name].swapaxes(1, 2)
            for expert, (matrix, bias) in enumerate(zip(matrices, tensors[f"{name}_bias"], strict=True)):
                for first, part in enumerate(parts):
                    rows = slice(first, None, len(parts))
                    weights[f"experts.{expert}.{part}.weight"] = in_dtype(rows_of(matrix, rows), dtype)
                    weights[f"experts.{expert}.{part}.bias"] = in_dtype(np.ascontiguousarray(bias[rows]), dtype)
        return weights

    def _stacked(self, name: str, i: int) -> str:
        return f"{self.layer.format(i)}{self.expert.partition('{')[0]}{name}"

    def _matrices(self, config: BlockConfig, i: int) -> Mapping[str, dict[str, tuple[int, int]]]:
        found = super()._matrices(config, i)
        if config.experts is None or not config.experts.layout:
            return found
        return {name: parts for name, parts in found.items() if not next(iter(parts)).startswith("experts.")}


def _in_blocks(tensors: Tensors, name: str) -> Iterator[BlockMatrix]:
    """Yield the matrices [out, in] of a tensor in MXFP4, one expert after another."""
    packed: Any = tensors[f"{name}_blocks"], tensors[f"{name}_scales"]
    for codes, scales in zip(*packed, strict=True):
        # A byte of these files has two neighbours, a byte of a block two numbers 16 apart; the first has the low bits.
        numbers = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*scales.shape, _BLOCK)
        halves = numbers[..., : _BLOCK // 2] | numbers[..., _BLOCK // 2 :] << 4
        data = np.concatenate([scales[..., None], halves], axis=-1).reshape(len(scales), -1)
        matrix = BlockMatrix(data, "mxfp4", _BLOCK * scales.shape[1])
        if not is_finite(matrix):
            raise ValueError(f"{name}_scales must be such that numbers are finite; got {int(scales.max())}")
        yield matrix


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    quantization = given.values.get("quantization_config")
    if not isinstance(quantization, dict) or quantization.get("quant_method") != "mxfp4":
        return described(family, given, role, max_positions)
    others = {name: value for name, value in given.values.items() if name != "quantization_config"}
    config = described(family, given._replace(values={**others, "experts_layout": "mxfp4"}), role, max_positions)
    (stack,) = config.stacks
    for name, size in (("hidden_size", config.embed_dim), ("intermediate_size", stack.blocks[0].feedforward_dim)):
        if size % _BLOCK:
            raise ValueError(f"{given.path}: {name} must be a multiple of {_BLOCK} for MXFP4; got {size}")
    return config


def _experts(entries: Entries, i: int) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=entries.size("num_local_experts"),
        experts_per_token=entries.size("num_experts_per_tok"),
        feedforward_dim=entries.size("intermediate_size"),
        layout=entries.choice("experts_layout", "", "stacked", "mxfp4"),
    )


(_STACK,) = LLAMA.stacks
_BLOCKS = _STACK.blocks._replace(router="mlp.router", expert="mlp.experts.{}.", sinks="self_attn.sinks")

FAMILY = LLAMA._replace(
    model_types=("gpt_oss",),
    roles=frozenset({GENERATION}),
    keys=LLAMA.keys._replace(layer_types="layer_types"),
    stacks=(_STACK._replace(blocks=Names(*_BLOCKS)),),
    defaults={
        "hidden_act": "silu",
        "experts_layout": "stacked",  # of this package: a GGUF file has another one
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    expected={**LLAMA.expected, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    activations={"silu": ("swiglu_oai", True)},  # the name in config.json has no effect
    biases={"attention_bias": ATTENTION, "": FEED_FORWARD | {"router"}},
    bases={"": ("rope_theta", 150000.0)},
    window=window,
    is_sliding=is_sliding,
    has_sinks=True,
    experts=_experts,
    describe=_describe,
)
