"""Files of a model with random damage: they load, or are refused by a documented error, and nothing else comes out."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_bert

from mha_native.models import SentenceEncoder

FILES = {
    "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
    "modules.json": tiny_bert.modules("Transformer", "Pooling", "Normalize"),
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    "2_Normalize/config.json": {"module_input_name": "sentence_embedding"},
    "tokenizer_config.json": {"model_max_length": 15, "truncation_side": "right", "do_lower_case": True},
    "config_sentence_transformers.json": {
        "prompts": {"query": "the "}, "default_prompt_name": "query", "truncate_dim": 7, "similarity_fn_name": "dot",
    },
}  # fmt: skip
NAMES = ["config.json", "tokenizer.json", "model.safetensors", *FILES]
TIMES = [80, pytest.param(1000, marks=pytest.mark.exhaustive)]  # damaged files of each name and kind of damage

# What takes the place of a value in JSON.
ODD: list[Any] = [
    None, True, -1, 0, 1, 2, 255, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 0.5, 1e300,
    float("nan"), float("-inf"), "", "bert", "..", "/", "\0", "\n", "\ud800", "x" * 5000, [], {}, [[]], [2**62, 2**62],
]  # fmt: skip


def damaged_bytes(raw: bytes, rng: random.Random) -> bytes:
    """`raw` with one to four changes: bytes that differ, are missing, are added, or stand twice."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        # The beginnings of files say what is in them, so that half of the changes are there.
        first = rng.randrange(min(len(data), rng.choice([64, 4096, 1 << 30])) or 1)
        last = first + rng.choice([1, 1, 2, 8, 100])
        kind = rng.choice(["change", "flip", "remove", "insert", "repeat", "cut"])
        if kind == "change":
            data[first:last] = rng.randbytes(last - first)
        elif kind == "flip" and first < len(data):
            data[first] ^= 1 << rng.randrange(8)
        elif kind == "remove":
            del data[first:last]
        elif kind == "insert":
            data[first:first] = rng.choice([b"\0", b"\xff", b"[" * 50, b'"', b"9" * 30, b"-", b"\n", rng.randbytes(8)])
        elif kind == "repeat":
            data[first:first] = data[first:last]
        elif kind == "cut":
            del data[first:]
    return bytes(data)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value of JSON with each of its keys or indices."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def damaged_json(raw: bytes, rng: random.Random) -> bytes:
    """`raw`, which is JSON, or safetensors with a header in JSON, with one to three values that are others."""
    start, end = 0, len(raw)
    if raw[:1] not in b"{[":
        start, end = 8, 8 + int.from_bytes(raw[:8], "little")
    value = json.loads(raw[start:end])
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(list(places(value)) or [([None], 0)])
        kind = rng.choice(["replace", "replace", "remove", "move"])
        if kind == "replace":
            container[key] = copy.deepcopy(rng.choice(ODD))  # which may be changed in its turn
        elif kind == "remove":
            del container[key]
        elif isinstance(container[key], int):
            container[key] += rng.choice([-8, -4, -1, 1, 4, 8])
    text = json.dumps(value).encode()
    return (len(text).to_bytes(8, "little") if start else b"") + text + raw[end:]


def assert_loads_or_is_refused(directory: Path, name: str, damaged: Any, times: int) -> None:
    """Damage the file `name` of a model `times` times, each time in another way."""
    path = directory / name
    raw = path.read_bytes()
    refused = 0
    for seed in range(times):
        path.write_bytes(damaged(raw, random.Random(f"{name} {seed}")))
        try:
            model = SentenceEncoder.from_pretrained(directory)
            embeddings = model.encode(["the dog", "", "x" * 200, "the cat ! " * 9])
            assert embeddings.shape == (4, model.embed_dim)
        except (ValueError, OSError) as error:
            refused += 1
            message = str(error)
            assert len(message.splitlines()) == 1, (seed, message)
            assert len(message) < 2000, (seed, message)
        except BaseException as error:
            shutil.copy(path, directory / "damaged")  # which pytest keeps
            raise AssertionError(f"{damaged.__name__}, seed {seed}: {type(error).__name__}: {error}") from error
    assert refused > times // 10  # there was damage


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("damaged", [damaged_bytes, damaged_json])
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_loads_or_is_refused(name: str, damaged: Any, times: int, tmp_path: Path) -> None:
    assert_loads_or_is_refused(tiny_bert.write(tmp_path, files=FILES), name, damaged, times)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("damaged", [damaged_bytes, damaged_json])
@pytest.mark.parametrize(
    "name",
    ["modules.json", "2_Dense/config.json", "2_Dense/model.safetensors", "model.safetensors.index.json",
     "model-00002-of-00003.safetensors"],
)  # fmt: skip
def test_damage_of_a_dense_and_of_weights_in_several_files(name: str, damaged: Any, times: int, tmp_path: Path) -> None:
    modules = {"modules.json": tiny_bert.modules("Transformer", "Pooling", "Dense")}
    tiny_bert.write_shards(tiny_bert.write(tmp_path, files=modules))
    tiny_bert.write_dense(tmp_path, 2, 24, 5, activation_function="torch.nn.modules.activation.ReLU")
    assert_loads_or_is_refused(tmp_path, name, damaged, times)
