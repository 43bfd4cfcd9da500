"""Sizes and weights of a multi-head attention layer: state dicts, copies, pickles, and modules of torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..functions.arrays import Tensor
from ..functions.block_matrix import from_core, joined_rows
from ..functions.dtypes import checked_dtype, packed_state, unpacked_state
from ..functions.instances import bare
from ..functions.messages import in_the_name_of, names_sizes
from ._constructor_arguments import WeightDType
from ._given_weights import given_weights
from ._head_steps import HeadSteps, checked_steps, norms_state
from ._layer_weights import Parts, Sizes, parts_of_weights, sizes_of_weights, split_state, state_shapes
from ._module_state import Leaf, linear_state
from ._torch_modules import checked_module
from .rotary_embedding import RotaryEmbedding

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self  # in typing from Python 3.11 on


class LayerState(Leaf):
    """The weights of a `MultiHeadAttention`, which the core stores in packed form."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return copies of the weights, with the names and the [out, in] layout of ``torch.nn.MultiheadAttention``.

        ``in_proj_weight`` [H D + Hk D + Hk Dv, E] stacks the projections of query, key and value if `kdim` and `vdim`
        are E; otherwise they are ``q_proj_weight``, ``k_proj_weight`` and ``v_proj_weight``. ``out_proj.weight`` is
        [out_dim, H Dv]. Biases are ``in_proj_bias`` and ``out_proj.bias``. If only some of query, key and value have
        one, they are ``q_proj_bias``, ``k_proj_bias`` or ``v_proj_bias``. `add_bias_kv` adds ``bias_k`` [1, 1, Hk D]
        and ``bias_v`` [1, 1, Hk Dv]. Matrices in int8 have scales, ``in_proj_weight_scale`` [H D + Hk D + Hk Dv] and
        so on. A `BlockMatrix` is one again; if query, key and value differ in format, they are three matrices.
        `qk_norm` adds ``q_norm.weight`` and ``k_norm.weight`` [D], "layer" also ``q_norm.bias`` and ``k_norm.bias``; of
        "rms_joint" they are [H D] and [Hk D].
        """
        core = self._core  # one for all: another thread may load weights meanwhile
        (*in_proj, out_proj), (added_key, added_value) = core.weights()
        weights, biases, scales = zip(*in_proj, strict=True)
        matrices = list(map(from_core, weights))
        stacked = joined_rows(matrices) if self._sizes.are_stackable else None
        if stacked is not None:
            state = {"in_proj_weight": stacked}
            if scales[0] is not None:
                state["in_proj_weight_scale"] = np.concatenate(scales)
        else:
            state = {f"{letter}_proj_weight": matrix for letter, matrix in zip("qkv", matrices, strict=True)}
            named = zip("qkv", scales, strict=True)
            state |= {f"{letter}_proj_weight_scale": scale for letter, scale in named if scale is not None}
        if self._parts.in_biases == "qkv":
            state["in_proj_bias"] = np.concatenate(biases)
        else:
            named = zip("qkv", biases, strict=True)
            state |= {f"{letter}_proj_bias": bias for letter, bias in named if bias is not None}
        if added_key is not None and added_value is not None:
            state |= {"bias_k": added_key[None, None], "bias_v": added_value[None, None]}
        return state | linear_state("out_proj.", out_proj) | norms_state(core.norms)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the weights by `state`, all of them or none.

        Parameters
        ----------
        state : mapping of names to arrays or CPU tensors
            As from `state_dict`. The projections of query, key and value, and their biases, may be stacked or not. For
            a layer with weights in fewer bits they may be in the dtype of the layer, and are rounded.

        Raises
        ------
        ValueError
            If names are missing or unexpected, or shapes differ: one message lists them. The layer does not change.
        TypeError
            If an array has not the dtype of the layer.
        """
        super().load_state_dict(state)

    @classmethod
    @names_sizes
    def from_weights(
        cls,
        weights: Mapping[str, Tensor],
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        add_zero_attn: bool = False,
        qk_norm: str | None = None,
        qk_norm_eps: float | None = None,
        rotary: RotaryEmbedding | None = None,
        dtype: DTypeLike | None = None,
        weight_dtype: WeightDType = None,
    ) -> Self:
        """Return a layer with a copy of these weights. Their shapes are its sizes.

        Parameters
        ----------
        weights : mapping of names to arrays or CPU tensors
            The names and shapes of `state_dict`. The projections of query, key and value may be one array,
            ``in_proj_weight`` [H D + Hk D + Hk Dv, E], or three: ``q_proj_weight`` [H D, E], ``k_proj_weight``
            [Hk D, kdim] and ``v_proj_weight`` [Hk Dv, vdim], with three biases. ``out_proj.weight`` is [out_dim, H Dv].
            The layer has the biases and the added key whose weights are given.
        num_heads : int
            H.
        num_kv_heads : int, optional
            Hk, as for `MultiHeadAttention`. Default: H.
        add_zero_attn, qk_norm, qk_norm_eps, rotary : optional
            As for `MultiHeadAttention`.
        dtype : {"float32", "float64", "float16", "bfloat16"}, optional
            The dtype of the layer. Weights in another dtype are rounded once. Default: the dtype of the weights.
        weight_dtype : str, optional
            The storage format of the matrices, as for `MultiHeadAttention`. Default: `dtype`, or "int8" if there are
            scales.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule. One message lists all missing and unexpected names, and all wrong shapes.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> rng = np.random.default_rng(0)
        >>> weights = {
        ...     "q_proj_weight": rng.standard_normal((64, 64), dtype=np.float32),
        ...     "k_proj_weight": rng.standard_normal((16, 64), dtype=np.float32),
        ...     "v_proj_weight": rng.standard_normal((16, 64), dtype=np.float32),
        ...     "out_proj.weight": rng.standard_normal((64, 64), dtype=np.float32),
        ... }
        >>> layer = mha.MultiHeadAttention.from_weights(weights, 8, num_kv_heads=2)
        >>> layer.head_dim, layer.bias, layer(np.ones((1, 10, 64), np.float32)).shape
        (8, False, (1, 10, 64))
        """
        function = f"{cls.__name__}.from_weights"
        with in_the_name_of(function):
            given = given_weights(function, weights, dtype, weight_dtype)
            sizes = sizes_of_weights(function, given, num_heads, num_kv_heads)
            parts = parts_of_weights(given.arrays, add_zero_attn)
            steps = checked_steps(function, qk_norm, qk_norm_eps, rotary)
            layer = bare(cls)
            layer._set_state(sizes, parts, given.dtype, given.weight_dtype, given.arrays, steps)
        return layer

    @classmethod
    def from_torch(cls, module: Any) -> Self:
        """Return the layer with the results of a ``torch.nn.MultiheadAttention``, with a copy of its weights.

        Four things differ. In boolean masks True means that a key takes part, the opposite of torch; a mask
        [B * H, Tq, Tk] becomes [B, H, Tq, Tk]. The layer is always batch-first; ``module.batch_first`` does not change
        the weights. Dropout is never applied: results are those of ``module.eval()``. The result of a query that sees
        no key is the bias of the last projection; in torch it may be NaN.

        Parameters
        ----------
        module : torch.nn.MultiheadAttention
            On the CPU, in float32, float64, float16 or bfloat16, of any configuration.

        Raises
        ------
        TypeError, ValueError
            If the module, or a part of it, is of a derived class, is parametrized, has forward hooks or a method of its
            own, or has an attribute or a part that its options do not give it: its results may differ.
        """
        function = f"{cls.__name__}.from_torch"
        state = checked_module(function, module, "MultiheadAttention").state_dict()
        with in_the_name_of(function):
            return cls.from_weights(state, module.num_heads, add_zero_attn=bool(module.add_zero_attn))

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
        """Whether all projections have biases, or the names of those with one: "query", "key", "value", "out"."""
        return self._parts.bias

    @property
    def add_bias_kv(self) -> bool:
        """Whether each query also sees a key and a value that are weights of the layer."""
        return self._parts.add_bias_kv

    @property
    def add_zero_attn(self) -> bool:
        """Whether each query also sees a key and a value of zeros."""
        return self._parts.add_zero_attn

    @property
    def qk_norm(self) -> str | None:
        """The kind of the norms of query and key, if there are any."""
        return self._steps.qk_norm

    @property
    def qk_norm_eps(self) -> float:
        """The eps of the norms of query and key."""
        return self._steps.qk_norm_eps

    @property
    def rotary(self) -> RotaryEmbedding | None:
        """The table of rotation angles of queries and keys, if there is one."""
        return self._steps.rotary

    def _configuration(self) -> dict[str, Any]:
        return self._sizes._asdict() | self._parts._asdict() | self._steps.configuration()

    def __getstate__(self) -> dict[str, Any]:
        sizes, parts = tuple(self._sizes), tuple(self._parts)
        dtypes = {"dtype": _core.dtype_name(self.dtype), "weight_dtype": self._weight_dtype}
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

    def _formats(self) -> dict[str, str]:
        formats = self._named_formats(("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"))
        *in_proj, out_proj = formats.values()
        if self._sizes.are_stackable and len(set(in_proj)) == 1:
            return {"in_proj_weight": in_proj[0], "out_proj.weight": out_proj}
        return formats

    def _with_rotary(self, rotary: RotaryEmbedding) -> Self:
        """Return the layer with another rotary table."""
        layer, steps = bare(type(self)), self._steps._replace(rotary=rotary)
        layer._set_state(self._sizes, self._parts, self.dtype, self._weight_dtype, self.state_dict(), steps)
        return layer

    def _state_shapes(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        shapes = state_shapes(self._sizes, self._parts, names) | self._steps.state_shapes(self._sizes)
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
