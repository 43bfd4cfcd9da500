"""PyTorch: its fused attention, and its layers with and without their fast path, and written by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from mha_native_bench.cases.case import Array, Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.cases.oracle import joined
from mha_native_bench.cases.padding import padded, unpadded
from mha_native_bench.contenders.contender import CannotCompute, Contender, Program, of_arrays
from mha_native_bench.contenders.peers.torch_flex import flex_attend
from mha_native_bench.contenders.peers.torch_training import training_steps, training_turn

Run = Callable[[], Any]
Form = tuple[str, Run, Callable[[Any], Array]]  # a name, what is timed, and the conversion of its result to an array


class Torch(Contender):
    name = "torch"
    has_gradients = True
    kinds_of_few = frozenset({"maxsim"})

    def description(self) -> str:
        return f"{torch.__version__}; threads by torch.set_num_threads, in torch.inference_mode"

    def programs(self, case: Case, inputs: Inputs, threads: int) -> list[Program]:
        case = of_arrays(case)
        if case.kind in ("sentences", "images", "decoder"):
            raise CannotCompute("by transformers")
        if case.kind == "maxsim" and case.cache:
            raise CannotCompute("no products of int8 with a scale for each row")
        if case.weights == "bf16" or case.cache:
            raise CannotCompute("no 16 bits behind float32")
        if case.weights == "int4":
            raise CannotCompute("no 4 bits on a CPU without another package")
        if case.kind == "training":
            return [
                Program(self.name, threads, run, training_turn(threads), array_of, variant)
                for variant, run in training_steps(case, inputs)
            ]
        if case.is_backward:
            run = (linear_backward if case.kind == "linear_backward" else attention_backward)(case, inputs)
            return [Program(self.name, threads, run, turn(threads, True), lambda found: joined(map(array_of, found)))]
        forms = {
            "sdpa": dense, "ragged": padded_batch, "encoder_layer": encoder_layers, "maxsim": late_interaction,
        }.get(case.kind, layers)  # fmt: skip
        return [
            # Layers alone read the switch for the fast path.
            Program(self.name, threads, run, turn(threads, variant != "slow path"), to_array, variant)
            for variant, run, to_array in forms(case, inputs)
        ]


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor on the same memory. Torch does not know the bfloat16 of ml_dtypes: it gets the bits as integers."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> Array:
    """The same numbers as a NumPy array, bfloat16 as float32."""
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def turn(threads: int, fast_path: bool) -> Callable[[], AbstractContextManager[None]]:
    """Sets the state in which a program runs."""

    @contextmanager
    def context() -> Iterator[None]:
        torch.set_num_threads(threads)
        torch.backends.mha.set_fastpath_enabled(fast_path)
        with torch.inference_mode():
            yield

    return context


def dense(case: Case, inputs: Inputs) -> Iterator[Form]:
    """Fused attention with Boolean and with added masks, and `flex_attention` for windows, softcaps
    and block masks."""
    attend = functional.scaled_dot_product_attention
    query, key, value = map(tensor_of, inputs.arrays)
    if case.softcap is None:
        options: dict[str, Any] = {"is_causal": case.causal, "enable_gqa": case.Hk != case.H}
        for variant, mask in masks(case, query.dtype):
            if mask is not None:  # which includes causality, as it refuses a mask beside is_causal
                options.update(is_causal=False, attn_mask=mask)
            yield variant, partial(attend, query, key, value, **options), array_of
    if case.Tq == 1 and case.Hk != case.H and not case.options:  # a group of heads as queries of one head
        groups = query.view(case.B, case.Hk, -1, case.D)
        yield "groups as queries", partial(attend, groups, key, value), lambda out: array_of(out.view(query.shape))
    if case.window is not None or case.softcap is not None or case.blocks:
        yield "flex", flex_attend(case, query, key, value), array_of


def late_interaction(_: Case, inputs: Inputs) -> Iterator[Form]:
    """The products of all tokens, their maxima, and the sums of these, as models write it."""
    query, documents = map(tensor_of, inputs.arrays)

    def by_product() -> torch.Tensor:
        products = documents @ query.T
        return products.amax(1).sum(1, dtype=products.dtype if products.dtype == torch.float64 else torch.float32)

    def by_einsum() -> torch.Tensor:
        products = torch.einsum("qd,bkd->bqk", query, documents)
        return products.amax(2).sum(1, dtype=products.dtype if products.dtype == torch.float64 else torch.float32)

    yield "product", by_product, array_of
    yield "einsum", by_einsum, array_of


def linear_backward(_: Case, inputs: Inputs) -> Run:
    """The products that autograd computes for a linear map, without its bookkeeping."""
    x, weight, dout = map(tensor_of, inputs.arrays)
    rows, of_rows = x.flatten(0, -2), dout.flatten(0, -2)
    return lambda: (dout @ weight, of_rows.T @ rows, of_rows.sum(0))


def attention_backward(case: Case, inputs: Inputs) -> Run:
    """The operator that autograd calls for fused attention, from the results of a call that is not timed."""
    if case.Hk != case.H:
        raise CannotCompute("no gradient of grouped heads on a CPU")
    operators = torch.ops.aten
    query, key, value, dout = map(tensor_of, inputs.arrays)
    attend = operators._scaled_dot_product_flash_attention_for_cpu
    out, lse = attend(query, key, value, 0.0, case.causal)
    differentiate = operators._scaled_dot_product_flash_attention_for_cpu_backward
    return lambda: differentiate(dout, query, key, value, out, lse, 0.0, case.causal)


def masks(case: Case, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor | None]]:
    """The masks and biases of the case as one tensor, by the name of its form; None if there are none."""
    bias = case.alibi_bias()
    if not case.is_masked and bias is None:
        yield "", None
        return
    seen = torch.from_numpy(case.visible(case.Tq if case.hides_by_query else 1, case.Tk))
    if bias is None:
        yield "Boolean mask", seen[None, None]
        added = torch.zeros(1, 1, *seen.shape, dtype=dtype)
    else:
        added = tensor_of(bias)
    yield "added mask", added.masked_fill(~seen, -torch.inf)


def padded_batch(case: Case, inputs: Inputs) -> Iterator[Form]:
    """Sequences padded to the longest, as torch has no attention of ragged batches on a CPU."""
    if case.causal:
        raise CannotCompute("no ragged batch, and no mask beside is_causal")
    query, key, value = (tensor_of(padded(case, array)) for array in inputs.arrays)
    unmasked = torch.arange(case.Tk)[None, None, None] < torch.from_numpy(case.lengths)[:, None, None, None]
    attend = partial(functional.scaled_dot_product_attention, enable_gqa=case.Hk != case.H)
    yield "padded", partial(attend, query, key, value, attn_mask=unmasked), lambda out: unpadded(case, array_of(out))


def layers(case: Case, inputs: Inputs) -> Iterator[Form]:
    maps = linear_maps(case, inputs.state)
    yield "by hand", (step if case.kind == "step" else by_hand)(case, inputs, maps), array_of
    if case.kind == "step" or case.weights:  # nn.MultiheadAttention has neither a cache nor int8
        return
    x, memory = tensor_of(inputs.arrays[0]), tensor_of(inputs.arrays[-1])
    layer = torch.nn.MultiheadAttention(case.E, case.H, batch_first=True, dtype=x.dtype).eval()
    layer.load_state_dict({name: tensor_of(array) for name, array in inputs.state.items()})
    hidden = torch.ones(case.Tq, case.Tk, dtype=torch.bool).triu(1) if case.causal else None

    def forward() -> torch.Tensor:
        out: torch.Tensor = layer(x, memory, memory, need_weights=False, attn_mask=hidden, is_causal=case.causal)[0]
        return out

    if not case.is_cross:  # the fast path is for self-attention only
        yield "fast path", forward, array_of
    yield "slow path", forward, array_of


def by_hand(case: Case, inputs: Inputs, maps: Any) -> Run:
    """The layer as models write it: one linear map in, or two, fused attention, one linear map out."""
    x, memory = tensor_of(inputs.arrays[0]), tensor_of(inputs.arrays[-1])
    *project, project_out = maps

    def run() -> torch.Tensor:
        heads = in_heads(case, project[0](x))
        if case.is_cross:
            heads += in_heads(case, project[1](memory))
        query, key, value = heads
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=case.causal)
        out: torch.Tensor = project_out(attended.transpose(1, 2).flatten(2))
        return out

    return run


def step(case: Case, inputs: Inputs, maps: Any) -> Run:
    """The last token attends to keys and values of all tokens, after its own are written over the last ones."""
    tokens = tensor_of(inputs.arrays[0])
    token, (project, project_out) = tokens[:, -1:], maps
    with torch.inference_mode():
        _, key, value = (heads.contiguous() for heads in in_heads(case, project(tokens)))

    def run() -> torch.Tensor:
        query, key[:, :, -1:], value[:, :, -1:] = in_heads(case, project(token))
        attended = functional.scaled_dot_product_attention(query, key, value)
        out: torch.Tensor = project_out(attended.transpose(1, 2).flatten(2))
        return out

    return run


def in_heads(case: Case, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows [B, T, n E] as n tensors [B, H, T, D]."""
    heads: tuple[torch.Tensor, ...] = rows.view(*rows.shape[:2], -1, case.H, case.D).permute(2, 0, 3, 1, 4).unbind()
    return heads


def linear_maps(case: Case, state: dict[str, Array], attention: str = "", others: tuple[str, ...] = ()) -> Any:
    """Linear modules: into queries, keys and values (two of them if there is a memory), out of the heads, and `others`.

    With int8 weights they are quantized dynamically: weights once, with a scale for each output feature, and rows in
    each call; attention stays in f32.
    """
    weight, bias = state[f"{attention}in_proj_weight"], state[f"{attention}in_proj_bias"]
    parts = [slice(case.E), slice(case.E, None)] if case.is_cross else [slice(None)]
    given = [(weight[part], bias[part]) for part in parts]
    given += [(state[f"{name}.weight"], state[f"{name}.bias"]) for name in (f"{attention}out_proj", *others)]
    maps = torch.nn.Sequential()
    for weight, bias in given:
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=tensor_of(weight).dtype).eval()
        linear.load_state_dict({"weight": tensor_of(weight), "bias": tensor_of(bias)})
        maps.append(linear)
    if not case.weights:
        return maps
    qconfig = torch.ao.quantization.per_channel_dynamic_qconfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this function will move to another package
        return torch.ao.quantization.quantize_dynamic(maps, {torch.nn.Linear: qconfig})


def encoder_layers(case: Case, inputs: Inputs) -> Iterator[Form]:
    x, state = tensor_of(inputs.arrays[0]), {name: tensor_of(array) for name, array in inputs.state.items()}
    yield "by hand", encoder_by_hand(case, inputs), array_of
    if case.weights:
        return
    layer = torch.nn.TransformerEncoderLayer(
        case.E, case.H, case.F, activation=case.activation, batch_first=True, dtype=x.dtype
    ).eval()
    layer.load_state_dict(state)
    yield "fast path", partial(layer, x), array_of
    yield "slow path", partial(layer, x), array_of


def encoder_by_hand(case: Case, inputs: Inputs) -> Run:
    """An encoder layer as models write it: attention by hand, norms and feed-forward."""
    x = tensor_of(inputs.arrays[0])
    *maps, up, down = linear_maps(case, inputs.state, "self_attn.", ("linear1", "linear2"))
    attend = by_hand(case, inputs, maps)
    norms = [[tensor_of(inputs.state[f"norm{i}.{end}"]) for end in ("weight", "bias")] for i in (1, 2)]
    activate = getattr(functional, case.activation)

    def run() -> torch.Tensor:
        rows = functional.layer_norm(x + attend(), (case.E,), *norms[0])
        return functional.layer_norm(rows + down(activate(up(rows))), (case.E,), *norms[1])

    return run
