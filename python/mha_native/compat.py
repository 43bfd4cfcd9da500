"""The public names of `mha_native.interop`: attention with the meaning that other specifications give it."""

from .interop.onnx import onnx_attention

__all__ = ["onnx_attention"]
