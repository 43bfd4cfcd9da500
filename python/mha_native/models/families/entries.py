"""Entries of config.json that several families have, each checked."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..architecture.config_entries import ABSENT, refuse_present, width_of_heads
from ..architecture.rotary import RotaryConfig, read_rotary
from ..files.json_files import read_choice, read_size
from .family import Family


def check_is_encoder(path: Path, values: Mapping[str, Any], family: Family) -> None:
    """ValueError if config.json, read from `path`, describes what no encoder of the family computes."""
    read_choice(path, values, "is_decoder", False, False)
    read_choice(path, values, "add_cross_attention", False, False)
    refuse_present(path, values, {**ABSENT, **family.absent})


def read_heads(path: Path, values: Mapping[str, Any], embed_dim: str, num_heads: str) -> tuple[int, int]:
    """E and H, which have entries of these names. ValueError unless the former is a multiple of the latter."""
    width, heads = read_size(path, values, embed_dim), read_size(path, values, num_heads)
    width_of_heads(path, (embed_dim, num_heads), width, heads)
    return width, heads


def read_turns(
    path: Path,
    values: Mapping[str, Any],
    head_dim: int,
    positions: int,
    bases: Mapping[str, tuple[str, float]],
) -> dict[str, RotaryConfig]:
    """How heads turn, by the types of layers in `bases`: see `read_rotary`."""
    check_turns(path, values)
    read_choice(path, values, "partial_rotary_factor", 1.0, 1.0)
    for where, entries in _descriptions_of_turns(path, values):
        read_choice(where, entries, "partial_rotary_factor", 1.0, 1.0)
    return read_rotary(path, values, head_dim, positions, positions, bases)


def check_turns(path: Path, values: Mapping[str, Any]) -> None:
    """ValueError if tokens of a long text turn by other angles than those of a short one."""
    for where, entries in _descriptions_of_turns(path, values):
        kind = "rope_type" if "rope_type" in entries else "type"
        if entries.get(kind) == "longrope":
            raise ValueError(
                f"{where}: {kind} must not be 'longrope', with which angles depend on the length of a text"
            )


def _descriptions_of_turns(path: Path, values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What config.json says of angles, and where: for all layers, or for those of a type."""
    for name in ("rope_parameters", "rope_scaling"):
        given = values.get(name)
        if isinstance(given, dict):
            yield f"{path}: {name}", given
            yield from (
                (f"{path}: {name}.{key}", of_type) for key, of_type in given.items() if isinstance(of_type, dict)
            )
