"""Attention as an operator of torch, with gradients."""

from __future__ import annotations

from typing import Any

from ...functions.needed_packages import needed_package

with needed_package("mha_native.interop.torch", "torch"):
    import torch
    from torch.autograd import forward_ad

    from .operator import Recorded, Transformed, is_watched, of_one_dtype, operator, refuse_tangents

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    query_offset: int | torch.Tensor = 0,
    key_lengths: torch.Tensor | None = None,
    key_mask: torch.Tensor | None = None,
    block_mask: torch.Tensor | None = None,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    return_lse: bool = False,
    num_threads: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Compute `mha_native.scaled_dot_product_attention` by an operator of torch, with gradients and compilation.

    Parameters
    ----------
    query : [B, H, Tq, D], [H, Tq, D] or [Tq, D]
    key : [B, Hk, Tk, D]
    value : [B, Hk, Tk, Dv]
    attn_mask, is_causal, query_offset, key_lengths, key_mask, block_mask, window, scale, softcap : optional
        As for `mha_native.scaled_dot_product_attention`, with tensors in place of arrays.
    alibi_slopes, position_bias, sinks : optional
        As there.
    dropout_p, dropout_seed : optional
        As there, also for gradients. The random numbers of torch have no part in it: give each step another seed.
    return_lse : bool, default False
    num_threads : int, optional
        Threads of this library, for the result and its gradients.

    Returns
    -------
    out : [B, H, Tq, Dv]
    lse : [B, H, Tq]
        Only with `return_lse`.

    Notes
    -----
    `mha_native.scaled_dot_product_attention` gives the same bits. This function calls the operator
    ``torch.ops.mha_native.scaled_dot_product_attention``:

    - ``torch.compile`` and ``torch.export`` put the operator into their graphs, also with ``fullgraph=True``.
    - `out` and `lse` have gradients for all floating-point arguments: query, key, value, an additive `attn_mask`,
      `alibi_slopes`, `position_bias` and `sinks`. The operator ``torch.ops.mha_native.attention_gradient`` computes
      them by `mha_native.attention_gradient`, without stored scores.
    - Second derivatives are not supported: ``backward`` through a gradient, and ``torch.func.hessian``, raise
      NotImplementedError. So are derivatives in forward mode: ``torch.func.jvp``, and any other call with a tangent,
      raises RuntimeError.
    - Transforms of torch.func apply, except in forward mode: ``grad``, ``vjp``, ``jacrev``, ``vmap``, and any nesting.
      ``vmap`` calls the operator once for each part.
    - Under ``torch.autocast``, a query, key, value and additive `attn_mask` of different dtypes, float64 excepted, are
      converted to the dtype of autocast. Tensors of one dtype keep it.
    - A call takes about 15 microseconds more than `mha_native.scaled_dot_product_attention`. Call that function where
      you need neither gradients nor compiled code.

    Tensors must be on the CPU; the function does not change them.

    Examples
    --------
    >>> import torch
    >>> from mha_native.interop.torch import scaled_dot_product_attention
    >>> query, key, value = torch.randn(3, 2, 8, 5, 64)
    >>> attend = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="eager")
    >>> attend(query, key.requires_grad_(), value, is_causal=True).sum().backward()
    >>> key.grad.shape
    torch.Size([2, 8, 5, 64])
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = of_one_dtype(query, key, value, attn_mask)
    differentiable = (query, key, value, attn_mask, alibi_slopes, position_bias, sinks)
    _refuse_tangents(*differentiable)
    start, starts = (0, query_offset) if isinstance(query_offset, torch.Tensor) else (query_offset, None)
    masks: tuple[Any, ...] = (starts, key_lengths, key_mask, block_mask)
    others = *masks, is_causal, start, window, scale, softcap, dropout_p, dropout_seed, num_threads
    if torch._C._are_functorch_transforms_active():
        out, lse = Transformed.apply(*differentiable, *others)
    elif is_watched(*differentiable, *masks):
        out, lse = operator(*differentiable, *others)
    else:
        out, lse = Recorded.apply(*differentiable, others)
    return (out, lse) if return_lse else out


def _refuse_tangents(*arguments: torch.Tensor | None) -> None:
    """Raise RuntimeError in forward mode."""
    if torch.compiler.is_compiling():
        return
    if any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in arguments):
        refuse_tangents()


def drawn_dropout(probability: float) -> dict[str, Any]:
    """Return the options of dropout for one call: the generator of torch draws its seed."""
    return {"dropout_p": probability, "dropout_seed": int(torch.randint(2**62, ()))}
