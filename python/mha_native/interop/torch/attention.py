"""Attention as an operator of torch, with gradients."""

from __future__ import annotations

from ...functions.needed_packages import needed_package

with needed_package("mha_native.interop.torch", "torch"):
    import torch
    from torch.autograd import forward_ad

    from .operator import operator

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
    return_lse : bool, default False
    num_threads : int, optional
        Threads of this library, for the result. Gradients use the threads of torch.

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
    - `out` and `lse` have gradients, also of higher order, for all floating-point arguments: query, key, value, an
      additive `attn_mask`, `alibi_slopes`, `position_bias` and `sinks`. Operations of torch recompute them and store
      all [B, H, Tq, Tk] scores, so they need the time and memory of unfused attention.
    - Derivatives in forward mode are not supported: ``torch.func.jvp``, and any other call with a tangent, is a
      RuntimeError.
    - A call takes some tens of microseconds more than `mha_native.scaled_dot_product_attention`. Call that function
      where you need neither gradients nor compiled code.

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
    differentiable = (query, key, value, attn_mask, alibi_slopes, position_bias, sinks)
    _refuse_tangents(*differentiable)
    start, starts = (0, query_offset) if isinstance(query_offset, torch.Tensor) else (query_offset, None)
    masks = (starts, key_lengths, key_mask, block_mask, is_causal, start, window)
    out, lse = operator(*differentiable, *masks, scale, softcap, num_threads)
    return (out, lse) if return_lse else out


def _refuse_tangents(*arguments: torch.Tensor | None) -> None:
    """Raise RuntimeError in forward mode, where torch would treat the result of an operator as a constant."""
    if torch.compiler.is_compiling():
        return
    if any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in arguments):
        raise RuntimeError(
            "scaled_dot_product_attention: derivatives in forward mode are not computed, as of torch.func.jvp; those "
            "in reverse mode are, by backward() and torch.autograd.grad"
        )
