"""Sizes and weights of a multi-head attention layer: state dicts, copies, pickles, and modules of torch."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._arrays import Tensor, to_numpy
from .._dtypes import WEIGHT_FORMATS, checked_dtype, packed_state, unpacked_state
from ._head_steps import HeadSteps, norms_state
from ._layer_weights import Parts, Sizes, resolve_sizes, split_state, state_shapes
from ._module_state import Leaf, linear_state
from ._torch_modules import checked_module
from .rotary_embedding import RotaryEmbedding

Layer = TypeVar("Layer", bound="LayerState")


class LayerState(Leaf):
    """The weights of a `MultiHeadAttention`. The core holds them, packed."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Copies of the weights, under the names and in the [out, in] layout of ``torch.nn.MultiheadAttention``.

        ``in_proj_weight`` [H D + Hk D + Hk Dv, E] stacks the projections of query, key and value if `kdim` and `vdim`
        are E; else they are ``q_proj_weight``, ``k_proj_weight`` and ``v_proj_weight``. ``out_proj.weight`` is
        [out_dim, H Dv]. With biases also ``in_proj_bias`` and ``out_proj.bias``; where query, key and value do not
        all have one, ``q_proj_bias``, ``k_proj_bias`` or ``v_proj_bias``. With `add_bias_kv` also ``bias_k``
        [1, 1, Hk D] and ``bias_v`` [1, 1, Hk Dv]. Matrices in int8 have scales, ``in_proj_weight_scale``
        [H D + Hk D + Hk Dv] and so on. With `qk_norm` ``q_norm.weight`` and ``k_norm.weight`` [D], of "layer" also
        ``q_norm.bias`` and ``k_norm.bias``.
        """
        core = self._core  # one for all: another thread may load weights meanwhile
        (*in_proj, out_proj), (added_key, added_value) = core.weights()
        weights, biases, scales = zip(*in_proj, strict=True)
        state = {f"{letter}_proj_weight": weight for letter, weight in zip("qkv", weights, strict=True)}
        if WEIGHT_FORMATS.get(self.weight_dtype):
            state |= {f"{letter}_proj_weight_scale": scale for letter, scale in zip("qkv", scales, strict=True)}
        if self._sizes.are_stackable:
            state = {
                f"in_proj_weight{end}": np.concatenate([state[f"{letter}_proj_weight{end}"] for letter in "qkv"])
                for end in ("", "_scale")
                if f"q_proj_weight{end}" in state
            }
        if self._parts.in_biases == "qkv":
            state["in_proj_bias"] = np.concatenate(biases)
        else:
            named = zip("qkv", biases, strict=True)
            state |= {f"{letter}_proj_bias": bias for letter, bias in named if bias is not None}
        if added_key is not None and added_value is not None:
            state |= {"bias_k": added_key[None, None], "bias_v": added_value[None, None]}
        return state | linear_state("out_proj.", out_proj) | norms_state(core.norms)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the weights by those in `state`, all or none of them.

        Parameters
        ----------
        state : mapping of names to arrays or CPU tensors
            As `state_dict` gives it. The projections of query, key and value, and their biases, may be stacked or not.
            Of a layer whose weights are in fewer bits they may also be in the dtype of the layer, and are then rounded.

        Raises
        ------
        ValueError
            If names are missing or unexpected, or shapes differ: one message says which. The layer is as before.
        TypeError
            If an array is not of the dtype of the layer.
        """
        super().load_state_dict(state)

    @classmethod
    def from_torch(cls: type[Layer], module: Any) -> Layer:
        """The layer that computes what a ``torch.nn.MultiheadAttention`` does, with a copy of its weights.

        Four things differ. Boolean masks are the other way round: here True means that the key takes part; those of
        [B * H, Tq, Tk] become [B, H, Tq, Tk]. The layer is batch-first, whatever ``module.batch_first`` says: weights
        are the same either way, and nothing is transposed. Dropout is not applied, not even in training mode: results
        are those of ``module.eval()``. A query that sees no key gives the bias of the last projection, where torch may
        give NaN.

        Parameters
        ----------
        module : torch.nn.MultiheadAttention
            On the CPU, in float32, float64, float16 or bfloat16, of any configuration.

        Raises
        ------
        TypeError, ValueError
            If the module, or a part of it, is of a derived class, is parametrized, or has forward hooks: it may compute
            something else.
        """
        function, kind = f"{cls.__name__}.from_torch", "MultiheadAttention"
        state = checked_module(function, module, kind).state_dict()
        if "out_proj.weight" not in state:  # another module in place of the projection has other names
            raise TypeError(
                f"{function}: module: expected a plain torch.nn.{kind}; its out_proj is a {module.out_proj!r:.80}"
            )
        out_weight = to_numpy(function, "out_proj.weight", state["out_proj.weight"])
        layer = cls.__new__(cls)
        sizes = resolve_sizes(module.embed_dim, module.num_heads, None, None, None, module.kdim, module.vdim, None)
        parts = Parts("in_proj_bias" in state, "bias_k" in state, bool(module.add_zero_attn))
        dtype = checked_dtype(function, out_weight.dtype)
        layer._set_state(sizes, parts, dtype, _core.dtype_name(dtype), state)
        return layer

    @property
    def embed_dim(self) -> int:
        """E, the features of the query."""
        return self._sizes.embed_dim

    @property
    def num_heads(self) -> int:
        """H, the heads of the query."""
        return self._sizes.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Hk, the heads of keys and values."""
        return self._sizes.num_kv_heads

    @property
    def head_dim(self) -> int:
        """D, the width of a head of queries and keys."""
        return self._sizes.head_dim

    @property
    def value_head_dim(self) -> int:
        """Dv, the width of a head of values."""
        return self._sizes.value_head_dim

    @property
    def kdim(self) -> int:
        """Features of the key."""
        return self._sizes.kdim

    @property
    def vdim(self) -> int:
        """Features of the value."""
        return self._sizes.vdim

    @property
    def out_dim(self) -> int:
        """Features of the result."""
        return self._sizes.out_dim

    @property
    def bias(self) -> bool | tuple[str, ...]:
        """Whether the projections have biases; if some have, their names: of "query", "key", "value" and "out"."""
        return self._parts.bias

    @property
    def add_bias_kv(self) -> bool:
        """Whether every query also sees a key and a value that are weights of the layer."""
        return self._parts.add_bias_kv

    @property
    def add_zero_attn(self) -> bool:
        """Whether every query also sees a key and a value of zeros."""
        return self._parts.add_zero_attn

    @property
    def qk_norm(self) -> str | None:
        """The kind of the norms of query and key, if there are any."""
        return self._steps.qk_norm

    @property
    def rotary(self) -> RotaryEmbedding | None:
        """The table by which queries and keys are turned, if there is one."""
        return self._steps.rotary

    def _configuration(self) -> dict[str, Any]:
        return self._sizes._asdict() | self._parts._asdict() | self._steps.configuration()

    def __getstate__(self) -> dict[str, Any]:
        sizes, parts = tuple(self._sizes), tuple(self._parts)
        dtypes = {"dtype": _core.dtype_name(self.dtype), "weight_dtype": self.weight_dtype}
        state = packed_state(self.state_dict())
        return {"sizes": sizes, "parts": parts, "steps": tuple(self._steps), **dtypes, "state": state}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        sizes, parts = Sizes(*saved["sizes"]), Parts(*saved["parts"])
        dtype, state = checked_dtype("MultiHeadAttention", saved["dtype"]), unpacked_state(saved["state"])
        steps = HeadSteps(*saved.get("steps", ())).for_layers_in(dtype)
        self._set_state(sizes, parts, dtype, saved["weight_dtype"], state, steps)

    def _set_state(
        self,
        sizes: Sizes,
        parts: Parts,
        dtype: np.dtype[Any],
        weight_dtype: str,
        state: Mapping[str, Tensor],
        steps: HeadSteps = HeadSteps(),  # noqa: B008, it is immutable
    ) -> None:
        self._sizes = sizes
        self._parts = parts
        self._steps = steps
        self._weight_dtype = weight_dtype
        self._load(dtype, state)

    def _state_shapes(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        shapes = state_shapes(self._sizes, self._parts, names) | self._steps.state_shapes(self._sizes.head_dim)
        return self._with_scales(shapes, names)

    def _make_core(self, arrays: Mapping[str, NDArray[Any]]) -> _core.MultiHeadAttention:
        projections, added = split_state(self._sizes, self._parts, arrays)
        rotary = self._steps.rotary
        return _core.MultiHeadAttention(
            self._sizes,
            projections,
            added,
            self._parts.add_zero_attn,
            self._weight_dtype,
            *self._steps.norms(arrays),
            None if rotary is None else rotary._core,
        )
