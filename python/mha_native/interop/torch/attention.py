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
    """`mha_native.scaled_dot_product_attention` as an operator of torch: it has gradients, and can be compiled.

    Parameters
    ----------
    query : [B, H, Tq, D], [H, Tq, D] or [Tq, D]
    key : [B, Hk, Tk, D]
    value : [B, Hk, Tk, Dv]
    attn_mask, is_causal, query_offset, key_lengths, key_mask, block_mask, window, scale, softcap : optional
        As for `mha_native.scaled_dot_product_attention`, where arrays are tensors.
    alibi_slopes, position_bias, sinks : optional
        Likewise.
    return_lse : bool, default False
    num_threads : int, optional
        Of this library, for the result; gradients are computed by the threads of torch.

    Returns
    -------
    out : [B, H, Tq, Dv]
    lse : [B, H, Tq]
        Only with `return_lse`.

    Notes
    -----
    What `mha_native.scaled_dot_product_attention` makes of tensors is the same, bit for bit. What comes with the
    operator ``torch.ops.mha_native.scaled_dot_product_attention`` behind this function:

    - ``torch.compile`` and ``torch.export`` put it into their graphs, also with ``fullgraph=True``.
    - It has gradients, also of gradients, of all that is of floating point: of `out` and `lse` by query, key, value, an
      additive `attn_mask`, `alibi_slopes`, `position_bias` and `sinks`. They are recomputed by torch's own operations,
      which store all [B, H, Tq, Tk] scores, so that they take time and memory as those of unfused attention do.
    - It has no derivatives in forward mode: ``torch.func.jvp``, and any other call with a tangent, is a RuntimeError.
    - A call costs some tens of microseconds more than that of the function: without gradients and outside of compiled
      code that is the one to call.

    Tensors are on the CPU; none of them is changed.

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
    _refuse_tangents(query, key, value, attn_mask, alibi_slopes, position_bias, sinks)
    start, starts = (0, query_offset) if isinstance(query_offset, torch.Tensor) else (query_offset, None)
    out, lse = operator(
        query,
        key,
        value,
        attn_mask,
        alibi_slopes,
        position_bias,
        sinks,
        starts,
        key_lengths,
        key_mask,
        block_mask,
        is_causal,
        start,
        window,
        scale,
        softcap,
        num_threads,
    )
    return (out, lse) if return_lse else out


def _refuse_tangents(*arguments: torch.Tensor | None) -> None:
    """RuntimeError in forward mode, where torch would take the result of an operator for a constant."""
    if torch.compiler.is_compiling():
        return
    if any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in arguments):
        raise RuntimeError(
            "scaled_dot_product_attention: derivatives in forward mode are not computed, as of torch.func.jvp; those "
            "in reverse mode are, by backward() and torch.autograd.grad"
        )
