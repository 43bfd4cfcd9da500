"""What tests do with the files of a model: how it must be refused, and checkpoints in 16 bits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]

_LONGEST_MESSAGE = 2000  # characters: eight names of tensors with their shapes, and paths


def assert_not_loaded(directory: str | Path, *words: str, error: type[Exception] = ValueError) -> None:
    """The model is refused with an error of exactly this type: one line that begins with the function."""
    with pytest.raises(error) as caught:
        SentenceEncoder.from_pretrained(directory)
    assert caught.type is error
    message = str(caught.value)
    assert message.startswith("SentenceEncoder.from_pretrained: ")
    assert len(message.splitlines()) == 1
    assert len(message) < _LONGEST_MESSAGE
    for word in words:
        assert word in message, message


def write_safetensors(path: Path, tensors: Mapping[str, Array], dtypes: Mapping[str, str]) -> None:
    """Write float32 tensors, some of them in other dtypes: F16, or BF16, whose bits are the upper half of float32."""
    header, parts, end = {}, [], 0
    for name, tensor in tensors.items():
        dtype = dtypes.get(name, "F32")
        if dtype == "BF16":
            parts.append((tensor.view("<u4") >> 16).astype("<u2").tobytes())
        else:
            parts.append(tensor.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes())
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
