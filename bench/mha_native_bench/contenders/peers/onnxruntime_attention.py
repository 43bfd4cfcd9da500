"""ONNX Runtime: attention by the operator of the ONNX standard, and by two operators of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from onnx import helper

from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import Inputs
from mha_native_bench.cases.padding import padded, unpadded
from mha_native_bench.contenders.peers.onnxruntime_graph import CONTRIB, Model, heads_apart, side_by_side


def attention_models(case: Case, inputs: Inputs) -> list[Model]:
    if case.kind == "ragged":
        return [padded_attention(case, inputs)]
    models = [attention(case, inputs)]
    if case.Hk == case.H and case.softcap is None and case.dtype == "f32":
        models.append(contrib_attention(case, inputs))
    if case.Tq in (1, case.Tk) and knows_window(case) and not case.blocks and (case.admitted is None or case.Tq == 1):
        models.append(grouped_query_attention(case, inputs))
    return models


def knows_window(case: Case) -> bool:
    """Whether GroupQueryAttention can compute the window: it has causal windows over a prompt."""
    return case.window is None or (case.causal and case.Tq == case.Tk and case.window[0] >= 0 and case.window[1] <= 0)


def attention(case: Case, inputs: Inputs) -> Model:
    """The operator of the standard, with a mask of one row for each query, even if all rows are the same."""
    arrays = dict(zip("qkv", inputs.arrays, strict=True))
    names = ["q", "k", "v"]
    attributes: dict[str, Any] = {"is_causal": int(case.causal)}
    bias = case.alibi_bias()
    if case.softcap is not None:
        attributes["softcap"] = case.softcap
    if case.admitted is not None and not case.hides_by_query and bias is None:
        # Causal calls take a mask instead, as the operator would count their positions from the lengths.
        arrays["lengths"] = np.full(case.B, case.admitted, np.int64)
        names += ["", "", "", "lengths"]
    elif case.is_masked or bias is not None:
        seen = case.visible(case.Tq, case.Tk)
        arrays["mask"] = seen if bias is None else np.where(seen, bias, -np.inf).astype(bias.dtype)
        names.append("mask")
        attributes["is_causal"] = 0
    node = helper.make_node("Attention", names, ["out"], **attributes)
    return Model("Attention", [node], arrays, {"out": np.empty_like(arrays["q"])})


def padded_attention(case: Case, inputs: Inputs) -> Model:
    """Sequences padded to the longest, with lengths; causal calls with a mask, as lengths would move their diagonal."""
    arrays = {name: padded(case, array) for name, array in zip("qkv", inputs.arrays, strict=True)}
    names = ["q", "k", "v"]
    if case.causal:
        arrays["mask"] = np.repeat(np.arange(case.Tk) < case.lengths[:, None, None, None], case.Tq, axis=2)
        names.append("mask")
    else:
        arrays["lengths"] = case.lengths
        names += ["", "", "", "lengths"]
    node = helper.make_node("Attention", names, ["out"], is_causal=int(case.causal))
    return Model("padded", [node], arrays, {"out": np.empty_like(arrays["q"])}, layout=partial(unpadded, case))


def contrib_attention(case: Case, inputs: Inputs) -> Model:
    """MultiHeadAttention of ONNX Runtime, which is fused if nothing is masked; queries are [B, T, H D]."""
    query, key, value = inputs.arrays
    arrays = {"q": side_by_side(query), "k": key, "v": value}
    names = ["q", "k", "v"]
    bias, seen = case.alibi_bias(), None
    is_diagonal = case.causal and case.Tq == case.Tk  # it aligns the last query with the last key
    if case.window is not None or case.blocks or (case.causal and not is_diagonal):
        seen = case.visible(case.Tq, case.Tk)
        bias = np.zeros(seen.shape, np.float32)[None, None] if bias is None else bias
    elif case.admitted is not None:
        arrays["lengths"] = np.full(case.B, case.admitted, np.int32)
        names += ["", "lengths"]
    if bias is not None:
        arrays["bias"] = bias if seen is None else np.where(seen, bias, np.float32(-np.inf))
        names += [""] * (5 - len(names)) + ["bias"]
    attributes: dict[str, Any] = {"num_heads": case.H, "unidirectional": int(is_diagonal and seen is None)}
    node = helper.make_node("MultiHeadAttention", names, ["out"], domain=CONTRIB, **attributes)
    out = {"out": np.empty_like(arrays["q"])}
    return Model("MHA", [node], arrays, out, layout=partial(heads_apart, case))


def grouped_query_attention(case: Case, inputs: Inputs) -> Model:
    """GroupQueryAttention of ONNX Runtime, for decoders. Several queries are a prompt, and the cache is empty before.

    One query is the last token of a full cache: the operator writes its key and value where they already are.
    """
    query, key, value = inputs.arrays
    decodes, total = case.Tq == 1, case.admitted or case.Tk
    new = slice(total - 1, total) if decodes else slice(None)
    arrays = {name: side_by_side(x) for name, x in zip("qkv", (query, key[:, :, new], value[:, :, new]), strict=True)}
    cache = {"past_key": key, "past_value": value} if decodes else {}
    lengths = {"last": np.full(case.B, total - 1, np.int32), "total": np.array([total], np.int32)}
    names = ["q", "k", "v", *(cache or ("", "")), *lengths]
    attributes: dict[str, Any] = {"num_heads": case.H, "kv_num_heads": case.Hk, "causal": int(case.causal or decodes)}
    bias = case.alibi_bias()
    if bias is not None:
        arrays["bias"] = bias
        names += ["", "", "", "bias"]
    if case.softcap is not None:
        attributes["softcap"] = case.softcap
    if case.window is not None:
        attributes["local_window_size"] = case.window[0] + 1
    node = helper.make_node(
        "GroupQueryAttention", names, ["out", "present_key", "present_value"], domain=CONTRIB, **attributes
    )
    presents = (key, value) if cache else (np.empty_like(key), np.empty_like(value))
    return Model(
        "GQA",
        [node],
        {**arrays, **cache, **lengths},
        {"out": np.empty_like(arrays["q"]), "present_key": presents[0], "present_value": presents[1]},
        layout=partial(heads_apart, case),
    )
