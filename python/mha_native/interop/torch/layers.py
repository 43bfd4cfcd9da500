"""Layers of torch that this library computes, with gradients: attention of several heads, and a layer of an encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...functions.messages import shown
from ...functions.needed_packages import needed_package

with needed_package("mha_native.interop.torch", "torch"):
    import torch

    from .attention import drawn_dropout, scaled_dot_product_attention
    from .row_operators import apply_activation, apply_layer_norm, apply_linear

__all__ = ["MultiHeadAttention", "TransformerEncoderLayer"]

# Activations of torch.nn.TransformerEncoderLayer with a kernel; others are calls of the caller's function.
_ACTIVATIONS = {torch.nn.functional.relu: "relu", torch.nn.functional.gelu: "gelu"}


class MultiHeadAttention(torch.nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` computed by this library, forward and backward, with the names of its weights.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``. In training mode, the generator of torch draws a seed of `dropout` for
        each call.

    Raises
    ------
    ValueError
        For `add_bias_kv` and `add_zero_attn`, which are not supported.

    See Also
    --------
    mha_native.MultiHeadAttention : The same without torch: faster, as it keeps packed weights, and without gradients.

    Notes
    -----
    ``load_state_dict`` of a module of torch, and ``torch.compile``, work. Projections and attention are operators:
    second derivatives raise NotImplementedError, and gradients by torch.func RuntimeError. A query that sees no key
    gives zeros, where torch gives NaN. Under autocast, tensors of one dtype keep it, and others are converted to its
    dtype.

    Examples
    --------
    >>> import torch
    >>> from mha_native.interop.torch import MultiHeadAttention
    >>> theirs = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    >>> ours = MultiHeadAttention(64, 4, batch_first=True)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(2, 5, 64)
    >>> out, _ = ours(x, x, x, is_causal=True)
    >>> out.sum().backward()
    >>> ours.in_proj_weight.grad.shape
    torch.Size([192, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            *(embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype)
        )
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError("MultiHeadAttention: add_bias_kv and add_zero_attn are not supported")

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = False,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """Compute attention.

        Parameters
        ----------
        query : [B, Tq, E] with `batch_first`, [Tq, B, E] without, or [Tq, E]
        key : [B, Tk, kdim]
        value : [B, Tk, vdim]
        key_padding_mask : [B, Tk] or [Tk], optional
            True where a key is masked, or numbers that are added to scores.
        need_weights : False, default
            Weights are not returned: `mha_native.MultiHeadAttention` does.
        attn_mask : [Tq, Tk] or [B * H, Tq, Tk], optional
            True where a key is masked, or numbers that are added to scores.
        average_attn_weights : ignored
        is_causal : bool, default False
            Mask keys after the query. With `attn_mask` it has no effect: a mask counts as given.

        Returns
        -------
        (out, None)
            The shape of `out` is the shape of `query`.

        Raises
        ------
        TypeError, ValueError
            For `need_weights`, and for arguments that break a rule of `scaled_dot_product_attention`.
        """
        if need_weights is not False:
            got = shown(need_weights)
            raise ValueError(f"MultiHeadAttention: need_weights must be False, as weights are not returned; got {got}")
        is_batch = query.dim() == 3
        if is_batch and not self.batch_first:
            swapped = {id(x): x.transpose(0, 1) for x in (query, key, value)}
            query, key, value = (swapped[id(x)] for x in (query, key, value))
        q, k, v = (_split_heads(x, self.num_heads) for x in self._projected(query, key, value))
        masks = _masks(attn_mask, key_padding_mask, self.num_heads, is_batch)
        causal = is_causal and attn_mask is None
        dropout = drawn_dropout(self.dropout) if self.training and self.dropout > 0 else {}
        out: Any = scaled_dot_product_attention(q, k, v, is_causal=causal, **masks, **dropout)
        out = out.transpose(-3, -2).flatten(-2)
        out = apply_linear(out, self.out_proj.weight, self.out_proj.bias)
        return out.transpose(0, 1) if is_batch and not self.batch_first else out, None

    def _projected(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        bias: Any = self.in_proj_bias
        if self.in_proj_weight is not None:
            if query is key and key is value:
                return apply_linear(query, self.in_proj_weight, bias).chunk(3, -1)
            weights: Any = self.in_proj_weight.chunk(3)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return [apply_linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]


class TransformerEncoderLayer(torch.nn.TransformerEncoderLayer):
    """``torch.nn.TransformerEncoderLayer`` computed by this library, forward and backward, with its names of weights.

    Parameters
    ----------
    d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype
        As for ``torch.nn.TransformerEncoderLayer``. `dropout` is also the dropout of attention, as in
        `MultiHeadAttention`.

    See Also
    --------
    mha_native.TransformerEncoderLayer : The same without torch: faster, as it keeps packed weights.

    Notes
    -----
    As for `MultiHeadAttention`. `activation` is computed by this library if it is "relu" or "gelu", and else by torch.
    ``torch.nn.TransformerEncoder`` takes such layers, with ``enable_nested_tensor=False``.

    Examples
    --------
    >>> import torch
    >>> from mha_native.interop.torch import TransformerEncoderLayer
    >>> layer = TransformerEncoderLayer(64, 4, 128, batch_first=True)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    >>> layer(torch.randn(2, 5, 64)).square().mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[torch.Tensor], torch.Tensor] = torch.nn.functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        of_norms = layer_norm_eps, batch_first, norm_first, bias, device, dtype
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, *of_norms)
        theirs: Any = self.self_attn
        place = {"device": theirs.out_proj.weight.device, "dtype": theirs.out_proj.weight.dtype}
        self.self_attn: Any = MultiHeadAttention(
            theirs.embed_dim,
            theirs.num_heads,
            theirs.dropout,
            theirs.in_proj_bias is not None,
            batch_first=theirs.batch_first,
            **place,
        )
        self.self_attn.load_state_dict(theirs.state_dict())
        self.activation_relu_or_gelu = 0  # torch.nn.TransformerEncoder else computes such a layer by itself

    def forward(
        self,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """Compute the layer of `src`, [B, T, E] with `batch_first`, [T, B, E] without, or [T, E].

        Masks are as for `MultiHeadAttention`: `src_mask` is its `attn_mask`.
        """

        def attend(x: torch.Tensor) -> torch.Tensor:
            out, _ = self.self_attn(
                x, x, x, key_padding_mask=src_key_padding_mask, attn_mask=src_mask, is_causal=is_causal
            )
            attended: torch.Tensor = self.dropout1(out)
            return attended

        def feed_forward(x: torch.Tensor) -> torch.Tensor:
            inner = apply_linear(x, self.linear1.weight, self.linear1.bias)
            name = _ACTIVATIONS.get(self.activation)
            inner = self.activation(inner) if name is None else apply_activation(inner, None, None, name)
            out: torch.Tensor = self.dropout2(apply_linear(self.dropout(inner), self.linear2.weight, self.linear2.bias))
            return out

        if self.norm_first:
            src = src + attend(_normalized(src, self.norm1))
            return src + feed_forward(_normalized(src, self.norm2))
        src = _normalized(src + attend(src), self.norm1)
        return _normalized(src + feed_forward(src), self.norm2)


def _normalized(x: torch.Tensor, norm: Any) -> torch.Tensor:
    out: torch.Tensor = apply_layer_norm(x, norm.weight, norm.bias, norm.eps)
    return out


def _split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(-3, -2)


def _masks(attn_mask: torch.Tensor | None, padding: torch.Tensor | None, heads: int, is_batch: bool) -> dict[str, Any]:
    """Return the score options of masks of torch.nn, in which True hides a key."""
    if attn_mask is not None and attn_mask.dim() == 3 and is_batch:
        attn_mask = attn_mask.unflatten(0, (-1, heads))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask
    if padding is None:
        return {"attn_mask": attn_mask}
    if padding.dtype == torch.bool:
        return {"attn_mask": attn_mask, "key_mask": ~padding}
    padding = padding[:, None, None] if is_batch else padding
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        return {"attn_mask": torch.where(attn_mask, padding, -torch.inf)}
    return {"attn_mask": padding if attn_mask is None else attn_mask + padding}
