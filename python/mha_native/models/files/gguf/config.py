"""The metadata of a GGUF file, in the terms of config.json and generation_config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....functions.messages import listed, shown
from ..entries import Entries
from .architectures import ARCHITECTURES, Architecture, architecture_of
from .element_types import READABLE
from .file import GGUFFile

# The tensor of divisors of the frequencies. Llama 3.1 and later models have it instead of a rule of scaling.
ROPE_FACTORS = "rope_freqs.weight"

# Names of entries of the metadata, without the name of the architecture.
_SIZES = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
}
_SIZES_OF_GPT2 = {
    "n_positions": "context_length",
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_inner": "feed_forward_length",
    "n_head": "attention.head_count",
}
_ROPE_SCALING = ("type", "factor", "original_context_length", "yarn_beta_fast", "yarn_beta_slow", "finetuned")
_OF_DECODERS = frozenset(
    {
        *_SIZES.values(),
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        *(f"rope.scaling.{name}" for name in _ROPE_SCALING),
        "vocab_size",
    }
)

_OF_EXPERTS = frozenset(
    {
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
    }
)

# Numbers of layers of the models that divide scores by the square root of E / H, not of D: the models with 27 billion
# weights. Files have no entry for it.
_GEMMA_LAYERS = {"gemma2": 46, "gemma3": 62}

# Every n-th layer has no window. The default of the entry sliding_window_pattern.
_PERIODS = {"gemma2": 2, "gemma3": 6, "olmo2": 4, "exaone4": 4, "cohere2": 4}

_WINDOWS = frozenset({"attention.sliding_window", "attention.sliding_window_pattern"})
_FURTHER: dict[str, frozenset[str]] = {
    "gemma2": _WINDOWS | {"attn_logit_softcapping", "final_logit_softcapping"},
    "gemma3": _WINDOWS | {"final_logit_softcapping", "rope.freq_base_swa"},
    "phi3": frozenset({"attention.sliding_window", "rope.scaling.attn_factor"}),
    "olmo2": _WINDOWS,
    "exaone4": _WINDOWS,
    "cohere2": frozenset({"attention.sliding_window"}),
    "gpt-oss": frozenset({"attention.sliding_window"}),
}

# Entries with only one supported value.
_FIXED = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "tensor_data_layout": "Meta AI original pth",  # the order of rows of queries and keys in every file
}


def read_architecture(file: GGUFFile) -> Architecture:
    """Return the architecture of the model in `file`. ValueError if it is unsupported, or the model incomplete."""
    metadata = file.metadata
    file.settings.expect({"general.type": "model"})
    if metadata.get("split.count", 1) not in (0, 1):
        raise ValueError(
            f"{file.path} is one of the {shown(metadata['split.count'])} files of a model; join them first"
        )
    file.settings.choice("general.architecture", *ARCHITECTURES)
    architecture = architecture_of(metadata)
    others = [name for name in file.entries if not architecture.is_known(name) and name != ROPE_FACTORS]
    if others:
        raise ValueError(f"{file.path} has unknown tensors: {listed(others)}")
    if unreadable := [f"{name} {entry.dtype}" for name, entry in file.entries.items() if entry.dtype not in READABLE]:
        raise ValueError(f"{file.path} has tensors of types other than {', '.join(READABLE)}: {listed(unreadable)}")
    return architecture


def read_config(file: GGUFFile) -> dict[str, Any]:
    """Return the entries of an equivalent config.json."""
    name = file.metadata["general.architecture"]
    values = _Values(file.path, file.metadata, name)
    architecture = architecture_of(file.metadata)
    config = {"model_type": architecture.model_type, **architecture.fixed}
    config["vocab_size"] = values.size("vocab_size", _num_tokens(file.metadata))
    config["tie_word_embeddings"] = "output.weight" not in file.entries
    if name == "gpt2":
        values.refuse_others({*_SIZES_OF_GPT2.values(), "vocab_size", "attention.layer_norm_epsilon"})
        config |= {key: values.size(entry) for key, entry in _SIZES_OF_GPT2.items()}
        config["layer_norm_epsilon"] = values.positive("attention.layer_norm_epsilon")
        return config
    eps = "attention.layer_norm_rms_epsilon" if architecture.eps == "rms_norm_eps" else "attention.layer_norm_epsilon"
    own = {eps, *architecture.numbers, *architecture.flags}
    own |= _OF_EXPERTS if architecture.has_experts else set()
    values.refuse_others(_OF_DECODERS | _FURTHER.get(name, frozenset()) | own)
    config |= {key: values.size(entry) for key, entry in _SIZES.items()}
    if config["num_hidden_layers"] > len(file.entries):
        raise ValueError(f"{file.path}: {values.name('block_count')} must be at most the number of tensors")
    config["num_key_value_heads"] = values.size("attention.head_count_kv", config["num_attention_heads"])
    config["head_dim"] = _head_dim(values, config)
    config[architecture.eps] = values.positive(eps)
    config |= {key: values.positive(entry) for entry, key in architecture.numbers.items()}
    config |= {key: values.entries.choice(values.name(entry), True, False) for entry, key in architecture.flags.items()}
    if architecture.bias_flag:
        config[architecture.bias_flag] = "blk.0.attn_q.bias" in file.entries
    if architecture.has_experts:
        config |= _experts(values, config)
    turned = _rotary_dim(values, config, architecture.is_partial)
    config["rope_parameters"] = _rope(file, values, config, turned)
    if name == "gpt-oss":
        config["sliding_window"] = values.size("attention.sliding_window")
        config["intermediate_size"] = config["moe_intermediate_size"]
        config["rope_parameters"]["truncate"] = False
        if config["rope_parameters"]["rope_type"] != "yarn":
            raise ValueError(f"{file.path}: {values.name('rope.scaling.type')} must be yarn")
    elif name == "phi3":
        config |= _phi3(file, values, config, turned)
    elif name in _GEMMA_LAYERS:
        config |= _gemma(values, config)
    elif name in _PERIODS:
        config |= _windowed(values, config)
    return config


def read_generation(file: GGUFFile) -> dict[str, Any]:
    """Return the entries of an equivalent generation_config.json: the tokens that begin, pad and end texts."""
    roles = {"bos_token_id": "bos", "pad_token_id": "padding"}
    generation: dict[str, Any] = {key: read_token(file, role) for key, role in roles.items()}
    # Tokens that end a text, a turn or a message. Each of them ends a generated text.
    ends = list(dict.fromkeys(read_token(file, role) for role in ("eos", "eot", "eom")))
    tokens = [token for token in ends if token is not None]
    generation["eos_token_id"] = tokens if len(tokens) > 1 else next(iter(tokens), None)
    return {key: tokens for key, tokens in generation.items() if tokens is not None}


def read_token(file: GGUFFile, role: str) -> int | None:
    """Return the number of the token in a special role, such as bos, or None."""
    name = f"tokenizer.ggml.{role}_token_id"
    if name not in file.metadata:
        return None
    token, num_tokens = file.settings.count(name), _num_tokens(file.metadata)
    if num_tokens is not None and token >= num_tokens:
        raise ValueError(f"{file.path}: {name} must be one of the {num_tokens} tokens; got {token}")
    return token


class _Values(NamedTuple):
    """The entries of an architecture, by their names without the name of the architecture."""

    path: Path
    metadata: Mapping[str, Any]
    architecture: str

    @property
    def entries(self) -> Entries:
        return Entries(self.path, self.metadata)

    def name(self, entry: str) -> str:
        return f"{self.architecture}.{entry}"

    def __contains__(self, entry: object) -> bool:
        return f"{self.architecture}.{entry}" in self.metadata

    def size(self, entry: str, default: int | None = None) -> int:
        return self.entries.size(self.name(entry), default)

    def positive(self, entry: str, default: float | None = None) -> float:
        return self.entries.positive(self.name(entry), default)

    def refuse_others(self, known: frozenset[str] | set[str]) -> None:
        """Refuse entries of the architecture that are not in `known`, and unsupported values."""
        own = {name: value for name, value in self.metadata.items() if name.startswith(self.name(""))}
        entries = Entries(self.path, own)
        entries.refuse_others({self.name(entry) for entry in {*known, *_FIXED}})
        entries.expect({self.name(entry): value for entry, value in _FIXED.items() if entry not in known})


def _num_tokens(metadata: Mapping[str, Any]) -> int | None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else None


def _experts(values: _Values, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the experts of a layer, by their names in all families."""
    inner = values.size("expert_feed_forward_length", config["intermediate_size"])
    count = values.size("expert_count")
    further = {"num_experts": count, "num_local_experts": count, "moe_intermediate_size": inner}
    further["num_experts_per_tok"] = values.size("expert_used_count")
    further["shared_expert_intermediate_size"] = values.size("expert_shared_feed_forward_length", inner)
    return further


def _head_dim(values: _Values, config: Mapping[str, Any]) -> int:
    """Return D, which must be the width of a key and of a value."""
    head_dim = values.size("attention.key_length", config["hidden_size"] // config["num_attention_heads"] or None)
    _expect_width(values, "attention.value_length", head_dim)
    if head_dim % 2:
        raise ValueError(f"{values.path}: the width of a key must be even; got {head_dim}")
    return head_dim


def _expect_width(values: _Values, entry: str, head_dim: int) -> None:
    if values.size(entry, head_dim) != head_dim:
        raise ValueError(
            f"{values.path}: {values.name(entry)} must be the width of a key, {head_dim}; got {values.size(entry)}"
        )


def _rotary_dim(values: _Values, config: Mapping[str, Any], is_partial: bool) -> int:
    """Return the number of features of a head that are rotated."""
    entry, head_dim = "rope.dimension_count", config["head_dim"]
    turned = values.size(entry, head_dim)
    if not is_partial:
        _expect_width(values, entry, head_dim)
    if turned % 2 or turned > head_dim:
        raise ValueError(
            f"{values.path}: {values.name(entry)} must be even, and at most the width of a key, {head_dim}; "
            f"got {turned}"
        )
    return turned


def _rope(file: GGUFFile, values: _Values, config: Mapping[str, Any], turned: int) -> dict[str, Any]:
    """Return the entry rope_parameters, the rotation of `turned` features of queries and keys."""
    base = values.positive("rope.freq_base", 10000.0)
    scaling = values.name("rope.scaling.type")
    kind = values.entries.choice(scaling, "none", "linear", "yarn", default="none")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    if ARCHITECTURES[values.architecture].is_partial:
        # Half a feature more, since a product that is rounded down in transformers must not be.
        rope["partial_rotary_factor"] = (turned + 0.5) / config["head_dim"]
    if kind != "none":
        rope |= {"rope_type": kind, "factor": values.positive("rope.scaling.factor")}
    elif "rope.scaling.factor" in values and values.positive("rope.scaling.factor") != 1:
        raise ValueError(f"{values.path}: {scaling} must be linear or yarn with a factor; got none")
    if kind == "yarn":
        rope["original_max_position_embeddings"] = values.size("rope.scaling.original_context_length")
        for key in ("beta_fast", "beta_slow"):
            if f"rope.scaling.yarn_{key}" in values:
                rope[key] = values.positive(f"rope.scaling.yarn_{key}")
    if ROPE_FACTORS in file.entries:
        if kind != "none":
            raise ValueError(f"{values.path}: {scaling} must be none with {ROPE_FACTORS}; got {kind}")
        factors = _divisors(file, ROPE_FACTORS, turned)
        rope |= _divided(factors, factors, config)
    return rope


def _divisors(file: GGUFFile, name: str, turned: int) -> list[float]:
    """Return the numbers by which a tensor divides the frequencies."""
    if name not in file.entries:
        raise ValueError(f"{file.path}: {name} is missing")
    entry, expected = file.entries[name], (turned // 2,)
    if entry.shape != expected or entry.dtype != "F32":
        raise ValueError(
            f"{file.path}: {name} must be F32 {list(expected)}; got {entry.dtype} {shown(list(entry.shape))}"
        )
    factors = file.read(name)
    if not ((factors > 0) & np.isfinite(factors)).all():
        raise ValueError(f"{file.path}: {name} must hold positive numbers; got {shown(factors.tolist())}")
    numbers: list[float] = factors.tolist()
    return numbers


def _divided(short: list[float], long: list[float], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return rope_parameters that divide each frequency by its own number, called longrope in transformers."""
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def _phi3(file: GGUFFile, values: _Values, config: Mapping[str, Any], turned: int) -> dict[str, Any]:
    """Return the further entries of Phi-3: a window, of which 0 is none, and two sets of divisors of frequencies."""
    window = values.entries.count(values.name("attention.sliding_window"), 0)
    further: dict[str, Any] = {"sliding_window": window or None}
    names = ("rope_factors_short.weight", "rope_factors_long.weight")
    if any(name in file.entries for name in names):
        short, long = (_divisors(file, name, turned) for name in names)
        rope = config["rope_parameters"] | _divided(short, long, config)
        rope["attention_factor"] = values.positive("rope.scaling.attn_factor")
        original = values.size("rope.scaling.original_context_length")
        further |= {"rope_parameters": rope | {"original_max_position_embeddings": original}}
        further["original_max_position_embeddings"] = original
    elif "rope.scaling.attn_factor" in values:
        raise ValueError(
            f"{values.path}: {values.name('rope.scaling.attn_factor')} must not be given without {names[1]}"
        )
    return further


def _windowed(values: _Values, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the further entries of models with windows in some layers, which may also have none."""
    name, num_layers = values.architecture, config["num_hidden_layers"]
    if "attention.sliding_window" not in values and name != "cohere2":
        return {"sliding_window": None}
    further: dict[str, Any] = {
        "sliding_window": values.size("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if has_window else "full_attention" for has_window in _windows(values, num_layers)
        ],
    }
    if name == "olmo2":  # OLMo 3, in which only the positions of layers without a window are scaled
        full = config["rope_parameters"]
        local = {"rope_type": "default", "rope_theta": full["rope_theta"]}
        further |= {"model_type": "olmo3", "rope_parameters": {"full_attention": full, "sliding_attention": local}}
    return further


def _gemma(values: _Values, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the further entries of Gemma 2 and 3: layers with windows, caps, and the scale of scores."""
    name, num_layers = values.architecture, config["num_hidden_layers"]
    divides_by_heads = num_layers == _GEMMA_LAYERS[name]
    further = {
        "query_pre_attn_scalar": (
            config["hidden_size"] // config["num_attention_heads"] if divides_by_heads else config["head_dim"]
        ),
        "sliding_window": values.size("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if has_window else "full_attention" for has_window in _windows(values, num_layers)
        ],
    }
    if name == "gemma2":
        return further | {cap: values.positive(cap) for cap in ("attn_logit_softcapping", "final_logit_softcapping")}
    cap = "final_logit_softcapping"
    further[cap] = values.positive(cap) if cap in values else None
    local = {"rope_type": "default", "rope_theta": values.positive("rope.freq_base_swa", 10000.0)}
    return further | {"rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local}}


def _windows(values: _Values, num_layers: int) -> list[bool]:
    """Return whether each layer has a window."""
    entry = values.name("attention.sliding_window_pattern")
    given = values.metadata.get(entry, _PERIODS[values.architecture])
    if isinstance(given, np.ndarray) and given.dtype == bool and len(given) == num_layers:
        return [bool(has_window) for has_window in given]
    if type(given) is not int or given < 1:
        raise ValueError(
            f"{values.path}: {entry} must be an integer of at least 1 or {num_layers} flags; got {shown(given)}"
        )
    return [(i + 1) % given != 0 for i in range(num_layers)]
