"""Whole layers of models of transformers, computed by this library."""

from typing import Any, NamedTuple

__all__ = ["Acceleration", "accelerate"]


class Acceleration(NamedTuple):
    """What `accelerate` did; printed, it is a line for each kind of layer and for each reason.

    Attributes
    ----------
    replaced : tuple of str
        The names of the layers that are computed by this library.
    kept : dict of str to str
        The names of the others, or of models none of whose layers are known, and the reason for each.

    Examples
    --------
    >>> from mha_native.interop.torch import Acceleration
    >>> print(Acceleration(("encoder.layer.0", "encoder.layer.1"), {"encoder.layer.2": "it has a forward of its own"}))
    replaced: 2 layers, encoder.layer.0 to encoder.layer.1
    kept: encoder.layer.2: it has a forward of its own
    """

    replaced: tuple[str, ...]
    kept: dict[str, str]

    def __str__(self) -> str:
        names = self.replaced
        count = f"{len(names) or 'no'} layer{'s' * (len(names) != 1)}"
        which = " to ".join(dict.fromkeys([*names[:1], *names[-1:]]))
        lines = [f"replaced: {count}{', ' * bool(names)}{which}"]
        return "\n".join([*lines, *(f"kept: {name}: {why}" for name, why in self.kept.items())])


def accelerate(model: Any) -> Acceleration:
    """Let this library compute whole layers of a model of the package transformers, and say which.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, 5.0 or newer, with or without a head, or a module that has some within, as those of
        sentence-transformers do. It is changed in place.

    Returns
    -------
    acceleration : Acceleration
        The layers that are replaced, and those that are not, with the reason.

    Raises
    ------
    ImportError
        Without the package transformers.

    Notes
    -----
    Layers are replaced of BERT, ELECTRA, ERNIE, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, MPNet and ModernBERT, and
    of Llama, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3 and GPT-2, where they compute what such layers do. Modules stay
    where they are, with their weights, names and hooks: only their ``forward`` is another one. Each has a second copy
    of its weights, packed as this library reads them. Results differ by rounding; `generate` gives the same tokens.

    The attention implementation of the model becomes "mha_native_layers", whose masks keep their structure: causal,
    windows, and padding on either side. With any other, ``model.set_attn_implementation("sdpa")``, the layers of torch
    compute again. So they do in a call that

    - is in training mode, or records gradients: results and gradients are as if nothing had been replaced. The latter
      is a warning, once, since a model in evaluation mode is mostly meant to be called under ``torch.no_grad``;
    - is compiled, exported or traced, or is under ``torch.autocast``;
    - meets hooks that somebody has put on a part of a layer;
    - has a cache of another kind than `DynamicCache`, or an argument that is not known here;
    - has positions beyond ``max_position_embeddings``.

    Weights that are changed later, by ``load_state_dict``, an optimiser or an adapter, are noticed at the next call and
    copied anew. What is not noticed is a change through ``.data`` that leaves them where they are in memory.

    The layers of a `DynamicCache` become some that hold a `KVCache`. They keep all tokens, also those that are no
    longer in the window of a layer. Threads are those of this library, `mha_native.set_num_threads`.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from mha_native.interop.torch import accelerate
    >>> model = BertModel(BertConfig(num_hidden_layers=2)).eval()
    >>> print(accelerate(model))
    replaced: 2 layers, encoder.layer.0 to encoder.layer.1
    >>> with torch.inference_mode():
    ...     rows = model(torch.tensor([[5, 6, 7]])).last_hidden_state
    """
    try:
        from ..transformers.models import accelerated, models_within, register_implementation
    except ImportError as error:
        raise ImportError(f"accelerate: needs the package transformers, 5.0 or newer: {error}") from error

    register_implementation()
    replaced: list[str] = []
    kept: dict[str, str] = {}
    for prefix, part in models_within(model):
        try:
            names, others = accelerated(part)
        except ValueError as error:
            kept[prefix or type(part).__name__] = str(error)
            continue
        dot = f"{prefix}." if prefix else ""
        replaced += [dot + name for name in names]
        kept |= {dot + name: why for name, why in others.items()}
    return Acceleration(tuple(replaced), kept)
