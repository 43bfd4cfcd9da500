"""Register attention with the package transformers under a name."""

from ...functions.messages import shown

__all__ = ["register"]


def register(name: str = "mha_native") -> None:
    """Let models of the package transformers compute attention by this library, under a name.

    Parameters
    ----------
    name : str, default "mha_native"
        The ``attn_implementation`` of models, given when they are made or by ``set_attn_implementation``.

    Raises
    ------
    ImportError
        Without the packages torch and transformers, 5.0 or newer.
    TypeError, ValueError
        If the name is not a str, is empty, or is "eager", which every model uses for its own attention.

    Notes
    -----
    Results differ from "eager" by rounding; a query that sees no key gives zeros. Masks that are causal, windows,
    lengths, or any of these with padding on the left, are not stored, and keys outside are not computed. Custom masks
    are supported. Heads can share keys and values, caches can be dynamic or static, and score caps, sinks and position
    biases are supported.

    Models that compute attention by themselves raise RuntimeError, when they are made or in the first call with a mask:
    use "eager" or "sdpa" for them, or for such a part of a model. A mask for several queries is a boolean tensor that
    other operations than attention refuse.

    Models can be trained: the operator of `mha_native.interop.torch.scaled_dot_product_attention` computes gradients,
    also of position biases, sinks and masks that are added. Dropout of attention takes a seed for each call from the
    generator of torch. Attention weights are not returned. Continuous batching over a paged cache is not supported.

    `mha_native.set_num_threads` sets the number of threads; threads of torch are not used.

    Examples
    --------
    >>> from mha_native.interop.transformers import register
    >>> register()  # doctest: +SKIP
    >>> model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="mha_native")  # doctest: +SKIP
    """
    if not isinstance(name, str):
        raise TypeError(f"register: name must be a str; got {shown(name)}")
    if name in ("", "eager"):
        raise ValueError(f"register: name must not be empty, nor 'eager', which is never looked up; got {shown(name)}")
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(f"register: needs the packages torch and transformers, 5.0 or newer: {error}") from error

    from .attention import attention
    from .masks import mask
    from .own_attention import refuse_in_tables

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    refuse_in_tables(name)
