"""A family of models, as data: the entries of config.json and the names of tensors, and the reader of both."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...functions.messages import shown
from ..files.entries import Entries
from ..files.quantization import read_quantization
from ..front_ends.frames import FramesConfig, FramesNames
from ..front_ends.patches import PatchesConfig, PatchesNames
from ..front_ends.tokens import TokensConfig
from .config import (
    ATTENTION,
    FEED_FORWARD,
    NORMS,
    BlockConfig,
    BucketsConfig,
    ExpertsConfig,
    HeadConfig,
    ModelConfig,
    StackConfig,
)
from .norms import NormConfig
from .rotary import RotaryConfig, read_rotary, refuse_changing_angles
from .tensor_names import HeadNames, StackNames

# The roles of a model: vectors of tokens; logits of the next token; logits of a second text; logits of the text of
# speech; vectors of images; vectors of texts about images.
EMBEDDING, GENERATION, TEXT_TO_TEXT, SPEECH_TO_TEXT = "embedding", "generation", "text-to-text", "speech-to-text"
IMAGES, TEXTS_OF_IMAGES = "images", "texts of images"

# The types of layers in config.json.
FULL, SLIDING = "full_attention", "sliding_attention"

# Activations by their names in config.json: the name in the core, and whether the feed-forward is gated.
UNGATED = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "gelu_pytorch_tanh": ("gelu_tanh", False),
}
UNGATED_WITH_QUICK = {**UNGATED, "quick_gelu": ("quick_gelu", False)}
UNGATED_WITH_SILU = {**UNGATED, "silu": ("silu", False), "swish": ("silu", False)}
GATED = {name: (ours, True) for name, (ours, _) in UNGATED_WITH_SILU.items()}

# Entries that change the computation in an unsupported way unless they are empty.
_REFUSED = {
    "auto_map": "the model has code of its own",
    "compression_config": "weights must be in float32, float16 or bfloat16",
    "pruned_heads": "every layer must have all its heads",
}
_BIDIRECTIONAL = {"use_bidirectional_attention": "tokens of this family see no later tokens"}

# Entries of the whole model that count for each of its sections.
_OF_ALL = ("auto_map", "compression_config", "quantization_config")

# Limits of numbers in a damaged file. The deepest models have some 130 layers; models with sines have up to 1024
# positions, and the table of 1024 features takes 64 MiB; the table of the bias has two columns for each distance, up
# to 128 in models.
_MOST_LAYERS, _MOST_SINES, _MOST_DISTANCE = 4096, 1 << 14, 4096

OfLayer: TypeAlias = Callable[[Entries, int], Any]


class StackKeys(NamedTuple):
    """The names of the entries of config.json of one stack."""

    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    feedforward_dim: str = "intermediate_size"


class Keys(NamedTuple):
    """The names of the entries of config.json; "" for entries that the family lacks."""

    embed_dim: str = "hidden_size"
    stacks: tuple[StackKeys, ...] = (StackKeys(),)
    num_kv_heads: str = ""  # absent or null: as many as heads
    head_dim: str = ""  # absent or null: embed_dim / num_heads
    max_positions: str = "max_position_embeddings"
    padding: str = ""  # the token that takes no position: the first position is the number after it
    token_types: str = ""
    table_dim: str = ""  # the features of tables; a linear map takes them to `embed_dim`, if they differ
    activation: str = "hidden_act"
    eps: str = ""
    norm_bias: str = ""
    layer_types: str = ""
    parallel: str = ""  # the flag of layers whose feed-forward reads their input
    logit_scale: str = ""
    softcap: str = ""
    logit_softcap: str = ""
    scales_embeddings: str = ""
    num_buckets: str = ""
    max_distance: str = ""  # absent: 128
    # Of a stack that reads frames: the features of a frame, and the largest number of rows.
    mel_bins: str = ""
    max_rows: str = ""
    # Of a stack that reads images: their height and width, those of a patch, and colours; rows without a position.
    image_size: str = ""
    patch_size: str = ""
    channels: str = ""
    registers: str = ""


def _none(entries: Entries, *layer: int) -> Any:
    return None


def _every_layer(entries: Entries, i: int, has_window: bool) -> bool:
    return True


class Family(NamedTuple):
    """Models of one design, described by their differences from the defaults here."""

    model_types: tuple[str, ...]  # in config.json
    roles: frozenset[str]
    stacks: tuple[StackNames, ...]  # a second stack reads the rows of the first
    keys: Keys = Keys()
    prefix: str = "model."  # of all tensors, in the files of a model with a head
    head: HeadNames | None = None  # of a model that gives logits
    defaults: Mapping[str, Any] = {}  # entries of config.json that may be absent, as transformers has them
    # The entry that has the entries of this stack, an object of its own, by the model type of the whole model.
    section: Mapping[str, str] = {}
    refused: Mapping[str, str] = {}  # entries that must be absent or empty, and why
    expected: Mapping[str, Any] = {}  # entries that must have this value if they are present
    # All norms: the kind, as in `NormConfig`; and eps, if there is no entry. Norms of "layer" have a bias by default.
    norm: str = "layer"
    eps: float = 1e-12
    norms: frozenset[str] = NORMS  # as in `BlockConfig`
    norm_first: bool = True
    parallel: bool = False  # as in `BlockConfig`, if there is no entry
    qk_norm: bool = False  # heads of queries and keys have norms
    joint_qk_norm: bool = False  # ... of all heads together
    activations: Mapping[str, tuple[str, bool]] = UNGATED
    # The products with a bias, by the flag of config.json that switches them on; "": always.
    biases: Mapping[str, frozenset[str]] = {"": ATTENTION | FEED_FORWARD}
    bases: Mapping[str, tuple[str, float]] = {}  # as for `read_rotary`; {}: queries and keys are not rotated
    # From config.json to the window of sliding layers, if there is one; whether layer i is sliding, where config.json
    # has no list of types; and the factor of scores of layer i, with None for 1 / sqrt(D).
    partial_rotary: bool = False  # partial_rotary_factor may be less than 1
    interleaved: bool = False  # rotation turns pairs of neighbours
    # Whether queries and keys of layer i are rotated. The last argument is whether the layer has a window.
    rotates: Callable[[Entries, int, bool], bool] = _every_layer
    window: Callable[[Entries], tuple[int, int] | None] = _none
    is_sliding: OfLayer = _none
    scale: OfLayer = _none
    # From config.json to the experts of layer i, None for a layer with one feed-forward network.
    experts: OfLayer = _none
    has_sinks: bool = False  # as in `BlockConfig`
    has_scales: bool = False  # as in `BlockConfig`
    antialias: bool = False  # as in `PatchesConfig`
    has_patch_bias: bool = True  # whether the projection of patches has a bias
    is_causal: bool = False  # rows of the last stack see no row after themselves
    first_position: int = 0  # the row of the first token in the table of positions, if there is no padding
    sines: str = ""  # where the checkpoint has no table of positions, as in `TokensConfig`
    fewest_types: int = 1  # token types; 1, or 0
    feedforward_factor: int | None = None  # feedforward_dim / embed_dim, where the entry is null
    scales_embeddings: bool = False  # words are multiplied with sqrt(E), rounded as transformers does for Gemma
    text_files: tuple[str, ...] = ()  # instead of tokenizer.json: not read, so that the model takes tokens, not texts
    describe: "Describe | None" = None  # in place of `described`, which it may call


class Describe(Protocol):
    """A function from config.json to the computation of a model in a role."""

    def __call__(
        self, family: Family, given: Entries, role: str, max_positions: int | None = None, /
    ) -> ModelConfig: ...


def described(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    """Describe a model of the family in a role, from the entries of config.json.

    `max_positions` is the largest number of tokens of a text. By default it is the number in config.json, which is the
    limit for learned positions. Rules of rotary positions that depend on the length of a text use this number.

    Raises ValueError if an entry is wrong, or asks for an unsupported feature.
    """
    entries, keys = entries_of(family, given), family.keys
    entries.refuse({**_REFUSED, **family.refused})
    read_quantization(entries)
    entries.expect(family.expected)
    if role == EMBEDDING and family.bases:
        entries.refuse(_BIDIRECTIONAL if family.is_causal else {})
        refuse_changing_angles(entries)
    has_bias = family.norm == "layer" and (not keys.norm_bias or entries.flag(keys.norm_bias))
    norm = NormConfig(family.norm, entries.eps(keys.eps) if keys.eps else family.eps, has_bias)
    stacks = []
    for i, names in enumerate(family.stacks):
        front_end = _front_end(entries, family, names, norm, role, max_positions)
        stacks.append(
            StackConfig(
                front_end=front_end,
                blocks=_blocks(entries, family, keys.stacks[i], norm, front_end, reads_memory=i > 0),
                final_norm=norm if names.final_norm else None,
                is_causal=family.is_causal and names is family.stacks[-1],
                buckets=_buckets(entries, keys) if keys.num_buckets else None,
            )
        )
    head = None if family.head is None else _head(entries, keys)
    return ModelConfig(tuple(stacks[:1]), None) if role == EMBEDDING else ModelConfig(tuple(stacks), head)


def entries_of(family: Family, given: Entries) -> Entries:
    """Return the entries of config.json of a stack of the family, with defaults. A section has them in some files.

    A section with the suffix ``_dict``, of older files, replaces all entries of the section, also by defaults.
    """
    section = family.section.get(str(given.values.get("model_type")), "")
    if not section:
        return given._replace(values={**family.defaults, **given.values})
    parts = [given.values.get(section), given.values.get(f"{section}_dict")]
    for name, part in zip((section, f"{section}_dict"), parts, strict=True):
        if part is not None and not isinstance(part, dict):
            raise ValueError(f"{given.path}: {name} must be an object; got {shown(part)}")
    own, replacing = parts
    values = {**family.defaults, **(own or {})} | ({} if replacing is None else {**family.defaults, **replacing})
    of_all = {name: given.values[name] for name in _OF_ALL if name in given.values}
    return Entries(f"{given.path}: {section}", values | of_all)


def _pair(entries: Entries, name: str) -> tuple[int, int]:
    """Return height and width, of an integer for both, or of a list of two."""
    value = entries.values.get(name)
    pair = value if isinstance(value, list) and len(value) == 2 else [value, value]
    height, width = (entries._replace(values={name: side}).size(name) for side in pair)
    return height, width


def _patches(entries: Entries, family: Family, names: PatchesNames, norm: NormConfig) -> PatchesConfig:
    keys = family.keys
    image, patch = _pair(entries, keys.image_size), _pair(entries, keys.patch_size)
    if any(of < part for of, part in zip(image, patch, strict=True)):
        raise ValueError(
            f"{entries.path}: {keys.image_size} must be at least {keys.patch_size}; got {image} and {patch}"
        )
    return PatchesConfig(
        channels=entries.size(keys.channels),
        embed_dim=entries.size(keys.embed_dim),
        image=image,
        patch=patch,
        special=len(names.special),
        registers=entries.count(keys.registers) if keys.registers else 0,
        has_bias=family.has_patch_bias,
        antialias=family.antialias,
        norm=norm if names.norm else None,
    )


def _front_end(
    entries: Entries, family: Family, names: StackNames, norm: NormConfig, role: str, max_positions: int | None
) -> TokensConfig | FramesConfig | PatchesConfig:
    keys, width = family.keys, entries.size(family.keys.embed_dim)
    if isinstance(names.front_end, PatchesNames):
        return _patches(entries, family, names.front_end, norm)
    if isinstance(names.front_end, FramesNames):
        return FramesConfig(entries.size(keys.mel_bins), width, entries.size(keys.max_rows))
    trained, padding, first = entries.size(keys.max_positions) if keys.max_positions else None, None, 0
    if trained is not None:
        trained, padding, first = _positions(entries, family, trained)
        max_positions = trained if max_positions is None else max_positions
        if names.front_end.positions and max_positions > trained:
            raise ValueError(
                f"{entries.path}: max_length must be at most {keys.max_positions}, {trained}; got {max_positions}"
            )
    is_scaled = family.scales_embeddings or (keys.scales_embeddings and entries.flag(keys.scales_embeddings))
    token_types = 0
    if keys.token_types:
        token_types = (entries.size if family.fewest_types else entries.count)(keys.token_types)
    table_dim = entries.size(keys.table_dim) if keys.table_dim else width
    return TokensConfig(
        vocab_size=entries.size("vocab_size"),
        embed_dim=width,
        max_positions=max_positions,
        trained_positions=trained or 0,
        has_positions=bool(names.front_end.positions or family.sines),
        sines=family.sines,
        first_position=first,
        padding=padding,
        token_types=token_types,
        scale=math.sqrt(width) if is_scaled else 1.0,
        scales_first=role == EMBEDDING,
        rounds_scale=family.scales_embeddings,
        norm=norm if names.front_end.norm else None,
        table_dim=None if table_dim == width else table_dim,
    )


def _positions(entries: Entries, family: Family, trained: int) -> tuple[int, int | None, int]:
    """Return the number of positions for tokens, the token of padding, and the row of the first position."""
    keys = family.keys
    if family.sines and trained > _MOST_SINES:
        raise ValueError(f"{entries.path}: {keys.max_positions} must be at most {_MOST_SINES}; got {shown(trained)}")
    if not keys.padding:
        return trained, None, family.first_position
    padding = entries.count(keys.padding)
    if family.sines:  # which have no table whose first rows are for padding
        if padding >= entries.size("vocab_size"):
            raise ValueError(f"{entries.path}: {keys.padding} must be less than vocab_size; got {shown(padding)}")
        return trained, padding, padding + 1
    if trained <= padding + 1:
        raise ValueError(
            f"{entries.path}: {keys.max_positions} must be more than {keys.padding} and 1, since positions "
            f"begin after them; got {trained} and {padding}"
        )
    return trained - padding - 1, padding, padding + 1


def _blocks(
    entries: Entries,
    family: Family,
    stack: StackKeys,
    norm: NormConfig,
    front_end: TokensConfig | FramesConfig | PatchesConfig,
    reads_memory: bool,
) -> tuple[BlockConfig, ...]:
    keys, width, num_heads = family.keys, entries.size(family.keys.embed_dim), entries.size(stack.num_heads)
    # By default a second stack has as many layers as the first.
    depth = stack.num_layers if entries.has(stack.num_layers) else keys.stacks[0].num_layers
    num_layers = entries.size(depth)
    if num_layers > _MOST_LAYERS:
        raise ValueError(f"{entries.path}: {depth} must be at most {_MOST_LAYERS}; got {shown(num_layers)}")
    num_kv_heads = (entries.size_or_none(keys.num_kv_heads) if keys.num_kv_heads else None) or num_heads
    if num_heads % num_kv_heads:
        raise ValueError(
            f"{entries.path}: {stack.num_heads} must be a multiple of {keys.num_kv_heads}; "
            f"got {num_heads} and {num_kv_heads}"
        )
    head_dim = entries.size_or_none(keys.head_dim) if keys.head_dim else None
    head_dim = head_dim or width_of_heads(entries, keys.embed_dim, stack.num_heads)
    activation, gated = family.activations[entries.choice(keys.activation, *family.activations)]
    tables = _rotary(entries, family, head_dim, front_end)
    if family.feedforward_factor is not None and not entries.has(stack.feedforward_dim):
        feedforward_dim = family.feedforward_factor * width
    else:
        feedforward_dim = entries.size(stack.feedforward_dim)
    block = BlockConfig(
        embed_dim=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        feedforward_dim=feedforward_dim,
        activation=activation,
        norm=norm,
        norms=family.norms,
        norm_first=family.norm_first,
        gated=gated,
        biases=frozenset().union(*(parts for flag, parts in family.biases.items() if not flag or entries.flag(flag))),
        parallel=family.parallel or bool(keys.parallel and entries.flag(keys.parallel)),
        qk_norm=norm._replace(kind="rms_joint") if family.joint_qk_norm else norm if family.qk_norm else None,
        softcap=entries.positive_or_none(keys.softcap) if keys.softcap else None,
        reads_memory=reads_memory,
        has_sinks=family.has_sinks,
        has_scales=family.has_scales,
    )
    window = family.window(entries)
    types = _layer_types(entries, family, window is not None, num_layers)
    return tuple(
        block._replace(
            rotary=tables.get(types[i], tables.get("")) if family.rotates(entries, i, types[i] == SLIDING) else None,
            window=window if types[i] == SLIDING else None,
            scale=family.scale(entries, i),
            experts=_experts(entries, family, i),
        )
        for i in range(num_layers)
    )


def _experts(entries: Entries, family: Family, i: int) -> ExpertsConfig | None:
    """Return the experts of layer i, of which there must be as many as a token chooses."""
    experts: ExpertsConfig | None = family.experts(entries, i)
    if experts is not None and experts.experts_per_token > experts.num_experts:
        raise ValueError(
            f"{entries.path}: a token must choose at most as many experts as there are, {experts.num_experts}; "
            f"got {shown(experts.experts_per_token)}"
        )
    return experts


def width_of_heads(entries: Entries, embed_dim: str, num_heads: str) -> int:
    """Return E / H, read from the entries of these names. ValueError unless E is a multiple of H."""
    width, heads = entries.size(embed_dim), entries.size(num_heads)
    if width % heads:
        raise ValueError(f"{entries.path}: {embed_dim} must be a multiple of {num_heads}; got {width} and {heads}")
    return width // heads


def _rotary(
    entries: Entries, family: Family, head_dim: int, front_end: TokensConfig | FramesConfig | PatchesConfig
) -> dict[str, RotaryConfig]:
    """Return the rotation of queries and keys by type of layer; "" for all types."""
    if not family.bases or not isinstance(front_end, TokensConfig) or front_end.max_positions is None:
        return {}
    tables = read_rotary(entries, head_dim, front_end.trained_positions, front_end.max_positions, family.bases)
    for rotary in tables.values() if not family.partial_rotary else ():
        if 2 * len(rotary.frequencies) != head_dim:
            raise ValueError(
                f"{entries.path}: partial_rotary_factor, of all layers or in rope_parameters, must turn all "
                f"{head_dim} features of a head; got {2 * len(rotary.frequencies)}"
            )
    return {kind: rotary._replace(interleaved=family.interleaved) for kind, rotary in tables.items()}


def _layer_types(entries: Entries, family: Family, has_window: bool, num_layers: int) -> list[str]:
    name = family.keys.layer_types
    if not name or not entries.has(name):
        return [SLIDING if has_window and family.is_sliding(entries, i) else FULL for i in range(num_layers)]
    given = entries.values[name]
    if not isinstance(given, list) or len(given) != num_layers or any(kind not in (FULL, SLIDING) for kind in given):
        raise ValueError(
            f"{entries.path}: {name} must be a list of {num_layers} {FULL!r} or {SLIDING!r}; got {shown(given)}"
        )
    if not has_window and SLIDING in given:
        raise ValueError(f"{entries.path}: {name} must not have {SLIDING!r} where there is no sliding_window")
    return given


def _buckets(entries: Entries, keys: Keys) -> BucketsConfig:
    number = entries.size(keys.num_buckets)
    if number < 4 or number % 4:
        raise ValueError(f"{entries.path}: {keys.num_buckets} must be a multiple of 4; got {shown(number)}")
    distance = entries.size(keys.max_distance) if keys.max_distance else 128
    # From this distance on all keys have one bucket: beyond the distances with a bucket each, in either stack.
    if not number // 2 < distance <= _MOST_DISTANCE:
        raise ValueError(
            f"{entries.path}: {keys.max_distance} must be more than half the buckets, {number // 2}, and at most "
            f"{_MOST_DISTANCE}; got {distance}"
        )
    return BucketsConfig(number, distance)


def _head(entries: Entries, keys: Keys) -> HeadConfig:
    softcap = entries.positive_or_none(keys.logit_softcap) if keys.logit_softcap else None
    scale = entries.positive(keys.logit_scale) if keys.logit_scale else 1.0
    return HeadConfig(is_tied=entries.flag("tie_word_embeddings"), scale=scale, softcap=softcap)
