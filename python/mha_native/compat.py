"""Deprecated name of `mha_native.interop.onnx`; it goes in the next release."""

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "onnx_attention":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .interop.onnx import onnx_attention

    warnings.warn(f"{__name__} is deprecated; use mha_native.interop.onnx", DeprecationWarning, stacklevel=2)
    return onnx_attention
