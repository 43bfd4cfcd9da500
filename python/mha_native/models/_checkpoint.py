"""Files of a pretrained model: JSON and safetensors, checked before a number is read."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core

FUNCTION = "SentenceEncoder.from_pretrained"  # which error messages begin with

# Dtypes that float32 holds without loss, by their names in safetensors.
_DTYPES = ("F32", "F16", "BF16")

_MOST_LISTED = 8  # names that an error message lists at most


def require_file(path: Path) -> Path:
    """`path`, or FileNotFoundError if it is no file."""
    if not path.is_file():
        raise FileNotFoundError(f"{FUNCTION}: {path} does not exist, or is no file")
    return path


def read_json(path: Path, kind: type) -> Any:
    """The JSON object (`kind` is dict) or list in a file."""
    try:
        value = json.loads(require_file(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
        raise ValueError(f"{FUNCTION}: {path} is no valid JSON: {error}") from error
    if not isinstance(value, kind):
        expected = "an object" if kind is dict else "a list"
        raise ValueError(f"{FUNCTION}: {path} must hold {expected}; got {type(value).__name__}")
    return value


def read_size(path: Path, values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The entry `name` of what was read from `path`: an integer of at least 1."""
    value = values.get(name, default)
    if type(value) is not int or value < 1:
        raise ValueError(f"{FUNCTION}: {path}: {name} must be an integer of at least 1; got {value!r}")
    return value


class Checkpoint:
    """The tensors of a safetensors file, by the names of `shapes`, each read when it is asked for.

    A context manager. All names, shapes and dtypes have been checked when it opens, so that nothing is half-loaded.
    In the file names may begin with ``bert.``, and norms may have their old names, ``gamma`` and ``beta``.

    Raises
    ------
    ValueError
        If the file is damaged, or does not hold all tensors in their shapes: one message names them all.
    """

    def __init__(self, path: Path, shapes: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        from safetensors import SafetensorError, safe_open  # type: ignore[import-not-found, unused-ignore]

        require_file(path)
        try:
            self._file: Any = safe_open(path, framework="numpy")
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{FUNCTION}: {path} is no valid safetensors file: {error}") from error
        self._path = path
        self._names: dict[str, str] = {}  # name in the model -> name in the file
        try:
            self._check(shapes)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> "Checkpoint":
        self._file.__enter__()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.__exit__(kind, error, trace)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """A copy of the tensor, in float32."""
        name = self._names[name]
        if self._file.get_slice(name).get_dtype() == "BF16":  # safetensors gives NumPy no bfloat16
            return _core.convert(self._read_bfloat16(name), "float32")
        tensor: NDArray[Any] = self._file.get_tensor(name)
        return tensor.astype(np.float32, copy=False)

    def _read_bfloat16(self, name: str) -> NDArray[Any]:
        """Read a tensor. The file holds the size of the header in 8 bytes, the header in JSON, then all tensors."""
        with open(self._path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            tensor = json.loads(file.read(size))[name]
            file.seek(8 + size + tensor["data_offsets"][0])
            bits = np.fromfile(file, "<u2", math.prod(tensor["shape"]))
        return bits.astype(np.uint16, copy=False).reshape(tensor["shape"]).view(_core.bfloat16())

    def _check(self, shapes: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        present = {_plain_name(name): name for name in self._file.keys()}  # noqa: SIM118  (no mapping)
        missing, misshapen, unreadable = [], [], []
        for name, shape in shapes:
            if name not in present:
                missing.append(name)
                if len(missing) > _MOST_LISTED:
                    break  # config.json may name any number of layers
                continue
            tensor = self._file.get_slice(present[name])
            actual, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
            if actual != shape:
                misshapen.append(f"{name} {list(actual)} instead of {list(shape)}")
            if dtype not in _DTYPES:
                unreadable.append(f"{name} {dtype} instead of {' or '.join(_DTYPES)}")
            self._names[name] = present[name]
        complaints = {"missing": missing, "of the wrong shape": misshapen, "of another dtype": unreadable}
        if any(complaints.values()):
            words = "; ".join(f"{what}: {_listed(names)}" for what, names in complaints.items() if names)
            raise ValueError(f"{FUNCTION}: {self._path} does not hold the model of config.json: {words}")


def _plain_name(name: str) -> str:
    name = name.removeprefix("bert.")
    for old, new in ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_LISTED]) + (" and more" if len(names) > _MOST_LISTED else "")
