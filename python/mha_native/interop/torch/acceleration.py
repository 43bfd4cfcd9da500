"""Whole layers of models of transformers, computed by this library."""

from typing import Any, NamedTuple

from ...functions.scalars import checked_boolean

__all__ = ["Acceleration", "accelerate"]


class Acceleration(NamedTuple):
    """The result of `accelerate`. Its text has a line for the replaced layers and for each reason.

    Attributes
    ----------
    replaced : tuple of str
        The names of the layers that this library computes.
    kept : dict of str to str
        The names of other layers, or of models without known layers, and the reason for each.

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


def accelerate(model: Any, *, training: bool = False) -> Acceleration:
    """Let this library compute whole layers of a model of the package transformers, and say which.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, 5.0 or newer, with or without a head, or a module that contains such models, as in
        sentence-transformers. It is changed in place.
    training : bool, default False
        Let this library also compute attention, with gradients, in calls in which layers of torch compute the rest.

    Returns
    -------
    acceleration : Acceleration
        The replaced layers, and other layers with the reason.

    Raises
    ------
    ImportError
        Without the package transformers.
    TypeError
        If `training` is not a bool.

    Notes
    -----
    Supported are the layers of BERT, ELECTRA, ERNIE, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, MPNet and ModernBERT,
    and of Llama, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3 and GPT-2. A layer is replaced if it and its parts have the
    classes, methods and attributes of a new model of the same class and configuration; ``kept`` names the first that
    differs. Dropout may have another ``p``, or be an ``Identity``. Modules keep their place, weights, names and hooks:
    only their ``forward`` changes. Each has a second copy of its weights, packed for
    this library. Results differ by rounding; `generate` gives the same tokens.

    The attention implementation of the model becomes "mha_native_layers", with masks that keep their structure: causal,
    windows, and padding on either side. ``model.set_attn_implementation("sdpa")``, or any other implementation, returns
    to the layers of torch. These layers also compute a call that

    - is in training mode, or records gradients: results and gradients are as without this function. Recording gradients
      in evaluation mode warns once, since ``torch.no_grad`` is usual there;
    - is compiled, exported or traced, or is under ``torch.autocast``;
    - has hooks on a part of a layer, or on all modules of torch;
    - has a part in training mode, of a model in evaluation mode;
    - has another cache than a `DynamicCache`, or an unknown argument;
    - has positions beyond ``max_position_embeddings``.

    With `training`, the implementation becomes "mha_native_training", and the attention of these layers of torch is
    `scaled_dot_product_attention`, an operator with gradients, with dropout of attention. Models that compute attention
    by themselves, as MPNet, are kept.

    Later changes of weights, by ``load_state_dict``, an optimiser or an adapter, are noticed by the next call, which
    copies the weights again. So are later changes of attributes, of parts, and of the ``forward`` of a class, after
    which the layer of torch computes. A change through ``.data`` at the same address is not noticed: torch does not
    count it, and a few numbers read in each call would not show all changes.

    Layers of a `DynamicCache` are replaced by layers that hold a `KVCache`. They keep all tokens, also tokens outside
    the window of a layer. `mha_native.set_num_threads` sets the number of threads.

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
    checked_boolean("accelerate", "training", training)
    try:
        from ..transformers.models import accelerated, models_within, register_implementation
    except ImportError as error:
        raise ImportError(f"accelerate: needs the package transformers, 5.0 or newer: {error}") from error

    register_implementation()
    replaced: list[str] = []
    kept: dict[str, str] = {}
    for prefix, part in models_within(model):
        try:
            names, others = accelerated(part, training)
        except ValueError as error:
            kept[prefix or type(part).__name__] = str(error)
            continue
        dot = f"{prefix}." if prefix else ""
        replaced += [dot + name for name in names]
        kept |= {dot + name: why for name, why in others.items()}
    return Acceleration(tuple(replaced), kept)
