"""Files in the format GGUF, written as its specification says, and tiny models in them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import Shapes, affine
from numpy.typing import NDArray

TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q4_K": 12, "Q5_K": 13,
    "Q6_K": 14, "IQ4_NL": 20, "BF16": 30, "MXFP4": 39,
}  # fmt: skip

# Of types with blocks: elements and bytes of a block, and where in it numbers of two bytes are.
BLOCKS = {
    "Q4_0": (32, 18, [0]), "Q4_1": (32, 20, [0, 2]), "Q5_0": (32, 22, [0]), "Q5_1": (32, 24, [0, 2]),
    "Q8_0": (32, 34, [0]), "Q4_K": (256, 144, [0, 2]), "Q5_K": (256, 176, [0, 2]), "Q6_K": (256, 210, [208]),
    "IQ4_NL": (32, 18, [0]), "MXFP4": (32, 17, []),
}  # fmt: skip
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(given: Any) -> bytes:
    """A value of the metadata with its type before it."""
    if isinstance(given, bytes):  # as it should stand in the file, its type included
        return given
    if isinstance(given, list):
        kind, raw = value(given[0])[:4], b"".join(value(each)[4:] for each in given)
        return struct.pack("<I", _ARRAY) + kind + struct.pack("<Q", len(given)) + raw
    if isinstance(given, bool):
        return struct.pack("<IB", _BOOL, given)
    if isinstance(given, int):
        return struct.pack("<II", _U32, given) if given >= 0 else struct.pack("<Ii", _I32, given)
    if isinstance(given, float):
        return struct.pack("<If", _F32, given)
    return struct.pack("<I", _STRING) + string(given)


def quantized(numbers: NDArray[np.float32], kind: str) -> bytes:
    """The rows of a matrix in blocks of 32 numbers, or as they are."""
    if kind == "F32":
        return numbers.astype("<f4").tobytes()
    if kind == "F16":
        return numbers.astype("<f2").tobytes()
    if kind == "BF16":
        return (numbers.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    blocks = numbers.reshape(-1, 32).astype(np.float32)
    if kind == "Q8_0":
        scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype("<f2")
        integers = np.rint(blocks / np.maximum(scale, 1e-7)).clip(-127, 127).astype(np.int8)
        return b"".join(d.tobytes() + q.tobytes() for d, q in zip(scale, integers, strict=True))
    if kind == "Q4_0":
        scale, offset = (np.abs(blocks).max(1, keepdims=True) / 7).astype("<f2"), None
        integers = np.rint(blocks / np.maximum(scale, 1e-7)) + 8
    else:
        offset = blocks.min(1, keepdims=True).astype("<f2")
        scale = ((blocks.max(1, keepdims=True) - offset) / 15).astype("<f2")
        integers = np.rint((blocks - offset) / np.maximum(scale, 1e-7))
    nibbles = integers.clip(0, 15).astype(np.uint8)
    packed = nibbles[:, :16] | nibbles[:, 16:] << 4
    numbers_of_block = [scale] if offset is None else [scale, offset]
    return b"".join(
        b"".join(number[i].tobytes() for number in numbers_of_block) + packed[i].tobytes() for i in range(len(blocks))
    )


def random_blocks(kind: str, count: int, rng: np.random.Generator, size: float = 1) -> bytes:
    """Blocks of random bytes, the numbers in which are finite and about as large as `size`."""
    _, bytes_of_block, numbers = BLOCKS[kind]
    blocks = rng.integers(0, 256, (count, bytes_of_block), np.uint8)
    for place in numbers:
        blocks[:, place : place + 2] = (rng.standard_normal((count, 1)) * size).astype("<f2").view(np.uint8)
    if kind == "MXFP4":  # a power of 2
        blocks[:, 0] = 127 + np.rint(np.log2(size)) + rng.integers(-2, 3, count)
    return blocks.tobytes()


def contents(
    metadata: dict[str, Any], tensors: dict[str, Any], version: int = 3, alignment: int = 32, pad: bool = True
) -> bytes:
    """A file. `tensors`: by name an array, which becomes F32, or an array, or bytes and their shape, with a type."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    header += b"".join(string(name) + value(given) for name, given in metadata.items())
    data = b""
    for name, given in tensors.items():
        numbers, kind, *sizes = given if isinstance(given, tuple) else (given, "F32")
        shape = sizes or numbers.shape
        data += b"\0" * (-len(data) % alignment)
        header += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        header += struct.pack("<IQ", TYPES[kind], len(data))
        data += numbers if isinstance(numbers, bytes) else quantized(numbers, kind)
    return header + b"\0" * (-len(header) % alignment) + data + b"\0" * (-len(data) % alignment if pad else 0)


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level tokens: itself if it is printable, else one from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_level_vocabulary(
    merges: list[str] | None = None, special: tuple[str, ...] = ("<|endoftext|>", "<|bos|>")
) -> Any:
    """The metadata of a tokenizer: 256 bytes, what the merges make, and special tokens."""
    merges = MERGES if merges is None else merges
    tokens = [*special, *byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(special) + [1] * (len(tokens) - len(special)),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
    }


# Words, numbers, ends of lines and runs of signs and spaces: they tell whether texts are split in the right places.
MERGES = [
    "Ġ t", "h e", "Ġt he", "a t", "c at", "Ġ cat", "' s", "' S", "Ġ 1", "1 2", "12 3", "Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ", ". .",
    "! !", ". Ċ", "Ã ©", "e Ì",
]  # fmt: skip

V, E, H, HK, D, F, LAYERS = 320, 64, 4, 2, 32, 96, 2


def model(architecture: str, seed: int = 0, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata and the tensors of a tiny model, with `changes` of entries behind the name of the architecture."""
    rng = np.random.default_rng(seed)
    is_gpt2, is_gemma = architecture == "gpt2", architecture.startswith("gemma")
    head_dim = E // H if is_gpt2 or architecture in ("llama", "qwen2") else D
    entries: dict[str, Any] = {
        "context_length": 128,
        "embedding_length": E,
        "block_count": LAYERS,
        "feed_forward_length": F,
        "attention.head_count": H,
    }
    if is_gpt2:
        entries["attention.layer_norm_epsilon"] = 1e-5
    else:
        entries |= {"attention.head_count_kv": HK, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 5000.0}
        if head_dim != E // H:
            entries |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if is_gemma:
        entries["attention.sliding_window"] = 16
    if architecture == "gemma2":
        entries |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    entries |= {name: given for name, given in changes.items() if given is not None}

    rows, kv_rows = H * head_dim, HK * head_dim
    shapes: Shapes = {"token_embd.weight": (V, E), "output_norm.weight": (E,)}
    layer: Shapes = {
        "attn_norm": (E,), "attn_q": (rows, E), "attn_k": (kv_rows, E), "attn_v": (kv_rows, E),
        "attn_output": (E, rows), "ffn_norm": (E,), "ffn_gate": (F, E), "ffn_up": (F, E), "ffn_down": (E, F),
    }  # fmt: skip
    if is_gpt2:
        shapes |= {"position_embd.weight": (128, E), "output_norm.bias": (E,)}
        layer = {"attn_qkv": (3 * E, E), "attn_output": (E, E), "ffn_up": (F, E), "ffn_down": (E, F)}
        layer |= {"attn_norm": (E,), "ffn_norm": (E,)}
    for i in range(LAYERS):
        for name, shape in layer.items():
            shapes |= affine(name, *shape, prefix=f"blk.{i}.", bias=is_gpt2)
        if architecture == "qwen2":
            shapes |= {f"blk.{i}.{name}.bias": layer[name][:1] for name in ("attn_q", "attn_k", "attn_v")}
        if architecture in ("qwen3", "gemma3"):
            shapes |= affine("attn_q_norm attn_k_norm", head_dim, prefix=f"blk.{i}.", bias=False)
        if is_gemma:
            shapes |= affine("post_attention_norm post_ffw_norm", E, prefix=f"blk.{i}.", bias=False)
    tensors = {
        name: rng.standard_normal(shape, np.float32) * np.float32(0.2) + np.float32(len(shape) == 1)
        for name, shape in shapes.items()
    }
    vocabulary = byte_level_vocabulary()
    count = len(vocabulary["tokenizer.ggml.tokens"])
    vocabulary["tokenizer.ggml.tokens"] += [f"[PAD{i}]" for i in range(V - count)]
    vocabulary["tokenizer.ggml.token_type"] += [5] * (V - count)
    metadata = {"general.architecture": architecture, "general.name": "tiny"}
    return metadata | {f"{architecture}.{name}": given for name, given in entries.items()} | vocabulary, tensors


def write(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """A tiny model in a file."""
    path.write_bytes(contents(*model(architecture, **changes)))
    return path
