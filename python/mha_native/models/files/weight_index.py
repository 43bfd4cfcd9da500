"""The weights in a folder: in model.safetensors, or in several files with an index."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import listed, shown
from .json_files import is_below, read_json
from .safetensors import SafetensorsFile
from .tensor_file import TensorEntry, TensorFiles

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# Files are open at the same time, and processes usually can have 1024. The usual size is 5 GB; encoders need few files.
_MOST_FILES = 256

# Weights in other formats, for the error message. A pickle is a program, which runs when the file is read.
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "model.ckpt")
_OTHERS = ("tf_model.h5", "flax_model.msgpack", "model.onnx", "onnx/model.onnx")
_CONVERSION = 'SentenceTransformer("DIR").save_pretrained("NEW_DIR") of sentence-transformers writes model.safetensors'


def open_weights(folder: Path) -> TensorFiles:
    """Return the tensors in `folder`.

    Raises FileNotFoundError if there are no files of weights, and OSError or ValueError if a file cannot be read or is
    damaged, or if all weights are in other formats.
    """
    path, index = folder / _ONE_FILE, folder / _INDEX
    if not path.exists():
        if index.exists():
            return ShardedTensors(index)
        for name in _PICKLES:
            if (folder / name).exists():
                raise ValueError(
                    f"{folder / name} is a pickle, which can run any program when it is read, "
                    f"and is unsupported: {_CONVERSION}"
                )
        if found := [name for name in _OTHERS if (folder / name).exists()]:
            raise ValueError(f"{folder} has {listed(found)}, and no {_ONE_FILE}: {_CONVERSION}")
    return SafetensorsFile(path)


class ShardedTensors(TensorFiles):
    """The tensors of several safetensors files, as if they were in one, `path`, the index.

    Raises OSError or ValueError if a file cannot be read or is damaged, or if the index names a file outside its folder
    or differs from the headers of the files.
    """

    readable = SafetensorsFile.readable
    described_by = SafetensorsFile.described_by

    def __init__(self, path: Path) -> None:
        self.path = path
        names = _read_index(path)
        self.entries: dict[str, TensorEntry] = {}
        self._files: dict[str, SafetensorsFile] = {}  # by the names of tensors
        with contextlib.ExitStack() as stack:
            for file_name, tensors in names.items():
                file = stack.enter_context(SafetensorsFile(path.with_name(file_name)))
                if differing := sorted(tensors ^ file.entries.keys()):
                    raise ValueError(
                        f"{path} and {file.path} must have the same tensors; only one of them has {listed(differing)}"
                    )
                self.entries |= file.entries
                self._files |= dict.fromkeys(file.entries, file)
            self._stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        return self._files[name].bytes_of(name)

    def read(self, name: str) -> NDArray[np.float32]:
        return self._files[name].read(name)


def _read_index(path: Path) -> dict[str, set[str]]:
    """Return the names of the tensors in each file, by the names of the files."""
    weight_map: Any = read_json(path, dict).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{path}: weight_map must be an object with an entry for each tensor; got {shown(weight_map)}")
    names: dict[str, set[str]] = {}
    for tensor, file_name in weight_map.items():
        if not is_below(file_name) or "/" in file_name or "\\" in file_name:
            raise ValueError(f"{path} must name files in its own folder; got {shown(file_name)}")
        names.setdefault(file_name, set()).add(tensor)
    if len(names) > _MOST_FILES:
        raise ValueError(f"{path} must name at most {_MOST_FILES} files; got {len(names)}")
    return names
