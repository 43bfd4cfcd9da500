"""The entry quantization_config of config.json: the way in which the matrices of a folder are quantized."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...functions.messages import shown
from .entries import Entries

# Both are integers of 4 bits; the features of a group, neighbours in a row, share a scale and a zero point.
AWQ, GPTQ = "awq", "gptq"

_ADVICE = "open the model's files in bfloat16, or a GGUF file of the model"

# The entries that name the layout of tensors, and its supported values, the default first.
_LAYOUTS: dict[str, Any] = {
    AWQ: (("version", "format"), "gemm"),
    GPTQ: (("checkpoint_format", "format"), "gptq", "gptq_v2"),
}

# Entries that change the meaning of the tensors.
_UNKNOWN = ("dynamic", "rotation", "adapter", "is_marlin_format")


class Quantization(NamedTuple):
    """Matrices of 4-bit integers in groups of features."""

    method: str  # AWQ or GPTQ
    group_size: int | None  # features of a group; None: the whole row
    zeros_are_less: bool  # whether the file has the zero points minus 1


def read_quantization(entries: Entries, by_families: Sequence[str] = ()) -> Quantization | None:
    """Read quantization_config, an entry of config.json; None if it is absent or empty.

    None also for the methods `by_families`, whose tensors a family reads itself.

    Raises ValueError, with advice, if the method or one of its options is unsupported.
    """
    given = entries.values.get("quantization_config")
    if not given:
        return None

    def refused(rule: str) -> ValueError:
        return ValueError(f"{entries.path}: quantization_config must {rule}; got {shown(given)}: {_ADVICE}")

    method = given.get("quant_method") if isinstance(given, dict) else None
    if method in by_families:
        return None
    if method not in (AWQ, GPTQ):
        name = "" if method is None else f", not {shown(method)}"
        raise refused(f"be absent, or have quant_method {AWQ!r} or {GPTQ!r}{name}")

    def checked(names: tuple[str, ...], default: Any, *allowed: Any) -> Any:
        """Return the value of the first of `names` that is present, one of `allowed`."""
        name = next((name for name in names if given.get(name) is not None), names[0])
        value = given.get(name, default)
        if isinstance(value, str):
            value = value.lower()
        if value not in allowed or type(value) is not type(allowed[0]):
            raise refused(f"have {name} {' or '.join(map(repr, allowed))}, not {shown(value)}")
        return value

    checked(("bits",), 4 if method == AWQ else None, 4)
    checked(("pack_dtype",), "int32", "int32")
    if given.get("desc_act") not in (None, False):
        raise refused("have desc_act False, since the features of a group must be neighbours")
    names, *layouts = _LAYOUTS[method]
    layout = checked(names, layouts[0], *layouts)
    if found := [name for name in _UNKNOWN if given.get(name)]:
        raise refused(f"have no {found[0]}, which is unsupported")
    size = given.get("group_size", 128)
    if type(size) is not int or (size != -1 and (size < 32 or size % 32)):
        raise refused(f"have a group_size of -1 or a multiple of 32, not {shown(size)}")
    return Quantization(method, None if size == -1 else size, layout == "gptq")
