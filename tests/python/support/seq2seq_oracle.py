"""Logits of encoder-decoders in float64, one text at a time, from the tensors and the config.json of transformers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from oracle_parts import ACTIVATIONS, attention, heads, layer_norm, linear, rms_norm

Array = np.ndarray[Any, Any]

# What a model that has a feed-forward of this kind computes with, and whether there is a gate.
_T5_ACTIVATIONS = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gated-gelu": ("gelu_new", True),
    "gated-silu": ("silu", True),
}


def logits(config: dict[str, Any], tensors: dict[str, Array], text: list[int], target: list[int]) -> Array:
    """[T, V] for the T tokens that the decoder reads, with the memory of the tokens of a text."""
    weights = {name.removeprefix("model."): tensor.astype(np.float64) for name, tensor in tensors.items()}
    model = (_T5 if config["model_type"] == "t5" else _Bart)(config, weights)
    return model.logits(model.stack("decoder", target, model.stack("encoder", text, None)))


def _attended(q: Array, k: Array, v: Array, count: int, scale: float, bias: Any, is_causal: bool) -> Array:
    """[T, H D] from [T, H D], [S, H D] and [S, H D]; `bias` is [H, T, S]."""
    sees = np.tri(len(q), len(k), dtype=bool) if is_causal else True
    return attention(*(heads(x, count) for x in (q, k, v)), scale, sees, bias)


class _Bart:
    """BART; mBART and Pegasus, whose norms come first; Marian and Pegasus, whose positions are sines."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Array]) -> None:
        self.config, self.weights = config, weights

    def logits(self, y: Array) -> Array:
        head = "lm_head.weight" if "lm_head.weight" in self.weights else "shared.weight"
        return y @ self.weights[head].T + self.weights.get("final_logits_bias", 0)

    def stack(self, name: str, tokens: list[int], memory: Array | None) -> Array:
        config, weights = self.config, self.weights
        scale = math.sqrt(config["d_model"]) if config.get("scale_embedding") else 1
        x = weights["shared.weight"][tokens] * scale
        if config["model_type"] in ("marian", "pegasus"):
            given = weights.get(f"{name}.embed_positions.weight")
            x = x + (self._sines(len(tokens)) if given is None else given[: len(tokens)])
        else:
            x = self._norm(
                x + weights[f"{name}.embed_positions.weight"][2:][: len(tokens)], f"{name}.layernorm_embedding"
            )
        count = config[f"{name}_attention_heads"]
        for i in range(config[f"{name}_layers"]):
            layer = f"{name}.layers.{i}."
            attend = partial(self._attend, None, f"{layer}self_attn", count, memory is not None)
            x = self._sublayer(x, f"{layer}self_attn_layer_norm", attend)
            if memory is not None:
                attend = partial(self._attend, memory, f"{layer}encoder_attn", count, False)
                x = self._sublayer(x, f"{layer}encoder_attn_layer_norm", attend)
            x = self._sublayer(x, f"{layer}final_layer_norm", partial(self._forward, layer))
        return self._norm(x, f"{name}.layer_norm") if self._norm_first else x

    @property
    def _norm_first(self) -> bool:
        return self.config["model_type"] in ("mbart", "pegasus")

    def _sines(self, length: int) -> Array:
        """[T, E]: sines of E / 2 wavelengths, and behind them cosines, as the files have them."""
        width = self.config["d_model"]
        angles = np.outer(np.arange(length), 10000 ** (-np.arange(0, width, 2) / width))
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32).astype(np.float64)

    def _sublayer(self, x: Array, norm: str, sublayer: Any) -> Array:
        return x + sublayer(self._norm(x, norm)) if self._norm_first else self._norm(x + sublayer(x), norm)

    def _product(self, x: Array, name: str) -> Array:
        return linear(x, self.weights, name)

    def _norm(self, x: Array, name: str) -> Array:
        return layer_norm(x, self.weights, name, 1e-5)

    def _attend(self, memory: Array | None, name: str, count: int, is_causal: bool, x: Array) -> Array:
        q = self._product(x, f"{name}.q_proj")
        k, v = (self._product(x if memory is None else memory, f"{name}.{part}_proj") for part in "kv")
        scale = (x.shape[1] // count) ** -0.5
        return self._product(_attended(q, k, v, count, scale, 0, is_causal), f"{name}.out_proj")

    def _forward(self, layer: str, x: Array) -> Array:
        inner = ACTIVATIONS[self.config.get("activation_function", "gelu")](self._product(x, f"{layer}fc1"))
        return self._product(inner, f"{layer}fc2")


class _T5:
    def __init__(self, config: dict[str, Any], weights: dict[str, Array]) -> None:
        self.config, self.weights = config, weights

    def logits(self, y: Array) -> Array:
        head = "lm_head.weight" if "lm_head.weight" in self.weights else "shared.weight"
        is_scaled = self.config.get("scale_decoder_outputs", self.config.get("tie_word_embeddings", True))
        return y * (self.config["d_model"] ** -0.5 if is_scaled else 1) @ self.weights[head].T

    def stack(self, name: str, tokens: list[int], memory: Array | None) -> Array:
        config, weights = self.config, self.weights
        x = weights["shared.weight"][tokens]
        depth = config["num_decoder_layers" if memory is not None else "num_layers"]
        table = weights[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        bias = self._by_distance(table, len(tokens), memory is not None)
        for i in range(depth):
            layer = f"{name}.block.{i}.layer."
            x = x + self._attend(x, None, f"{layer}0", "SelfAttention", bias, memory is not None)
            if memory is not None:
                x = x + self._attend(x, memory, f"{layer}1", "EncDecAttention", 0, False)
            x = x + self._forward(x, f"{layer}{1 if memory is None else 2}")
        return self._norm(x, f"{name}.final_layer_norm")

    def _by_distance(self, table: Array, length: int, is_causal: bool) -> Array:
        """[H, T, T]: the row of the bucket of each distance."""
        buckets, most = len(table), self.config["relative_attention_max_distance"]
        half = buckets if is_causal else buckets // 2
        result = np.zeros((table.shape[1], length, length))
        for query in range(length):
            for key in range(length):
                distance = query - key if is_causal else abs(query - key)
                bucket = max(distance, 0)
                if bucket >= half // 2:
                    far = math.log(distance / (half // 2)) / math.log(most / (half // 2)) * (half - half // 2)
                    bucket = min(half // 2 + int(far + 1e-9), half - 1)
                result[:, query, key] = table[bucket + (half if key > query and not is_causal else 0)]
        return result

    def _norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self.weights, name, self.config.get("layer_norm_epsilon", 1e-6))

    def _attend(
        self, x: Array, memory: Array | None, layer: str, name: str, bias: Array | float, is_causal: bool
    ) -> Array:
        read = self._norm(x, f"{layer}.layer_norm")
        q, k, v, out = (self.weights[f"{layer}.{name}.{part}.weight"].T for part in "qkvo")
        seen = read if memory is None else memory
        return _attended(read @ q, seen @ k, seen @ v, self.config["num_heads"], 1, bias, is_causal) @ out

    def _forward(self, x: Array, layer: str) -> Array:
        read, name = self._norm(x, f"{layer}.layer_norm"), f"{layer}.DenseReluDense."
        activation, gated = _T5_ACTIVATIONS[self.config.get("feed_forward_proj", "relu")]
        inner = ACTIVATIONS[activation](linear(read, self.weights, name + ("wi_0" if gated else "wi")))
        if gated:
            inner = inner * linear(read, self.weights, f"{name}wi_1")
        return linear(inner, self.weights, f"{name}wo")
