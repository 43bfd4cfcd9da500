"""The layers of models of transformers that layers of this library stand in for, found and described."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from ...functions.arrays import to_numpy
from ...functions.dtypes import checked_dtype
from ...layers._torch_modules import difference, foreign_method, own_attribute, reads_mode
from ...layers.encoder import EncoderLayer
from ...models.architecture.build import make_layer
from ...models.architecture.config import BlockConfig, StackConfig
from ...models.architecture.family import EMBEDDING, GENERATION
from ...models.architecture.registry import describe, families_of
from ...models.architecture.tensor_names import BlockNames
from ...models.files.entries import Entries
from ...models.files.source import Arrays
from .attention import attention
from .layers import LayerForward, Neighbours, Turns
from .masks import mask

# What computes attention in a layer of torch: torch, or this library, also where gradients are recorded.
IMPLEMENTATION = "mha_native_layers"
TRAINING = "mha_native_training"

# What messages call the configuration of a model.
_CONFIG = Path("config.json")

# Families whose layers are those of another one; what differs is before or behind them.
_SAME_LAYERS = {"ernie": "bert"}

# T5 hands on the bias of its first layer, ALBERT repeats a layer, DeBERTa compares rows with positions; GTE and
# nomic-bert are read from files with names that transformers lacks. Layers of the others have not been compared with
# their layers: Granite here has another residual stream, for example, and gpt-oss has sinks outside of its layers.
_OTHERWISE = {
    *("t5", "mt5", "umt5", "albert", "deberta-v2", "gte", "nomic_bert"),
    *("cohere", "cohere2", "ernie4_5", "exaone4", "gemma3", "glm", "glm4", "gpt_neox"),
    *("granite", "olmo2", "olmo3", "phi3", "smollm3", "stablelm", "starcoder2"),
    *("gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"),
}

# Rules of rotary positions by which a model turns the same token otherwise in longer texts.
_CHANGING_TURNS = ("dynamic", "longrope")


class Layers(NamedTuple):
    """The layers of a model without a head, and the names of their tensors, which are names of modules, too."""

    names: BlockNames
    stack: StackConfig


def layers_of(config: Any) -> Layers:
    """Describe the layers of a model of transformers. ValueError if it asks for an unsupported feature."""
    values = config.to_dict()
    kind = values["model_type"]
    # Of a family with both roles the embedding model counts: it may be bidirectional.
    roles = {name: role for role in (GENERATION, EMBEDDING) for name in families_of(role)}
    known = (roles.keys() | _SAME_LAYERS.keys()) - _OTHERWISE
    if kind not in known:
        raise ValueError(f"model_type {kind!r} is none of {', '.join(sorted(known))}")
    kind = values["model_type"] = _SAME_LAYERS.get(kind, kind)
    family = families_of(roles[kind])[kind]
    (stack,) = describe(family, Entries(_CONFIG, values), roles[kind]).stacks
    return Layers(family.stacks[0].blocks, stack)


def models_within(module: Any) -> Iterator[tuple[str, Any]]:
    """The models without heads in a module, with the names that they have in it, each once."""
    for name, part in module.named_modules():
        is_model = isinstance(part, PreTrainedModel)
        if is_model and not any(isinstance(other, PreTrainedModel) for other in list(part.modules())[1:]):
            yield name, part


def register_implementation() -> None:
    """Make masks known by their structure to layers, and to those of torch what they are for "sdpa"."""
    AttentionInterface.register(IMPLEMENTATION, _attention_of_torch)
    AttentionInterface.register(TRAINING, attention)
    for name in (IMPLEMENTATION, TRAINING):
        AttentionMaskInterface.register(name, mask)


def _attention_of_torch(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    softcap: float | None = None,
    **others: Any,
) -> Any:
    """Compute attention for layers of torch: by "sdpa", or by "eager" for scores with a cap, unsupported by "sdpa"."""
    if softcap is None:
        return AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **others)
    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is None and queries > 1:
        attention_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        hidden = query.new_full((), torch.finfo(query.dtype).min)
        attention_mask = torch.where(attention_mask, torch.zeros_like(hidden), hidden)
    # A derived class may be defined elsewhere.
    sources = (sys.modules[kind.__module__] for kind in type(module).__mro__)
    eager = next(source.eager_attention_forward for source in sources if hasattr(source, "eager_attention_forward"))
    return eager(module, query, key, value, attention_mask, softcap=softcap, **others)


def _can_choose_attention(model: Any) -> bool:
    # A class of the caller inherits its attention, and transformers would read the module of the caller alone.
    mro: tuple[Any, ...] = type(model).__mro__
    bases = [base for base in mro if issubclass(base, PreTrainedModel) and base is not PreTrainedModel]
    return all(base._can_set_attn_implementation() for base in reversed(bases))


def turns_of(model: Any, blocks: Sequence[BlockConfig]) -> list[Turns | None]:
    """Return the rotary positions of each layer."""
    types = getattr(model.config, "layer_types", None) or [""] * len(blocks)
    made: dict[str, Turns] = {}
    for block, kind in zip(blocks, types, strict=True):
        if block.rotary is not None and kind not in made:
            made[kind] = _turns(model.rotary_emb, kind, block.rotary.max_positions)
    return [None if block.rotary is None else made[kind] for block, kind in zip(blocks, types, strict=True)]


def _turns(rotary: Any, kind: str, count: int) -> Turns:
    by_kind = isinstance(rotary.rope_type, dict)
    rule = rotary.rope_type[kind] if by_kind else rotary.rope_type
    if rule in _CHANGING_TURNS:
        raise ValueError(f"its rotary positions are {rule!r}, by which a token is turned otherwise in a longer text")
    arguments = (torch.zeros(1), torch.arange(count)[None])
    with torch.no_grad():
        cos, sin = rotary(*arguments, kind) if by_kind else rotary(*arguments)
    half = cos.shape[-1] // 2
    if not (torch.equal(cos[..., :half], cos[..., half:]) and torch.equal(sin[..., :half], sin[..., half:])):
        raise ValueError("its rotary positions do not turn the halves of a head against each other")
    return Turns(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())


def native_layer(layers: Layers, i: int, turns: Turns | None, new: Any, layer: Any) -> EncoderLayer:
    """Return the equivalent of `layer`, layer i of a model of transformers, where `new` is the one of a new model.

    The message of a ValueError is the reason why `layer` may compute something else.
    """
    _check_parts(layer, new)
    names, block = layers.names, layers.stack.blocks[i]
    prefix = names.layer.format(i)
    weights = {prefix + name: x for name, x in layer.named_parameters(remove_duplicate=False)}
    expected = dict(names.shapes(block, i))
    if odd := sorted(weights.keys() ^ expected.keys()):
        raise ValueError(f"its parameters are not those of its family: {odd[0].removeprefix(prefix)}")
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"{name.removeprefix(prefix)} is {list(weights[name].shape)}, and not {list(shape)}")
    dtypes, kinds = {x.dtype for x in weights.values()}, {type(x.data) for x in weights.values()}
    if len(dtypes) > 1 or kinds != {torch.Tensor} or not all(x.is_cpu for x in weights.values()):
        raise ValueError("its weights are not dense tensors of one dtype on the CPU")
    if any(x.is_inference() for x in weights.values()):
        raise ValueError("its weights were made under torch.inference_mode, where changes of them are not counted")
    arrays = {name: _array(name.removeprefix(prefix), x.detach()) for name, x in weights.items()}
    dtype = next(iter(arrays.values())).dtype
    state = names.read(block, i, Arrays(arrays), dtype)
    # transformers computes angles in float32 for every dtype, as the table does.
    tables = {} if turns is None or block.rotary is None else {block.rotary: turns.table._for_layers_in(dtype)}
    native = make_layer(block, state, tables, dtype, str(dtypes.pop()).removeprefix("torch."))
    assert isinstance(native, EncoderLayer)  # blocks that read a memory have been refused
    return native


def _array(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    try:
        array: NDArray[Any] = to_numpy("accelerate", name, tensor)
        checked_dtype("accelerate", array.dtype)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return array


def _check_parts(layer: Any, new: Any) -> None:
    """ValueError unless the layer, and all that it is made of, compute what those of a new layer compute."""
    parts, expected = (dict(of.named_modules(remove_duplicate=False)) for of in (layer, new))
    for name, part in parts.items():
        if not type(part).__module__.startswith(("transformers.", "torch.nn.modules.")):
            raise ValueError(f"{_place(name)} is a {type(part).__module__}.{type(part).__qualname__}")
    for name, part in parts.items():
        known = vars(expected[name]) if name in expected else ()
        own = own_attribute(part, known)
        if own is not None and not isinstance(getattr(part, own), LayerForward):
            raise ValueError(f"{_place(name)} has a {own} of its own")
        if (method := foreign_method(type(part))) is not None:
            raise ValueError(f"the {method} of the class of {_place(name)} has been replaced")
        if part.training and not layer.training and reads_mode(part):
            raise ValueError(f"{_place(name)} is in training mode")
        # No code of transformers or torch reads a part of another name.
        if name in expected and (change := difference(part, expected[name], name)) is not None:
            raise ValueError(f"its {change}")


def _place(name: str) -> str:
    return f"its {name}" if name else "it"


def _new_parts(model: Any) -> dict[str, Any]:
    """Return the parts, by their names, of a model that has the class and configuration of `model`, without data."""
    kind = next(kind for kind in type(model).__mro__ if kind.__module__.startswith("transformers."))
    with torch.device("meta"):
        return dict(kind(model.config).named_modules())


def accelerated(model: Any, training: bool) -> tuple[list[str], dict[str, str]]:
    """Replace the layers of a model without a head: names of those that are replaced, and reasons for the others."""
    layers = layers_of(model.config)
    can_choose = _can_choose_attention(model)
    if training and not can_choose:
        raise ValueError("it computes attention by itself, so that this library cannot train it")
    blocks, is_causal = layers.stack.blocks, layers.stack.is_causal
    names = [layers.names.layer.format(i).rstrip(".") for i in range(len(blocks))]
    parts, new = dict(model.named_modules()), _new_parts(model)
    turns = turns_of(model, blocks)
    neighbours = Neighbours(model.config, training)
    forwards: dict[str, LayerForward] = {}
    kept: dict[str, str] = {}
    for i, (name, block) in enumerate(zip(names, blocks, strict=True)):
        if name not in parts or name not in new:
            kept[name] = "there is no such layer"
            continue
        make = functools.partial(native_layer, layers, i, turns[i], new[name])
        try:
            forwards[name] = LayerForward(parts[name], make, i, neighbours, block.options, turns[i], is_causal)
        except ValueError as error:
            kept[name] = str(error)
    if kept and any(block.window is not None for block in blocks):
        reason = f"layers with windows share their masks, and {next(iter(kept))} stays"
        kept |= dict.fromkeys(forwards, reason)
        forwards = {}
    if forwards and can_choose:
        model.set_attn_implementation(TRAINING if training else IMPLEMENTATION)
    neighbours.implementation = str(model.config._attn_implementation)
    for name, forward in forwards.items():
        parts[name].forward = forward
    return list(forwards), kept
