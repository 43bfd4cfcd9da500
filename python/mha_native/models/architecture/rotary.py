"""By which angles queries and keys are turned: from what config.json says of it to tables of cosines and sines.

Rules that depend on the length of a text, dynamic and longrope, take the most positions that the model is opened for: a
table is one for all calls, so that a token has the same vector however long the text becomes.
"""

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...functions.messages import shown
from ..files.json_files import read_choice, read_flag, read_positive, read_size, refuse_other_keys

Frequencies: TypeAlias = NDArray[np.float64]

# Most positions and features of a head, of which tables are made: the longest texts that models read have about so many
# tokens, and their heads up to 512 features. A damaged file may name any number.
_MOST_POSITIONS, _MOST_HEAD_DIM = 1 << 20, 1 << 12

# Rows of a table that are computed at once, in float64: 4 MiB for heads of 128 features.
_ROWS = 4096


class RotaryConfig(NamedTuple):
    """By which angles the first features of each head are turned.

    Attributes
    ----------
    frequencies : tuple of float, R / 2 of them
        Pair i turns by ``position * frequencies[i]``.
    max_positions : int
        P.
    attention_factor : float
        What cosines and sines are multiplied with.
    interleaved : bool
        Pairs are neighbours, and not one feature of each half of the R.
    """

    frequencies: tuple[float, ...]
    max_positions: int
    attention_factor: float = 1.0
    interleaved: bool = False

    def table(self, dtype: DTypeLike = np.float32) -> tuple[NDArray[Any], NDArray[Any]]:
        """Cosines and sines: [P, R / 2] each, computed in float64."""
        shape = (self.max_positions, len(self.frequencies))
        cos, sin = np.empty(shape, dtype), np.empty(shape, dtype)
        for begin in range(0, self.max_positions, _ROWS):
            end = min(begin + _ROWS, self.max_positions)
            angles = np.arange(begin, end)[:, None] * np.array(self.frequencies)
            cos[begin:end] = np.cos(angles) * self.attention_factor
            sin[begin:end] = np.sin(angles) * self.attention_factor
        return cos, sin


class _Rule(NamedTuple):
    """What a rule of scaling reads.

    Attributes
    ----------
    where : str
        What messages call `values`.
    values : dict
        The entries for the rule.
    trained_positions : int
        ``max_position_embeddings``.
    max_positions : int
        What the model is opened for.
    base : float
        Of the frequencies.
    """

    where: str
    values: Mapping[str, Any]
    trained_positions: int
    max_positions: int
    base: float

    def number(self, name: str, default: float | None = None) -> float:
        return read_positive(self.where, self.values, name, default)

    def is_given(self, name: str) -> bool:
        return self.values.get(name) is not None

    @property
    def original_positions(self) -> int:
        return read_size(self.where, self.values, "original_max_position_embeddings", self.trained_positions)

    def factor_of_lengths(self) -> float:
        """``factor``, or else how many times as long texts are as before the scaling."""
        return self.number("factor") if self.is_given("factor") else self.trained_positions / self.original_positions


def _default(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    return plain, 1.0


def _linear(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    return plain / rule.number("factor"), 1.0


def _dynamic(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    factor, rotary_dim = rule.number("factor"), 2 * len(plain)
    length = max(rule.max_positions, rule.trained_positions)
    if length == rule.trained_positions:
        return plain, 1.0
    if rotary_dim == 2:
        raise ValueError(f"{rule.where}: rope_type must not be 'dynamic' where 2 features of a head are turned")
    growth = factor * length / rule.trained_positions - (factor - 1)
    return _plain(rotary_dim, rule.base * growth ** (rotary_dim / (rotary_dim - 2))), 1.0


def _yarn(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    rotary_dim, factor = 2 * len(plain), rule.factor_of_lengths()
    fast = rule.number("beta_fast") if rule.values.get("beta_fast") else 32.0
    slow = rule.number("beta_slow") if rule.values.get("beta_slow") else 1.0
    if rule.base == 1:
        raise ValueError(f"{rule.where}: rope_theta must not be 1 with yarn")

    def pair_that_turns(times: float) -> float:
        """The number of the pair that turns so often in the original positions."""
        return rotary_dim * math.log(rule.original_positions / (times * 2 * math.pi)) / (2 * math.log(rule.base))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if read_flag(rule.where, rule.values, "truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    # Pairs up to `low` are as they were, those from `high` on are divided, and between them it goes over.
    share = np.clip((np.arange(len(plain)) - low) / ((high - low) or 0.001), 0, 1)
    return plain / factor * share + plain * (1 - share), _attention_factor_of_yarn(rule, factor)


def _attention_factor_of_yarn(rule: _Rule, factor: float) -> float:
    if rule.is_given("attention_factor"):
        return rule.number("attention_factor")

    def growth(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if rule.values.get("mscale") and rule.values.get("mscale_all_dim"):
        return growth(rule.number("mscale")) / growth(rule.number("mscale_all_dim"))
    return growth(1)


def _longrope(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    original = rule.original_positions
    name = "long_factor" if rule.max_positions > original else "short_factor"
    factors = {which: _factors(rule, which, len(plain)) for which in ("long_factor", "short_factor")}[name]
    if rule.is_given("attention_factor"):
        return plain / factors, rule.number("attention_factor")
    growth = rule.factor_of_lengths()
    if growth <= 1 or original == 1:
        return plain / factors, 1.0
    return plain / factors, math.sqrt(1 + math.log(growth) / math.log(original))


def _factors(rule: _Rule, name: str, count: int) -> Frequencies:
    given = rule.values.get(name)
    is_list = isinstance(given, list) and len(given) == count
    if not is_list or any(type(x) not in (int, float) or not 0 < x < math.inf for x in given or []):
        raise ValueError(f"{rule.where}: {name} must be a list of {count} positive numbers; got {shown(given)}")
    return np.array(given, np.float64)


def _llama3(plain: Frequencies, rule: _Rule) -> tuple[Frequencies, float]:
    factor, low, high = (rule.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ValueError(
            f"{rule.where}: low_freq_factor must be less than high_freq_factor; got {shown(low)} and {shown(high)}"
        )
    turns = rule.original_positions * plain / (2 * math.pi)  # of each pair in the original positions
    share = np.clip((turns - low) / (high - low), 0, 1)  # what turns often is as it was, what turns seldom is divided
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
    path: Path,
    values: Mapping[str, Any],
    head_dim: int,
    trained_positions: int,
    max_positions: int,
    bases: Mapping[str, tuple[str, float]],
) -> dict[str, RotaryConfig]:
    """What config.json says of rotary positions, for each type of layer: in ``rope_parameters`` or, in older files, in
    ``rope_theta`` and ``rope_scaling``.

    Parameters
    ----------
    path, values
        config.json.
    head_dim : int
        D.
    trained_positions : int
        ``max_position_embeddings``.
    max_positions : int
        P, what the model is opened for.
    bases : dict of str to (str, float)
        By type of layer, the name and the default of the base in older files. Files with the types "" have one set of
        entries for all layers; with other types ``rope_parameters`` has one for each, and ``rope_scaling`` is that of
        "full_attention".
    """
    if max_positions > _MOST_POSITIONS:
        raise ValueError(
            f"{path}: a model must have at most {_MOST_POSITIONS} positions (max_position_embeddings, or max_length of "
            f"from_pretrained); got {shown(max_positions)}"
        )
    if head_dim > _MOST_HEAD_DIM:
        raise ValueError(f"{path}: heads must have at most {_MOST_HEAD_DIM} features; got {shown(head_dim)}")
    name = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
    given = _object(f"{path}", values, name)
    has_types = "" not in bases
    if has_types and name == "rope_scaling":
        given = {"full_attention": given}
    if has_types:
        refuse_other_keys(f"{path}: {name}", given, bases)
    result = {}
    for layer_type, (base_name, default_base) in bases.items():
        where = f"{path}: {name}" + f".{layer_type}" * (has_types and name == "rope_parameters")
        entries = _object(where.rpartition(".")[0], given, layer_type) if has_types else given
        base = read_positive(path, values, base_name, default_base)
        if not has_types and values.get("original_max_position_embeddings") is not None:
            entries = entries | {"original_max_position_embeddings": values["original_max_position_embeddings"]}
        if values.get("partial_rotary_factor") is not None:
            entries = {"partial_rotary_factor": values["partial_rotary_factor"]} | entries
        result[layer_type] = _rotary(where, entries, base, head_dim, trained_positions, max_positions)
    return result


def _object(where: str, values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The entry `name`; {} if it is null or absent."""
    value = values.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{where}: {name} must be an object; got {shown(value)}")
    return value or {}


def _rotary(
    where: str, entries: Mapping[str, Any], base: float, head_dim: int, trained_positions: int, max_positions: int
) -> RotaryConfig:
    kind = "rope_type" if "rope_type" in entries else "type"
    name = read_choice(where, entries, kind, "default", *_RULES)
    scaled, known = _RULES[name]
    refuse_other_keys(where, entries, {*_OF_ALL_RULES, *known})
    base = read_positive(where, entries, "rope_theta", base)
    rotary_dim = int(head_dim * read_positive(where, entries, "partial_rotary_factor", 1.0))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(
            f"{where}: an even number of the features of a head (head_dim, {head_dim}) must be turned, and at least 2; "
            f"got {rotary_dim}"
        )
    rule = _Rule(where, entries, trained_positions, max_positions, base)
    try:
        with np.errstate(over="ignore"):
            frequencies, attention_factor = scaled(_plain(rotary_dim, base), rule)
    except OverflowError:
        frequencies, attention_factor = np.full(1, np.inf), 1.0
    if not np.isfinite([*frequencies, attention_factor]).all():
        raise ValueError(f"{where}: numbers must be such that angles are finite; got {shown(dict(entries))}")
    return RotaryConfig(tuple(frequencies.tolist()), max_positions, attention_factor)


def _plain(rotary_dim: int, base: float) -> Frequencies:
    frequencies: Frequencies = base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    return frequencies
