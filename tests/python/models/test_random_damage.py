"""Files of a model with random damage: they load, or are refused by a documented error, and nothing else comes out."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_bert
from damage import damaged_bytes, damaged_json

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
