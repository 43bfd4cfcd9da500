"""Small models of every type that transformers knows, with random weights, and their inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

TOKENS = 13
_IMAGE, _PATCH, _MEL, _FRAMES = 32, 8, 16, 64

# The value of larger integers, and of those above its half, by the first pattern that their name contains.
_BOUNDS = {
    r"window": 4,
    r"codebook_size|codebook_dim": 64,
    r"vocab": 99,
    r"position|n_ctx|context|max_seq|source_|seq_len": 128,
    r"image_size|img_size|crop_size": _IMAGE,
    r"patch": _PATCH,
    r"num_mel|mel_bins|feature_size|input_feat": _MEL,
    r"per_tok|top_?k|topk|n_group|key_value_heads|kv_heads|num_key_value|groups?$": 2,
    r"experts|heads?$|num_attention_heads|n_head|queries": 4,
    r"layers?$|depths?$|num_blocks|stages|mlp_only": 2,
    r"head_dim|rotary_dim|d_kv|kv_channels|rank|state_size": 8,
    r"intermediate|ffn|d_ff|d_inner|mlp": 48,
    r"hidden|d_model|n_embd|embed|dim|width|channels|size|units|filters": 32,
}
# Names whose values keep their meaning only as they are.
_KEPT = re.compile(
    r"num_channels|in_channels|in_chans|kernel|stride|num_feat_extract|num_labels|version|ratio|rope_(?!head)|scale|merge"
)
# Names whose values follow from others.
_DERIVED = {"transformers_version", "out_features", "out_indices", "stage_names", "per_layer_config"}
_TOKEN = re.compile(r"token_(id|index)$|_id$|_idx$|_token$")


def model_types() -> list[str]:
    """The types of models that one of the automatic classes makes, by name."""
    return [kind for kind in CONFIG_MAPPING_NAMES if _class_name(kind)]


def _class_name(kind: str) -> str | None:
    names = ("MODEL", "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_MASKED_LM")
    mappings = [getattr(modeling_auto, f"{name}_MAPPING_NAMES") for name in names]
    mappings += [x for name, x in sorted(vars(modeling_auto).items()) if re.fullmatch("MODEL_.*MAPPING_NAMES", name)]
    found = next((mapping[kind] for mapping in mappings if kind in mapping), None)
    return found[0] if isinstance(found, tuple | list) else found


def _shrunken(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        counts = {value.get(key) for key in ("num_hidden_layers", "num_layers", "n_layer")}
        of_ends = {  # one for each layer
            key: [x[0], x[-1]] if isinstance(x, list | tuple) and len(x) > 2 and len(x) in counts else x
            for key, x in value.items()
            if key not in _DERIVED
        }
        made = {key: _shrunken(str(key), x) for key, x in of_ends.items()}
        if "num_key_value_heads" in value and value["num_key_value_heads"] == value.get("num_attention_heads"):
            made["num_key_value_heads"] = made["num_attention_heads"]
        if value.get("rope_type") == "default":
            made["mrope_section"] = [2, 1, 1]  # of heads of 8 numbers
        return made
    if isinstance(value, list | tuple):
        return type(value)(_shrunken(name, x) for x in value)
    if isinstance(value, bool) or not isinstance(value, int) or _KEPT.search(name):
        return value
    if _TOKEN.search(name):
        return value if value < 50 else 50 + sum(name.encode()) % 49
    bound = next((bound for pattern, bound in _BOUNDS.items() if re.search(pattern, name)), value)
    return bound if value > bound / 2 else value


def config(kind: str) -> Any:
    """The configuration of a type with small sizes."""
    kept = CONFIG_MAPPING[kind]
    values = _shrunken("", kept().to_dict())
    del values["model_type"]
    return kept(**values)


def model(kind: str, implementation: str) -> Any:
    """The model of a type, the same for each implementation of attention; ValueError if it is not small."""
    made = config(kind)
    cls = getattr(transformers, str(_class_name(kind)))
    with torch.device("meta"):
        size = sum(x.numel() for x in cls._from_config(made, attn_implementation="eager").parameters())
    if size > 30_000_000:
        raise ValueError(f"{kind} has {size} parameters")
    torch.manual_seed(0)
    result = cls._from_config(config(kind), attn_implementation=implementation, dtype=torch.float32).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in result.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=min(0.15, (parameter.numel() / len(parameter)) ** -0.5))
    return result


def _tensors(made: Any, padding: str) -> dict[str, Any]:
    """Every input that a model may take, by name."""
    sizes = [made.config, *(getattr(made.config, name) for name in made.config.sub_configs)]
    find = lambda name, default: next((x for c in sizes if (x := getattr(c, name, None)) is not None), default)  # noqa: E731
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 50, (2, TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    if padding != "none":
        mask[1, slice(9, None) if padding == "right" else slice(4)] = 0
    end = find("eos_token_id", 2)  # the token whose vector some models take for the text
    ids = ids * mask
    ids[0, -1] = ids[1, 8 if padding == "right" else -1] = end if isinstance(end, int) else end[0]
    side = find("image_size", _IMAGE)
    height, width = side if isinstance(side, list | tuple) else (side, side)
    pixels = torch.randn(2, find("num_channels", 3), height, width, generator=generator)
    features = torch.randn(
        2, find("num_mel_bins", _MEL), 2 * find("max_source_positions", _FRAMES), generator=generator
    )
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": ids.flip(1)[:, :5],
        "bbox": torch.zeros(2, TOKENS, 4, dtype=torch.int64),
        "pixel_values": pixels,
        "input_features": features,
        "input_values": torch.randn(2, 1600, generator=generator),
    }


def inputs(made: Any, padding: str) -> Iterator[dict[str, Any]]:
    """Inputs of a model, text before other kinds, of which it may take the first ones only with others."""
    parameters = inspect.signature(made.forward).parameters
    given = {name: x for name, x in _tensors(made, padding).items() if name in parameters}
    needed = {name for name, x in parameters.items() if x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD}
    text = ("input_ids", "attention_mask", "decoder_input_ids", "bbox")
    kinds = ("pixel_values", "input_features", "input_values")
    subsets = [text, *((*text, kind) for kind in kinds), *((kind, "decoder_input_ids") for kind in kinds), given]
    for subset in dict.fromkeys(tuple(name for name in given if name in subset) for subset in subsets):
        taken = {name: given[name] for name in subset if name != "attention_mask" or "input_ids" in subset}
        if needed <= taken.keys() and not taken.keys() <= {"decoder_input_ids"}:
            yield taken


def _flat(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, dict):
        for each in x.values():
            yield from _flat(each)
    elif isinstance(x, list | tuple):
        for each in x:
            yield from _flat(each)


def outputs(made: Any, given: dict[str, Any]) -> list[torch.Tensor]:
    """The results of a model in floating point; of each text only its tokens."""
    torch.manual_seed(3)  # some models draw numbers
    with torch.no_grad():
        found = [x for x in _flat(made(**given)) if x.is_floating_point()]
    mask = given.get("attention_mask")
    return [x[mask.bool()] if mask is not None and x.shape[:2] == mask.shape else x for x in found]


def accepted(made: Any, padding: str) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The first inputs that a model takes, and its results. The error of the last ones if it takes none."""
    error: Exception = ValueError("no inputs")
    for given in inputs(made, padding):
        try:
            found = outputs(made, given)
        except Exception as raised:
            error = raised
            continue
        if found and all(x.numel() and not x.isnan().any() for x in found):
            return given, found
    raise error
