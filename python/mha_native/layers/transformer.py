"""The common part of encoders and decoders: one layer of a transformer, and a stack of layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .. import _core
from ..functions.arrays import Tensor
from ..functions.instances import bare
from ..functions.messages import in_the_name_of, name_of_type, rename_arguments
from ..functions.options import ATTENTION_OPTIONS, ModelOptions, core_options
from ..functions.token_cache import TokenCache
from ._constructor_arguments import DecoderArguments, Seed, WeightDType, checked_generator, checked_size
from ._layer_call import MEMORY_OPTIONS, DecoderOptions, LayerOptions, run
from ._layer_options import checked_layer_options, merged_options
from ._layer_tape import record_layer
from ._module_state import ModuleState
from ._norms_of_layers import NORMS, OUTPUT_NORMS, arguments_of_norms, cores_of_norms, new_norm
from ._snapshots import composed
from ._tape import Backward, Recording, Tape, add_gradients, no_gradients, record, recorded
from ._torch_modules import checked_module
from .experts import Experts
from .feed_forward import FeedForward
from .layer_norm import LayerNorm
from .multi_head_attention import MultiHeadAttention
from .norm import Norm
from .rotary_embedding import RotaryEmbedding

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on


class Recorded(ModuleState):
    """A layer or a stack whose calls can be recorded."""

    _reads_memory: ClassVar[bool]

    def forward_and_record(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        recompute: str = "none",
        wrt: Collection[str] | None = None,
        num_threads: int | None = None,
        **options: Unpack[DecoderOptions],
    ) -> tuple[Tensor, Tape]:
        """Call the layer or the stack, and record what the gradients need.

        Parameters
        ----------
        x : [B, T, E], [T, E], or [N, E] with `cu_seqlens`
            As for the call. Do not change it before `Tape.backward`.
        memory : [B, S, Em] or [S, Em], optional
            As for the call of a decoder.
        recompute : {"none", "attention", "layer"}, default "none"
            What the backward pass computes again instead of keeping it. "none": cheap steps only, such as norms.
            "attention": also queries, keys, values and heads, in every attention. "layer": the whole forward pass of
            each layer, of which only the input is kept. Gradients have the same bits.
        wrt : collection of str, optional
            The wanted gradients; others take no time, and nothing is kept for them. Names of `state_dict`; parts of
            such names up to a dot, for all weights that begin with them, such as "layers.0" or "layers.1.self_attn";
            inputs, "x" and "memory"; options of self-attention that have gradients, as for
            `MultiHeadAttention.forward_and_record`. Default: all weights and inputs.
        num_threads : int, optional
            Threads for the call and its backward pass; default: `mha_native.num_threads`.
        **options
            As for the call, without caches.

        Returns
        -------
        out : [B, T, E]
            With the bits of the call.
        tape : Tape
            Its `backward` returns the gradients.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule. Weights must be stored in the dtype of the layer, and there is no cache.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> layer = mha.EncoderLayer(64, 4, 256, seed=0)
        >>> x = np.random.default_rng(1).standard_normal((2, 10, 64), dtype=np.float32)
        >>> y, tape = layer.forward_and_record(x, wrt=("linear2", "norm2"))
        >>> gradients = tape.backward(y)  # of sum(y ** 2) / 2
        >>> list(gradients.weights)
        ['linear2.weight', 'linear2.bias', 'norm2.weight', 'norm2.bias']
        """
        function = f"{type(self).__name__}.forward_and_record"
        given: Any = options
        extras = ATTENTION_OPTIONS | (MEMORY_OPTIONS.keys() | {"cu_seqlens"} if self._reads_memory else {"cu_seqlens"})
        core_options(function, given, extras)  # it refuses unknown names
        inputs = {"x": x, "memory": memory}
        if memory is not None and not self._reads_memory:
            raise TypeError(f"{function}: memory is for a decoder; got {name_of_type(memory)}")
        if memory is None and self._reads_memory:
            raise TypeError(f"{function}: memory must be given")
        if memory is not None and options.get("cu_seqlens") is not None:
            raise ValueError(f"{function}: cu_seqlens cannot be combined with memory")
        return record(self, inputs, given, recompute, wrt, num_threads)


class TransformerLayer(Recorded):
    """Self-attention, attention to a memory if there is one, and a feed-forward, with their norms."""

    cross_attn: MultiHeadAttention | None = None
    # The norms of the parts in the order in which they run; the third is for a layer with cross_attn. Each may be
    # missing. Output norms are applied to the result of a part before it is added to the input of that part.
    norm1: Norm | None = None
    norm2: Norm | None = None
    norm3: Norm | None = None
    output_norm1: Norm | None = None
    output_norm2: Norm | None = None
    output_norm3: Norm | None = None
    parallel = False  # whether the feed-forward reads the input of the layer; then norm_first is True
    layer_options = None  # only a stack has them

    _reads_memory: ClassVar[bool]
    _is_causal: ClassVar[bool]  # the default of a call
    _torch_name: ClassVar[str]

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int,
        *,
        memory_dim: int | None = None,
        activation: str = "relu",
        gated: bool = False,
        norm_first: bool = False,
        norm: str = "layer",
        output_norms: bool = False,
        eps: float | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        qk_norm: str | None = None,
        qk_norm_eps: float | None = None,
        rotary: RotaryEmbedding | None = None,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        seed: Seed = None,
    ) -> None:
        name = type(self).__name__
        if memory_dim is not None and not self._reads_memory:
            raise TypeError(f"{name}: memory_dim is for a layer that reads a memory; got {memory_dim}")
        norm_first, bias = _core.boolean(name, "norm_first", norm_first), _core.boolean(name, "bias", bias)
        output_norms = _core.boolean(name, "output_norms", output_norms)
        weights: dict[str, Any] = {"bias": bias, "dtype": dtype, "weight_dtype": weight_dtype}
        weights["seed"] = checked_generator(name, seed)  # one for all parts
        heads: dict[str, Any] = {"num_kv_heads": num_kv_heads, "head_dim": head_dim}

        def attention(features: int, **steps: Any) -> MultiHeadAttention:
            return MultiHeadAttention(embed_dim, num_heads, **heads, kdim=features, vdim=features, **weights, **steps)

        with in_the_name_of(name):
            self_attn = attention(embed_dim, qk_norm=qk_norm, qk_norm_eps=qk_norm_eps, rotary=rotary)
            cross_attn = None
            if self._reads_memory:
                features = embed_dim if memory_dim is None else checked_size(name, "memory_dim", memory_dim)
                cross_attn = attention(features)
            feed_forward = FeedForward(embed_dim, feedforward_dim, activation=activation, gated=gated, **weights)
            sublayers = 3 if self._reads_memory else 2
            places = NORMS[:sublayers] + OUTPUT_NORMS[: sublayers * output_norms]
            norms = {place: new_norm(norm, embed_dim, eps, bias, dtype) for place in places}
        self._set_parts(self_attn, cross_attn, feed_forward, norms, norm_first)

    def _call(
        self,
        x: Tensor,
        memory: Tensor | None,
        memory_cache: TokenCache | None,
        cache: TokenCache | None,
        need_weights: bool,
        out: Tensor | None,
        num_threads: int | None,
        options: Any,
    ) -> Tensor:
        caches = None if cache is None else [cache]
        memory_caches = None if memory_cache is None else [memory_cache]
        try:
            result, weights = run(self, x, memory, memory_caches, caches, need_weights, out, num_threads, options)
        except (TypeError, ValueError) as error:  # it names the arguments of a stack
            rename_arguments(error, memory_caches="memory_cache", caches="cache")
            raise
        return (result, weights[0]) if need_weights else result

    def new_cache(
        self,
        batch_size: int,
        capacity: int,
        *,
        dtype: DTypeLike | None = None,
        page_size: int | None = None,
        num_pages: int | None = None,
    ) -> TokenCache:
        """Return an empty cache of the self-attention, for `capacity` tokens in each of `batch_size` sequences.

        The other arguments are as for `MultiHeadAttention.new_cache`.
        """
        with in_the_name_of(f"{type(self).__name__}.new_cache"):
            return self.self_attn.new_cache(batch_size, capacity, dtype=dtype, page_size=page_size, num_pages=num_pages)

    @property
    def embed_dim(self) -> int:
        """E, the features of a token."""
        return self.self_attn.embed_dim

    @classmethod
    def from_torch(cls, module: Any) -> Self:
        """Return the layer with the results of a layer of torch, with a copy of its weights.

        Four things differ. The layer is batch-first; torch's is not by default. In boolean masks True means that a key
        takes part, the opposite of torch. The layer of a decoder is causal by default, and torch's needs a mask:
        ``layer(x, memory, is_causal=False)`` has the results of ``module(x, memory)``, and ``layer(x, memory)`` the
        results with ``tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(T)``. Dropout is never applied:
        results are those of ``module.eval()``. `MultiHeadAttention.from_torch` says which modules are refused.

        Parameters
        ----------
        module : torch.nn.TransformerEncoderLayer or TransformerDecoderLayer
            The module of the same name, on the CPU, in float32, float64, float16 or bfloat16, pre-LN or post-LN, with
            or without biases, with torch's relu, gelu or silu.
        """
        function = f"{cls.__name__}.from_torch"
        module = checked_module(function, module, cls._torch_name)
        with in_the_name_of(function):
            self_attn = MultiHeadAttention.from_torch(module.self_attn)
            cross_attn = MultiHeadAttention.from_torch(module.multihead_attn) if cls._reads_memory else None
        feed_forward = FeedForward._from_torch(function, module)
        norms = {
            place: LayerNorm._from_torch(function, getattr(module, place), self_attn.dtype)
            for place in NORMS[: 3 if cls._reads_memory else 2]
        }
        return cls._of_parts(function, self_attn, cross_attn, feed_forward, norms, bool(module.norm_first))

    @classmethod
    def _of_parts(
        cls,
        function: str,
        self_attn: MultiHeadAttention,
        cross_attn: MultiHeadAttention | None,
        feed_forward: FeedForward | Experts,
        norms: Mapping[str, Norm | None],
        norm_first: bool,
    ) -> Self:
        """Return a layer of the parts that a caller of `function` gave, after a check that they fit together."""
        attentions = {"self_attn": self_attn} | ({"cross_attn": cross_attn} if cls._reads_memory else {})
        for name, part in attentions.items():
            check_part(function, name, part, MultiHeadAttention)
        check_part(function, "feed_forward", feed_forward, FeedForward, Experts)
        given = {place: norm for place, norm in norms.items() if norm is not None}
        for place, norm in given.items():
            check_part(function, place, norm, Norm)
        layer = bare(cls)
        norm_first = _core.boolean(function, "norm_first", norm_first)
        layer._set_parts(self_attn, cross_attn, feed_forward, given, norm_first)
        with in_the_name_of(function, self_attention="self_attn", cross_attention="cross_attn"):
            layer._stack()  # it compares sizes and dtypes
        return layer

    def _set_parts(
        self,
        self_attn: MultiHeadAttention,
        cross_attn: MultiHeadAttention | None,
        feed_forward: FeedForward | Experts,
        norms: Mapping[str, Norm],
        norm_first: bool,
    ) -> None:
        self.self_attn, self.feed_forward, self.norm_first = self_attn, feed_forward, norm_first
        if cross_attn is not None:
            self.cross_attn = cross_attn
        for place, norm in norms.items():
            setattr(self, place, norm)

    def _record(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        if recording.is_needed:
            return record_layer(self, arrays, options, recording)
        x, memory = arrays
        return run(self, x, memory, None, None, False, None, recording.num_threads, dict(options))[0], no_gradients

    def _children(self) -> dict[str, ModuleState]:
        # The names of torch.
        parts = {"self_attn.": self.self_attn, "multihead_attn.": self.cross_attn, "": self.feed_forward}
        norms = {f"{place}.": getattr(self, place) for place in NORMS + OUTPUT_NORMS}
        return {prefix: part for prefix, part in {**parts, **norms}.items() if part is not None}

    def _configuration(self) -> dict[str, Any]:
        attention, hidden = self.self_attn, self.feed_forward
        sizes = {"embed_dim": attention.embed_dim, "num_heads": attention.num_heads}
        kinds: dict[str, Any] = {"experts": hidden}
        if isinstance(hidden, FeedForward):
            kinds = {"feedforward_dim": hidden.feedforward_dim, "activation": hidden.activation, "gated": hidden.gated}
        kinds |= {"norm_first": self.norm_first} | arguments_of_norms(self)
        kinds |= {"parallel": True} if self.parallel else {}
        heads = {"num_kv_heads": attention.num_kv_heads, "head_dim": attention.head_dim}
        memory = {} if self.cross_attn is None else {"memory_dim": self.cross_attn.kdim}
        return {**sizes, **kinds, **heads, "bias": attention.bias, **attention._steps.configuration(), **memory}

    def _stack(self) -> _core.TransformerStack:
        return composed(self, lambda: stack_of(type(self).__name__, [self], None))

    def _parts(self) -> tuple[Any, ...]:
        """Return the arguments of a layer of the core, with the current weights of the parts."""
        cross_attn = None if self.cross_attn is None else self.cross_attn._core
        norms, output_norms = cores_of_norms(self, NORMS), cores_of_norms(self, OUTPUT_NORMS)
        placement = 2 if self.parallel else int(self.norm_first)  # of NormPlacement
        return self.self_attn._core, cross_attn, self.feed_forward._core, norms, output_norms, placement


class TransformerStack(Recorded):
    """Layers one after another, and a final norm if there is one."""

    layers: tuple[Any, ...]  # of the class _layer_type
    norm: Norm | None
    layer_options: tuple[dict[str, Any], ...] | None = None

    _layer_type: ClassVar[type[TransformerLayer]]
    _reads_memory: ClassVar[bool] = False
    _is_causal: ClassVar[bool]  # the default of a call
    _torch_name: ClassVar[str]

    def __init__(
        self,
        num_layers: int,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int,
        *,
        final_norm: bool = False,
        layer_options: Sequence[ModelOptions] | None = None,
        **arguments: Unpack[DecoderArguments],
    ) -> None:
        name, sizes = type(self).__name__, (embed_dim, num_heads, feedforward_dim)
        count = checked_size(name, "num_layers", num_layers)
        final_norm = _core.boolean(name, "final_norm", final_norm)
        arguments["seed"] = checked_generator(name, arguments.get("seed"))  # one for all layers
        with in_the_name_of(name):
            self.layers = tuple(self._layer_type(*sizes, **arguments) for _ in range(count))
        of_layers = self.layers[0].norm1
        self.norm = type(of_layers)(**of_layers._configuration(), dtype=of_layers.dtype) if final_norm else None
        if layer_options is not None:
            self.layer_options = checked_layer_options(name, layer_options, count)

    def __call__(
        self,
        x: Tensor,
        *,
        caches: Sequence[TokenCache] | None = None,
        need_weights: bool = False,
        out: Tensor | None = None,
        num_threads: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> Tensor:
        """Take `x` through all layers.

        Parameters
        ----------
        x : [B, T, E] or [T, E]
            NumPy array, or CPU tensor of any library that speaks DLPack, of the dtype of the layers.
        caches : sequence of KVCache, optional
            One for each layer, from `new_caches`: the tokens before these. The tokens of `x` are appended.
        need_weights : bool, default False
            Return the weights of the self-attentions, too.
        out : [B, T, E], optional
            Array to write the result to. It may be `x` itself, and must not overlap another input.
        num_threads : int, optional
            Threads for this call; default: `mha_native.num_threads`.
        cu_seqlens, new_lengths, sequences : optional
            As for the call of `EncoderLayer`, the same for all layers.
        **options
            The score options of the self-attention of every layer, in addition to `layer_options`; and `positions` for
            the layers that have a `RotaryEmbedding`.

        Returns
        -------
        out : [B, T, E]
        weights : list of [B, H, T, Tk]
            Only with `need_weights`: one for each layer; without B if `x` has no batch axis.
        """
        return self._call(x, None, None, caches, need_weights, out, num_threads, options)

    def _call(
        self,
        x: Tensor,
        memory: Tensor | None,
        memory_caches: Sequence[TokenCache] | None,
        caches: Sequence[TokenCache] | None,
        need_weights: bool,
        out: Tensor | None,
        num_threads: int | None,
        options: Any,
    ) -> Tensor:
        result, weights = run(self, x, memory, memory_caches, caches, need_weights, out, num_threads, options)
        return (result, weights) if need_weights else result

    def new_caches(
        self,
        batch_size: int,
        capacity: int,
        *,
        dtype: DTypeLike | None = None,
        page_size: int | None = None,
        num_pages: int | None = None,
    ) -> list[TokenCache]:
        """Return empty caches for `capacity` tokens in each of `batch_size` sequences, one for each layer.

        The other arguments are as for `MultiHeadAttention.new_cache`; each layer has `num_pages` pages.
        """
        with in_the_name_of(f"{type(self).__name__}.new_caches"):
            return [
                layer.new_cache(batch_size, capacity, dtype=dtype, page_size=page_size, num_pages=num_pages)
                for layer in self.layers
            ]

    @property
    def embed_dim(self) -> int:
        """E, the features of a token."""
        return int(self.layers[0].embed_dim)

    @classmethod
    def from_layers(
        cls, layers: Sequence[Any], norm: Norm | None = None, *, layer_options: Sequence[ModelOptions] | None = None
    ) -> Self:
        """Return a stack of these layers. It shares them with the caller, and does not copy their weights.

        Parameters
        ----------
        layers : sequence of EncoderLayer, for a `Decoder` of DecoderLayer
            At least one, in the order in which they run. All must have the same features and the same dtype.
        norm : LayerNorm or RMSNorm, optional
            Applied to the result of the last layer.
        layer_options : sequence of dict, optional
            Score options of each layer, as for the constructor.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or if layers do not fit together.

        Examples
        --------
        >>> import numpy as np
        >>> import mha_native as mha
        >>> local, wide = (mha.EncoderLayer(64, 4, hidden, norm_first=True, seed=0) for hidden in (128, 256))
        >>> encoder = mha.Encoder.from_layers([local, wide], mha.LayerNorm(64), layer_options=[{"window": (3, 3)}, {}])
        >>> x = np.random.default_rng(1).standard_normal((2, 10, 64), dtype=np.float32)
        >>> np.array_equal(encoder(x), encoder.norm(wide(local(x, window=(3, 3)))))
        True
        """
        function = f"{cls.__name__}.from_layers"
        if not isinstance(layers, Sequence):
            raise TypeError(f"{function}: layers must be a sequence of layers; got {name_of_type(layers)}")
        stack = bare(cls)
        stack.layers = tuple(layers)
        if not stack.layers:
            raise ValueError(f"{function}: layers must have at least one layer; got none")
        for i, layer in enumerate(stack.layers):
            check_part(function, f"layers[{i}]", layer, cls._layer_type)
        if norm is not None:
            check_part(function, "norm", norm, Norm)
        stack.norm = norm
        if layer_options is not None:
            stack.layer_options = checked_layer_options(function, layer_options, len(stack.layers))
        with in_the_name_of(function, final_norm="norm", self_attention="self_attn", cross_attention="cross_attn"):
            stack._stack()  # it compares sizes and dtypes
        return stack

    @classmethod
    def from_torch(cls, module: Any) -> Self:
        """Return the stack with the results of a stack of torch, with a copy of its weights.

        The ``from_torch`` of a layer lists the differences. Torch's ``enable_nested_tensor`` changes only rows of
        padding.

        Parameters
        ----------
        module : torch.nn.TransformerEncoder or TransformerDecoder
            The module of the same name, with or without a final norm, such as the ``encoder`` and the ``decoder`` of a
            ``torch.nn.Transformer``.
        """
        function = f"{cls.__name__}.from_torch"
        module = checked_module(function, module, cls._torch_name)
        with in_the_name_of(function):
            layers = [
                cls._layer_type.from_torch(layer) for layer in checked_module(function, module.layers, "ModuleList")
            ]
        norm = None if module.norm is None else LayerNorm._from_torch(function, module.norm, layers[0].dtype)
        with in_the_name_of(function):
            return cls.from_layers(layers, norm)

    def _start(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        return self._record(arrays, options, recording)  # each of the layers is recorded as `recompute` says

    def _record(
        self, arrays: tuple[Any, ...], options: Mapping[str, Any], recording: Recording
    ) -> tuple[NDArray[Any], Backward]:
        x, memory = arrays
        scores: dict[str, Any] = dict(options)
        extras = {name: scores.pop(name) for name in options if name not in ATTENTION_OPTIONS}
        if self._is_causal:
            scores.setdefault("is_causal", True)
        of_layers = [scores] * len(self.layers)
        if self.layer_options is not None:
            of_layers = merged_options(type(self).__name__, scores, self.layer_options, self.dtype)
        is_reached, others = "x" in recording.inputs, recording.inputs - {"x"}
        kept: list[tuple[Any, Backward]] = []  # of each layer through which gradients go: its input
        for i, (layer, of_layer) in enumerate(zip(self.layers, of_layers, strict=True)):
            part = recording.part(f"layers.{i}.", layer, *others, *["x"] * is_reached)
            given = x
            x, backward_of_layer = recorded(layer, (x, memory), of_layer | extras, part)
            if part.is_needed:
                kept.append((given if kept or i else None, backward_of_layer))
                is_reached = True
        norm = recording.part("norm.", self.norm, *["x"] * is_reached)
        last = x if norm.is_needed and self.norm is not None else None
        if self.norm is not None:
            x = self.norm._core.forward(x, None, recording.num_threads)

        def backward(arrays: tuple[Any, ...], dout: NDArray[Any], weights: dict[str, Any]) -> dict[str, Any]:
            nonlocal last
            first, memory = arrays
            if self.norm is not None and last is not None:
                dout = self.norm._through(norm, last, dout, weights).get("x", dout)
                last = None
            inputs: dict[str, Any] = {}
            while kept:
                given, of_layer = kept.pop()
                found = of_layer((first if given is None else given, memory), dout, weights)
                dout = found.pop("x", dout)
                add_gradients(inputs, found, recording.num_threads)
            return inputs | ({"x": dout} if "x" in recording.inputs else {})

        return x, backward

    def _children(self) -> dict[str, ModuleState]:
        layers: dict[str, ModuleState] = {f"layers.{i}.": layer for i, layer in enumerate(self.layers)}
        return layers if self.norm is None else layers | {"norm.": self.norm}

    def _configuration(self) -> dict[str, Any]:
        own = {} if self.layer_options is None else {"layer_options": self.layer_options}
        of_layers = self.layers[0]._configuration()
        return {"num_layers": len(self.layers), **of_layers, "final_norm": self.norm is not None, **own}

    def _stack(self) -> _core.TransformerStack:
        return composed(self, lambda: stack_of(type(self).__name__, self.layers, self.norm))


def check_part(function: str, name: str, part: object, *kinds: type) -> None:
    """TypeError unless `part`, an argument called `name`, is one of `kinds`."""
    if not isinstance(part, kinds):
        known = " or ".join("LayerNorm or RMSNorm" if kind is Norm else kind.__name__ for kind in kinds)
        raise TypeError(f"{function}: {name} must be of class {known}; got {name_of_type(part)}")


def stack_of(name: str, layers: Iterable[TransformerLayer], norm: Norm | None) -> _core.TransformerStack:
    """Return a stack of the core, with the current weights of the layers and the norm. Messages call it `name`."""
    return _core.TransformerStack(name, [layer._parts() for layer in layers], None if norm is None else norm._core)
