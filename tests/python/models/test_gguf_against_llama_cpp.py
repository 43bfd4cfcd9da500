"""Tokens of GGUF files are those of llama.cpp, for every name of a pre-tokenizer and for SentencePiece.

The suite compares digests of the tokens that llama.cpp gave. With llama-cpp-python installed, this writes them again,
after a comparison of all tokens:

    PYTHONPATH=python:tests/python/support python tests/python/models/test_gguf_against_llama_cpp.py
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import random
import struct
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import gguf_files
import odd_texts
import pytest

pytest.importorskip("tokenizers")

from mha_native.models.files.gguf.byte_level import _KINDS
from mha_native.models.files.gguf.source import GGUFSource

SPECIAL = ["<|endoftext|>", "<|im_end|>", "<s>", "</s>", "<unk>", "[INST]"]
TYPES = [3, 3, 3, 3, 2, 4]  # control tokens, the unknown token, and a token of a user

# Tokens of two of these in any order show where texts are split.
CHARACTERS = " \n\r\taAsS19½Ⅷ.!$'/+-_中क한ア\u3000"

# For these names llama.cpp does not compose characters, or knows fewer classes of characters than the patterns of the
# models: see the decision about GGUF files.
LESS_EXACT = ["mpt", "olmo", "command-r", "qwen2", "tekken", "gpt-4o", "llama4", "kanana2", "deepseek-coder"]

# The names by digests of the tokens of llama.cpp for the texts of `texts`.
DIGESTS = {
    "31c593fd53e13a9a": "default",
    "787507d96df93279": "gpt-2; phi-2; exaone4; mpt; olmo",
    "20de0ad3f7195004": "smollm; starcoder; refact; codeshell; exaone; minerva-7b; command-r",
    "86ca41facd15d94d": "llama-bpe; llama-v3; llama3; falcon3; midm-2.0; lfm2",
    "e752a0592c2244d1": "dbrx; smaug-bpe; glm4; chatglm-bpe",
    "58efd541becc813b": "qwen2; deepseek-r1-qwen; stablelm2; megrez",
    "2b9d3a581dfcf057": "tekken",
    "822e2fe1020b0691": "gpt-4o; llama4; kanana2",
    "fd2e501f0e215827": "deepseek-coder",
    "4863c59f36085296": "deepseek-v3",
    "d48147035c4d54cc": "llama, a space",
    "716b71c07bde64c7": "llama, no space",
}


def texts(count: int, only_plain: bool = True, seed: int = 0) -> list[str]:
    """Texts in characters that were there in Unicode 3.2, so all programs know them.

    Plain ones are composed, and have only classes of characters that llama.cpp tells apart for every name.
    """
    known = unicodedata.ucd_3_2_0

    def is_wanted(character: str) -> bool:
        kind = known.category(character)
        plain = ("Lo", "Nd", "Nl", "No", "Sm", "Sc", "So", "Po", "Pd") if only_plain else (kind,)
        return kind != "Cn" and (character.isascii() or kind in plain)

    given = odd_texts.texts(count, seed)
    rng = random.Random(seed)
    mixes = ["".join(rng.choices(CHARACTERS, k=rng.randint(1, 14))) for _ in range(count)]
    wanted = [text for text in given + mixes if all(map(is_wanted, text))]
    return [text for text in wanted if not only_plain or known.normalize("NFC", text) == text]


def byte_level(kind: str) -> dict[str, Any]:
    alphabet = gguf_files.byte_alphabet()
    in_bytes = ["".join(alphabet[byte] for byte in character.encode()) for character in CHARACTERS]
    merges = [f"{word[:i]} {word[i]}" for word in in_bytes for i in range(1, len(word))]
    merges += [f"{left} {right}" for left, right in itertools.product(in_bytes, repeat=2)]
    merges = list(dict.fromkeys(merges))
    tokens = list(dict.fromkeys([*SPECIAL, *alphabet, *(merge.replace(" ", "") for merge in merges)]))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": TYPES + [1] * (len(tokens) - len(TYPES)),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
    }


def sentence_pieces(has_prefix: bool | None) -> dict[str, Any]:
    characters = CHARACTERS.replace(" ", "\u2581")
    words = [*map("".join, itertools.product(characters, repeat=2)), "\u2581aA", "\u2581\u2581\u2581", "1919"]
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *words, *characters]
    entries = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 262 + [-float(7 * i % 1009) for i in range(len(tokens) - 262)],
        "tokenizer.ggml.token_type": TYPES + [6] * 256 + [1] * (len(tokens) - 262),
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 4,
    }
    return entries if has_prefix is None else entries | {"tokenizer.ggml.add_space_prefix": has_prefix}


def metadata_of(name: str) -> dict[str, Any]:
    if name.startswith("llama, "):
        return sentence_pieces({"llama, a space": None, "llama, no space": False}[name])
    return byte_level(name)


NAMES = [*_KINDS, "llama, a space", "llama, no space"]


def file_of(path: Path, name: str) -> Path:
    own, tensors = gguf_files.model("llama")
    metadata = {key: value for key, value in (own | metadata_of(name)).items() if value is not None}
    types = metadata["tokenizer.ggml.token_type"]  # of 32 bits with a sign in llama.cpp
    metadata["tokenizer.ggml.token_type"] = struct.pack(f"<IIQ{len(types)}i", 9, 5, len(types), *types)
    file = path / "model.gguf"
    file.write_bytes(gguf_files.contents(metadata, tensors))
    return file


def digest(tokens: list[list[int]]) -> str:
    return hashlib.sha256(repr(tokens).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_that_llama_cpp_gave(name: str, tmp_path: Path) -> None:
    tokenizer = GGUFSource(file_of(tmp_path, name)).tokenizer()
    tokens = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts(1500))]
    assert name in DIGESTS[digest(tokens)].split("; ")


class LlamaCpp:
    """The tokenizer of a GGUF file in llama.cpp."""

    def __init__(self, file: Path) -> None:
        self._library = pytest.importorskip("llama_cpp")
        parameters = self._library.llama_model_default_params()
        parameters.vocab_only = True
        self._model = self._library.llama_model_load_from_file(str(file).encode(), parameters)
        self._vocabulary = self._library.llama_model_get_vocab(self._model)

    def encode(self, text: str) -> list[int]:
        raw = text.encode()
        tokens = (ctypes.c_int32 * (len(raw) + 8))()
        count = self._library.llama_tokenize(self._vocabulary, raw, len(raw), tokens, len(tokens), True, True)
        return list(tokens[:count])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    theirs, ours = LlamaCpp(file := file_of(tmp_path, name)), GGUFSource(file).tokenizer()
    for text in texts(20000, only_plain=name in LESS_EXACT):
        assert ours.encode(text).ids == theirs.encode(text), text


if __name__ == "__main__":
    names: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for each in NAMES:
            file = file_of(Path(folder), each)
            found, own = LlamaCpp(file), GGUFSource(file).tokenizer()
            tokens = [found.encode(text) for text in texts(1500)]
            assert tokens == [own.encode(text).ids for text in texts(1500)], each
            names.setdefault(digest(tokens), []).append(each)
        for key, group in names.items():
            sys.stdout.write(f'    "{key}": "{"; ".join(group)}",\n')
