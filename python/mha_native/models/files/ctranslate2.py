"""A folder as CTranslate2 writes it for Whisper: model.bin with sizes and tensors, config.json with tokens.

model.bin, in little-endian order: the version of the format, the name of the kind of model and its revision, the number
of variables, and each variable with its name, its shape, the number of its type, its bytes in number, and its bytes;
then aliases, which are further names of variables. Every number is compared with the size of the file before its use.
"""

import math
import re
import struct
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import listed, shown
from ..text.tokenizer import read_library
from .checkpoint import Checkpoint
from .json_files import read_json
from .tensor_file import PLAIN_READERS, TensorEntry, TensorFile

# The one version of the format in which CTranslate2 3 and 4 write Whisper, and the one revision of that kind of model.
_VERSION, _KIND, _REVISION = 6, "WhisperSpec", 3

# Types by their numbers: names, and bytes of an element.
_TYPES = {0: ("F32", 4), 1: ("I8", 1), 2: ("I16", 2), 3: ("I32", 4), 4: ("F16", 2), 5: ("BF16", 2)}
_SCALARS = {"F32": "<f4", "I8": "<i1", "I16": "<i2", "I32": "<i4"}

# Limits of numbers in a damaged file. The largest Whisper has some 1,300 variables.
_MOST_VARIABLES, _MOST_AXES = 1 << 14, 8

# Settings that are variables without axes, by the ends of their names, with the values that Whisper has; None: any.
_ACTIVATION_GELU = 3
_SETTINGS = {
    "num_heads": None,
    "activation": _ACTIVATION_GELU,
    "alibi": 0,
    "alibi_use_positive_positions": None,  # without alibi neither this one nor the next has an effect
    "scale_alibi": None,
    "alignment_heads": None,  # of CTranslate2's own use, for other models; the ones of Whisper are in config.json
    "alignment_layer": None,
    "multi_query_attention": 0,
    "pre_norm": 1,
    "scale_embeddings": 0,
    "start_from_zero_embedding": 0,
}

# Names of tensors in transformers, without the number of the layer, by the names of parts here. A part with several
# names has their rows one below the other. Each encoder or decoder is a prefix.
_PARTS = {
    "conv1": ("conv1",),
    "conv2": ("conv2",),
    "layer_norm": ("layer_norm",),
    "embeddings": ("embed_tokens",),
    "projection": ("proj_out",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
_ENDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "weight_scale": "weight_scale"}
_NAME = re.compile(r"(encoder|decoder)/(?:layer_(\d{1,4})/)?(?:(.+)/)?(\w+)", re.ASCII)

_KEY_BIAS = "k_proj.bias"  # zeros, which transformers does not have


class Variable(NamedTuple):
    """A variable in model.bin."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class CTranslate2File(TensorFile):
    """The file model.bin of a Whisper, as a `TensorFile` with the names of transformers.

    Matrices of int8 are read as integers divided by the scales of their rows, in float32. `settings` are the variables
    without axes, and `shapes` the shapes of others, by their names in the file.
    """

    kind = "CTranslate2"
    described_by = "its variables"
    readable = (*PLAIN_READERS, "I8")

    def read(self, name: str) -> NDArray[np.float32]:
        entry = self.entries[name]
        if entry.dtype != "I8":
            return super().read(name)
        scales = super().read(f"{name}_scale")
        if not (np.isfinite(scales).all() and (scales > 0).all()):
            raise ValueError(f"{self.path}: the scales of {name} must be positive numbers")
        rows = self.bytes_of(name).view(np.int8).reshape(len(scales), -1).astype(np.float32)
        rows /= scales[:, np.newaxis]
        return rows.reshape(entry.shape)

    def _read_header(self, file: IO[bytes], file_bytes: int) -> tuple[dict[str, TensorEntry], int]:
        cursor = _Cursor(file, file_bytes)
        version = cursor.integer("<I", "the version of the format")
        if version != _VERSION:
            raise ValueError(f"its format must be of version {_VERSION}; got {version}")
        kind, revision = cursor.name("the kind of model"), cursor.integer("<I", "the revision of the model")
        if (kind, revision) != (_KIND, _REVISION):
            raise ValueError(f"it must be a {_KIND} of revision {_REVISION}; got {shown(kind)} of revision {revision}")
        variables = _variables(cursor)
        self.settings: dict[str, int] = {}
        self.shapes = {name: variable.shape for name, variable in variables.items()}
        entries: dict[str, TensorEntry] = {}
        for name, variable in variables.items():
            if variable.shape or name.endswith("_scale"):
                entries |= _in_transformers(name, variable)
            else:
                self.settings[name] = _setting(cursor, name, variable)
        for name, entry in entries.items():
            if entry.dtype == "I8":
                _check_scales(name, entry, entries.get(f"{name}_scale"))
            if name.endswith(_KEY_BIAS) and any(cursor.at(entry.begin, entry.end - entry.begin)):
                raise ValueError(f"{name} must be zeros, since keys of Whisper have no bias")
        return entries, 0


class CTranslate2Source:
    """A Whisper in a folder of CTranslate2, in the terms of a folder of transformers: a `Source`.

    model.bin and config.json are read and checked at once, the tokenizer and tensors on demand.

    Raises OSError or ValueError if a file cannot be read or is damaged, or is not a Whisper.
    """

    chat_template = None
    tokenizer_config: Mapping[str, Any] = {}

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model.bin"
        self._folder = folder
        with CTranslate2File(self.path) as file:
            self.config: Mapping[str, Any] = _config(file)

    @cached_property
    def generation(self) -> Mapping[str, Any]:
        """The entries of config.json, with the names of generation_config.json."""
        names = {"suppress_ids": "suppress_tokens", "suppress_ids_begin": "begin_suppress_tokens"}
        path = self._folder / "config.json"
        values: dict[str, Any] = read_json(path, dict) if path.exists() else {}
        return {names.get(name, name): value for name, value in values.items()}

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer.json."""
        return (self._folder / "tokenizer.json").exists()

    def tokenizer(self) -> Any:
        """Return the ``tokenizers.Tokenizer`` of tokenizer.json, without padding and truncation."""
        return read_library(self._folder, self.tokenizer_config, is_cut=False)

    def tensors(self, shapes: Iterable[tuple[str, tuple[int, ...]]], prefix: str = "") -> Checkpoint:
        """Return the tensors of `shapes`; `prefix` has no effect."""
        return Checkpoint(self.path, shapes, open_file=CTranslate2File)


def is_ctranslate2(folder: Path) -> bool:
    """Return whether CTranslate2 has written a folder: config.json there names no model_type."""
    if not (folder / "model.bin").is_file():
        return False
    path = folder / "config.json"
    return not path.exists() or "model_type" not in read_json(path, dict)


class _Cursor:
    """A position in a file, which never moves beyond its end."""

    def __init__(self, file: IO[bytes], file_bytes: int) -> None:
        self._file, self._end = file, file_bytes
        self.position = 0

    def take(self, count: int, what: str) -> bytes:
        """Return the next `count` bytes."""
        self.skip(count, what)
        return self.at(self.position - count, count)

    def skip(self, count: int, what: str) -> None:
        """Move by `count` bytes."""
        self.position += count
        if self.position > self._end:
            raise ValueError(f"it has {self._end} bytes, and {what} goes on to byte {self.position}")

    def at(self, begin: int, count: int) -> bytes:
        """Return `count` bytes from `begin` on, which `take` or `skip` has passed."""
        self._file.seek(begin)
        raw = self._file.read(count)
        if len(raw) != count:
            raise ValueError(f"it has been cut short, at byte {begin + len(raw)}")
        return raw

    def integer(self, form: str, what: str) -> int:
        number: int = struct.unpack(form, self.take(struct.calcsize(form), what))[0]
        return number

    def name(self, what: str) -> str:
        raw = self.take(self.integer("<H", what), what)
        if raw[-1:] != b"\0" or not raw[:-1].isascii() or b"\0" in raw[:-1]:
            raise ValueError(f"{what} must be a name in ASCII that ends with a zero byte; got {shown(raw)}")
        return raw[:-1].decode()

    def count(self, what: str) -> int:
        number = self.integer("<I", f"the number of {what}")
        if number > _MOST_VARIABLES:
            raise ValueError(f"it must have at most {_MOST_VARIABLES} {what}; got {number}")
        return number

    @property
    def is_at_end(self) -> bool:
        return self.position == self._end


def _variables(cursor: _Cursor) -> dict[str, Variable]:
    """Return the variables by their names and aliases."""
    variables: dict[str, Variable] = {}

    def checked_new(name: str) -> str:
        if name in variables:
            raise ValueError(f"variable {shown(name)} is in it more than once")
        return name

    for _ in range(cursor.count("variables")):
        name = checked_new(cursor.name("the name of a variable"))
        variables[name] = _variable(cursor, f"variable {shown(name)}")
    for _ in range(cursor.count("aliases")):
        alias, name = checked_new(cursor.name("an alias")), cursor.name("the variable of an alias")
        if name not in variables:
            raise ValueError(f"alias {shown(alias)} must be of a variable before it; got {shown(name)}")
        variables[alias] = variables[name]
        if (scale := variables.get(f"{name}_scale")) is not None:  # which has no alias of its own
            variables.setdefault(f"{alias}_scale", scale)
    if not cursor.is_at_end:
        raise ValueError(f"it must end at byte {cursor.position}, after its aliases")
    return variables


def _variable(cursor: _Cursor, what: str) -> Variable:
    num_axes = cursor.integer("<B", what)
    if num_axes > _MOST_AXES:
        raise ValueError(f"{what} must have at most {_MOST_AXES} axes; got {num_axes}")
    shape = tuple(cursor.integer("<I", what) for _ in range(num_axes))
    number, num_bytes = cursor.integer("<B", what), cursor.integer("<I", what)
    if number not in _TYPES:
        raise ValueError(f"{what} must be of one of the types 0 to {max(_TYPES)}; got {number}")
    dtype, item_bytes = _TYPES[number]
    if math.prod(shape) * item_bytes != num_bytes:
        raise ValueError(
            f"{what} must have {math.prod(shape) * item_bytes} bytes for {dtype} {list(shape)}; got {num_bytes}"
        )
    begin = cursor.position
    cursor.skip(num_bytes, what)
    return Variable(dtype, shape, begin, cursor.position)


def _setting(cursor: _Cursor, name: str, variable: Variable) -> int:
    """Return the value of a variable without axes."""
    end = name.rpartition("/")[2]
    if end not in _SETTINGS or variable.dtype not in _SCALARS:
        raise ValueError(f"variable {shown(name)} is unknown, and might change the results")
    raw = cursor.at(variable.begin, variable.end - variable.begin)
    value = np.frombuffer(raw, _SCALARS[variable.dtype])[0].item()
    expected = _SETTINGS[end]
    if expected is not None and value != expected:
        raise ValueError(f"variable {shown(name)} must be {expected} in a Whisper; got {value}")
    if type(value) is not int:
        raise ValueError(f"variable {shown(name)} must be an integer; got {value}")
    return value


def _in_transformers(name: str, variable: Variable) -> dict[str, TensorEntry]:
    """Return the tensors of a variable, by their names in transformers."""
    found = _NAME.fullmatch(name)
    stack, layer, part, end = found.groups() if found else ("", None, "", "")
    where = f"{stack}." if layer is None else f"{stack}.layers.{int(layer)}."
    if (part, end, layer) == ("position_encodings", "encodings", None):
        return {f"{where}embed_positions.weight": TensorEntry(*variable)}
    parts = _PARTS.get(part or "", ())
    if not parts or end not in _ENDS:
        raise ValueError(f"variable {shown(name)} is unknown, and might change the results")
    if part == "projection":
        where = ""
    rows = variable.shape[0] if variable.shape else 0
    if rows % len(parts):
        raise ValueError(f"variable {shown(name)} must have a multiple of {len(parts)} rows; got {rows}")
    size = (variable.end - variable.begin) // len(parts)
    shape = (rows // len(parts), *variable.shape[1:])
    return {
        f"{where}{own}.{_ENDS[end]}": TensorEntry(
            variable.dtype, shape, variable.begin + i * size, variable.begin + (i + 1) * size
        )
        for i, own in enumerate(parts)
    }


def _check_scales(name: str, entry: TensorEntry, scales: TensorEntry | None) -> None:
    if scales is None or scales.dtype not in PLAIN_READERS or scales.shape != entry.shape[:1]:
        got = "none" if scales is None else f"{scales.dtype} {list(scales.shape)}"
        raise ValueError(f"{name} of I8 must have a scale for each of its {shown(list(entry.shape))} rows; got {got}")


def _config(file: CTranslate2File) -> dict[str, Any]:
    """Return the entries of config.json in transformers, from the shapes and settings in model.bin."""
    shapes, settings, path = file.shapes, file.settings, file.path

    def size(name: str, axis: int, num_axes: int) -> int:
        shape = shapes.get(name)
        if shape is None or len(shape) != num_axes:
            raise ValueError(f"{path}: variable {name} must be there, with {num_axes} axes; got {shown(shape)}")
        return shape[axis]

    config: dict[str, Any] = {
        "model_type": "whisper",
        "vocab_size": size("decoder/embeddings/weight", 0, 2),
        "num_mel_bins": size("encoder/conv1/weight", 1, 3),
        "d_model": size("encoder/conv1/weight", 0, 3),
        "max_source_positions": size("encoder/position_encodings/encodings", 0, 2),
        "max_target_positions": size("decoder/position_encodings/encodings", 0, 2),
    }
    for stack in ("encoder", "decoder"):
        layers = {found[2] for name in shapes if (found := _NAME.fullmatch(name)) and found[1] == stack and found[2]}
        if sorted(map(int, layers)) != list(range(len(layers))) or not layers:
            raise ValueError(f"{path}: the layers of the {stack} must be numbered from 0 on; got {listed(layers)}")
        config[f"{stack}_layers"] = len(layers)
        config[f"{stack}_ffn_dim"] = size(f"{stack}/layer_0/ffn/linear_0/weight", 0, 2)
        if f"{stack}/num_heads" not in settings:
            raise ValueError(f"{path}: variable {stack}/num_heads must be there")
        config[f"{stack}_attention_heads"] = settings[f"{stack}/num_heads"]
    return config
