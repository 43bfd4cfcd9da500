"""Tables of rotary angles, from the entries of config.json.

Rules that depend on the length of a text, dynamic and longrope, take the largest length that the model is opened for.
One table serves all calls, so a token has the same vector however long the text becomes.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...functions.messages import shown
from ..files.entries import Entries

Frequencies: TypeAlias = NDArray[np.float64]

# The largest numbers of positions and of features of a head, since a damaged file can name any number. The longest
# texts of models have about as many tokens, and their heads up to 512 features.
_MOST_POSITIONS, _MOST_HEAD_DIM = 1 << 20, 1 << 12

# Rows of a table that are computed at once, in float64: 4 MiB for heads of 128 features.
_ROWS = 4096


class RotaryConfig(NamedTuple):
    """The angles of the rotation of the first features of each head."""

    frequencies: tuple[float, ...]  # R / 2: pair i turns by ``position * frequencies[i]``
    max_positions: int  # P
    attention_factor: float = 1.0  # the factor of cosines and sines
    interleaved: bool = False  # whether pairs are neighbours, not one feature of each half of the R

    def table(self, dtype: DTypeLike = np.float32) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return cosines and sines, [P, R / 2] each, computed in float64."""
        shape = (self.max_positions, len(self.frequencies))
        cos, sin = np.empty(shape, dtype), np.empty(shape, dtype)
        for begin in range(0, self.max_positions, _ROWS):
            end = min(begin + _ROWS, self.max_positions)
            angles = np.arange(begin, end)[:, None] * np.array(self.frequencies)
            cos[begin:end] = np.cos(angles) * self.attention_factor
            sin[begin:end] = np.sin(angles) * self.attention_factor
        return cos, sin


class _Rule(NamedTuple):
    """The inputs of a rule of scaling."""

    entries: Entries
    trained_positions: int  # ``max_position_embeddings``
    max_positions: int  # the largest number of tokens that the model is opened for
    base: float  # of the frequencies

    @property
    def original_positions(self) -> int:
        return self.entries.size("original_max_position_embeddings", self.trained_positions)

    def factor_of_lengths(self) -> float:
        """Return ``factor``, or the ratio of the lengths of texts after and before the scaling."""
        if self.entries.has("factor"):
            return self.entries.positive("factor")
        return self.trained_positions / self.original_positions


def _default(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    return plain, 1.0


def _linear(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    return plain / rule.entries.positive("factor"), 1.0


def _dynamic(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    factor, rotary_dim = rule.entries.positive("factor"), 2 * len(plain)
    length = max(rule.max_positions, rule.trained_positions)
    if length == rule.trained_positions:
        return plain, 1.0
    if rotary_dim == 2:
        raise ValueError(f"{rule.entries.path}: rope_type must not be 'dynamic' where 2 features of a head are turned")
    growth = factor * length / rule.trained_positions - (factor - 1)
    return _plain(rotary_dim, rule.base * growth ** (rotary_dim / (rotary_dim - 2))), 1.0


def _yarn(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    rotary_dim, factor = 2 * len(plain), rule.factor_of_lengths()
    fast = rule.entries.positive("beta_fast") if rule.entries.values.get("beta_fast") else 32.0
    slow = rule.entries.positive("beta_slow") if rule.entries.values.get("beta_slow") else 1.0
    if rule.base == 1:
        raise ValueError(f"{rule.entries.path}: rope_theta must not be 1 with yarn")

    def pair_that_turns(times: float) -> float:
        """Return the number of the pair that turns `times` times in the original positions."""
        return rotary_dim * math.log(rule.original_positions / (times * 2 * math.pi)) / (2 * math.log(rule.base))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if rule.entries.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    # Pairs up to `low` are unchanged, pairs from `high` on are divided, with a linear transition between them.
    share = np.clip((np.arange(len(plain)) - low) / ((high - low) or 0.001), 0, 1)
    return plain / factor * share + plain * (1 - share), _attention_factor_of_yarn(rule, factor)


def _attention_factor_of_yarn(rule: _Rule, factor: float) -> float:
    if rule.entries.has("attention_factor"):
        return rule.entries.positive("attention_factor")

    def growth(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if rule.entries.values.get("mscale") and rule.entries.values.get("mscale_all_dim"):
        return growth(rule.entries.positive("mscale")) / growth(rule.entries.positive("mscale_all_dim"))
    return growth(1)


def _longrope(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    original = rule.original_positions
    name = "long_factor" if rule.max_positions > original else "short_factor"
    factors = {which: _factors(rule, which, len(plain)) for which in ("long_factor", "short_factor")}[name]
    if rule.entries.has("attention_factor"):
        return plain / factors, rule.entries.positive("attention_factor")
    growth = rule.factor_of_lengths()
    if growth <= 1 or original == 1:
        return plain / factors, 1.0
    return plain / factors, math.sqrt(1 + math.log(growth) / math.log(original))


def _factors(rule: _Rule, name: str, count: int) -> Frequencies:
    given = rule.entries.values.get(name)
    is_list = isinstance(given, list) and len(given) == count
    if not is_list or any(type(x) not in (int, float) or not 0 < x < math.inf for x in given or []):
        raise ValueError(f"{rule.entries.path}: {name} must be a list of {count} positive numbers; got {shown(given)}")
    return np.array(given, np.float64)


def _llama3(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    factor, low, high = (rule.entries.positive(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ValueError(
            f"{rule.entries.path}: low_freq_factor must be less than high_freq_factor; "
            f"got {shown(low)} and {shown(high)}"
        )
    turns = rule.original_positions * plain / (2 * math.pi)  # turns of each pair in the original positions
    share = np.clip((turns - low) / (high - low), 0, 1)  # fast pairs are unchanged, slow pairs divided
    return plain / factor * (1 - share) + plain * share, 1.0


_RULES: dict[str, tuple[Callable[[Frequencies, _Rule], tuple[Frequencies, float]], Collection[str]]] = {
    "default": (_default, ()),
    "linear": (_linear, ("factor",)),
    "dynamic": (_dynamic, ("factor",)),
    "yarn": (
        _yarn,
        (
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    ),
    "longrope": (
        _longrope,
        ("factor", "original_max_position_embeddings", "attention_factor", "long_factor", "short_factor"),
    ),
    "llama3": (_llama3, ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")),
}
_OF_ALL_RULES = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def read_rotary(
    config: Entries,
    head_dim: int,
    trained_positions: int,
    max_positions: int,
    bases: Mapping[str, tuple[str, float]],
) -> dict[str, RotaryConfig]:
    """Read the rotary positions of each type of layer: from ``rope_parameters`` or, in older files, from ``rope_theta``
    and ``rope_scaling``.

    The model is opened for at most `max_positions` tokens; `trained_positions` is ``max_position_embeddings``. `bases`
    has, by type of layer, the name and the default of the base in older files. Files with the types "" have one set of
    entries for all layers. With other types ``rope_parameters`` has one for each, and ``rope_scaling`` is for
    "full_attention".
    """
    if max_positions > _MOST_POSITIONS:
        raise ValueError(
            f"{config.path}: a model must have at most {_MOST_POSITIONS} positions (max_position_embeddings, or "
            f"max_length); got {shown(max_positions)}"
        )
    if head_dim > _MOST_HEAD_DIM:
        raise ValueError(f"{config.path}: heads must have at most {_MOST_HEAD_DIM} features; got {shown(head_dim)}")
    name = "rope_scaling" if config.values.get("rope_scaling") else "rope_parameters"
    given = _object(config, name)
    has_types = "" not in bases
    if has_types and name == "rope_scaling":
        given = given._replace(values={"full_attention": given.values})
    if has_types:
        given.refuse_others(bases)
    result = {}
    for layer_type, (base_name, default_base) in bases.items():
        entries = _object(given, layer_type, "." if name == "rope_parameters" else "") if has_types else given
        base, values = config.positive(base_name, default_base), {**entries.values}
        original = "original_max_position_embeddings"
        rule = values.get("rope_type", values.get("type"))
        if not has_types and config.has(original) and original in _RULES.get(str(rule), _RULES["default"])[1]:
            values[original] = config.values[original]
        if config.has("partial_rotary_factor"):
            values.setdefault("partial_rotary_factor", config.values["partial_rotary_factor"])
        entries = entries._replace(values=values)
        result[layer_type] = _rotary(entries, base, head_dim, trained_positions, max_positions)
    return result


def expect_rules(config: Entries, *rules: str) -> None:
    """Refuse other rules of rotary positions than `rules`."""
    for entries in _descriptions(config):
        entries.choice("rope_type" if "rope_type" in entries.values else "type", *rules, default="default")


def refuse_changing_angles(config: Entries) -> None:
    """Refuse rotary positions with angles that depend on the length of a text."""
    for entries in _descriptions(config):
        kind = "rope_type" if "rope_type" in entries.values else "type"
        if entries.values.get(kind) == "longrope":
            raise ValueError(
                f"{entries.path}: {kind} must not be 'longrope', since angles would depend on the length of a text"
            )


def _descriptions(config: Entries) -> Iterator[Entries]:
    """Yield the entries for all layers, and for the layers of each type."""
    for name in ("rope_parameters", "rope_scaling"):
        given = config.values.get(name)
        if isinstance(given, dict):
            yield Entries(f"{config.path}: {name}", given)
            yield from (
                Entries(f"{config.path}: {name}.{key}", of_type)
                for key, of_type in given.items()
                if isinstance(of_type, dict)
            )


def _object(entries: Entries, name: str, separator: str = ": ") -> Entries:
    """Return the entries of the object `name`, which are empty if it is null or absent."""
    value = entries.values.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{entries.path}: {name} must be an object; got {shown(value)}")
    return Entries(f"{entries.path}{separator}{name}" if separator else entries.path, value or {})


def _rotary(entries: Entries, base: float, head_dim: int, trained_positions: int, max_positions: int) -> RotaryConfig:
    kind = "rope_type" if "rope_type" in entries.values else "type"
    scaled, known = _RULES[entries.choice(kind, *_RULES, default="default")]
    entries.refuse_others({*_OF_ALL_RULES, *known})
    base = entries.positive("rope_theta", base)
    rotary_dim = int(head_dim * entries.positive("partial_rotary_factor", 1.0))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(
            f"{entries.path}: partial_rotary_factor must turn an even number of the features of a head (head_dim, "
            f"{head_dim}), and at least 2; got {rotary_dim}"
        )
    rule = _Rule(entries, trained_positions, max_positions, base)
    try:
        with np.errstate(over="ignore"):
            frequencies, attention_factor = scaled(_plain(rotary_dim, base), rule)
    except OverflowError:
        frequencies, attention_factor = np.full(1, np.inf), 1.0
    if not np.isfinite([*frequencies, attention_factor]).all():
        raise ValueError(
            f"{entries.path}: numbers must be such that angles are finite; got {shown(dict(entries.values))}"
        )
    return RotaryConfig(tuple(frequencies.tolist()), max_positions, attention_factor)


def _plain(rotary_dim: int, base: float) -> Frequencies:
    frequencies: Frequencies = base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    return frequencies
