"""gpt-oss: experts with biases and a clamped activation, sinks of heads, and windows in every other layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..architecture.config import ATTENTION, FEED_FORWARD, BlockConfig, ExpertsConfig
from ..architecture.family import GENERATION
from ..architecture.norms import in_dtype
from ..architecture.tensor_names import BlockNames
from ..files.entries import Entries
from ..files.source import Shapes, Tensors
from .gemma2 import is_sliding
from .llama import FAMILY as LLAMA
from .mistral import window


class Names(BlockNames):
    """The names of a layer whose experts are stacked in two tensors: gate and up by turns, and down."""

    def shapes(self, config: BlockConfig, i: int) -> Shapes:
        yield from super().shapes(config, i)
        if config.experts is not None:
            count, inner, width = config.experts.num_experts, config.experts.feedforward_dim, config.embed_dim
            prefix = self.layer.format(i) + self.expert
            yield f"{prefix}gate_up_proj", (count, width, 2 * inner)
            yield f"{prefix}gate_up_proj_bias", (count, 2 * inner)
            yield f"{prefix}down_proj", (count, inner, width)
            yield f"{prefix}down_proj_bias", (count, width)

    def read(self, config: BlockConfig, i: int, tensors: Tensors, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
        weights = super().read(config, i, tensors, dtype)
        if config.experts is None:
            return weights
        prefix = self.layer.format(i) + self.expert
        for stacked, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
            for which, name in (("weight", f"{prefix}{stacked}"), ("bias", f"{prefix}{stacked}_bias")):
                for expert, numbers in enumerate(tensors[name]):
                    for first, part in enumerate(parts):
                        own = np.ascontiguousarray(numbers[..., first :: len(parts)].T)
                        weights[f"experts.{expert}.{part}.{which}"] = in_dtype(own, dtype)
        return weights

    def _matrices(self, config: BlockConfig, i: int) -> Mapping[str, dict[str, tuple[int, int]]]:
        found = super()._matrices(config, i)
        return {name: parts for name, parts in found.items() if not next(iter(parts)).startswith("experts.")}


def _experts(entries: Entries, i: int) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=entries.size("num_local_experts"),
        experts_per_token=entries.size("num_experts_per_tok"),
        feedforward_dim=entries.size("intermediate_size"),
    )


(_STACK,) = LLAMA.stacks
_BLOCKS = _STACK.blocks._replace(router="mlp.router", expert="mlp.experts.", sinks="self_attn.sinks")

FAMILY = LLAMA._replace(
    model_types=("gpt_oss",),
    roles=frozenset({GENERATION}),
    keys=LLAMA.keys._replace(layer_types="layer_types"),
    stacks=(_STACK._replace(blocks=Names(*_BLOCKS)),),
    defaults={
        "hidden_act": "silu",
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
)
