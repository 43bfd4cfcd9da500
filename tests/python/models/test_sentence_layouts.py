"""Directories as old and new versions of sentence-transformers and transformers write them, against the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bert_oracle
import numpy as np
import pytest
import tiny_bert
import tiny_tokenizers
from model_files import assert_not_loaded, write_safetensors
from tiny_bert import TEXTS
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]
SETTINGS = tiny_bert.config()
TENSORS = tiny_bert.tensors(SETTINGS)

# What version 6.2 writes beside a transformer.
NEW_SETTINGS = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


def _expected(texts: list[str], max_seq_length: int = 20, normalize: bool = False) -> Array:
    return np.stack(
        [
            bert_oracle.sentence_embedding(TENSORS, SETTINGS, tiny_bert.ids(text, max_seq_length), normalize)
            for text in texts
        ]
    )


def _assert_embeddings(actual: Array, expected: Array) -> None:
    assert actual.dtype == np.float32
    assert_close(actual, expected, EMBEDDING_BOUND * np.maximum(np.abs(expected), 1), label="embeddings")


def _types(*kinds: str) -> list[dict[str, Any]]:
    """modules.json of version 6.2."""
    places = {"Pooling": "sentence_transformer.modules.pooling"}
    modules = tiny_bert.modules(*kinds)
    for module, kind in zip(modules, kinds, strict=True):
        place = places.get(kind, f"base.modules.{kind.lower()}")
        module["type"] = f"sentence_transformers.{place}.{kind}"
    return modules


def test_the_files_of_new_versions(tmp_path: Path) -> None:
    ends = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    files = {
        "modules.json": _types("Transformer", "Pooling", "Normalize"),
        "1_Pooling/config.json": tiny_bert.pooling("mean", include_prompt=True),
        "2_Normalize/config.json": ends,
        "sentence_bert_config.json": NEW_SETTINGS,
        "tokenizer_config.json": {"model_max_length": 7},
    }
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files=files))
    assert model.max_length == 7
    _assert_embeddings(model.encode(TEXTS), _expected(TEXTS, 7, normalize=True))


def test_a_transformer_in_a_folder_of_its_own(tmp_path: Path) -> None:
    beside = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path / "beside"))
    files = {
        "modules.json": tiny_bert.modules("Transformer", "Pooling", "Normalize", transformer="0_Transformer"),
        "0_Transformer/sentence_bert_config.json": {"max_seq_length": 5, "do_lower_case": True},
        "sentence_bert_config.json": {"max_seq_length": 3},  # of nothing
    }
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path / "own", files=files, folder="0_Transformer/"))
    assert model.max_length == 5
    assert_same_bits(model.encode("The DOG"), beside.encode("the dog"))


def test_without_modules_the_mean_is_not_scaled(tmp_path: Path) -> None:
    files = {
        "modules.json": None,
        "1_Pooling/config.json": {"pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"max_seq_length": 3},
        "config_sentence_transformers.json": {"truncate_dim": 5},
        "tokenizer_config.json": {"model_max_length": 6},
    }
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files=files))
    assert (model.max_length, model.embed_dim) == (6, 24)
    _assert_embeddings(model.encode(TEXTS), _expected(TEXTS, 6))
    _assert_embeddings(model.encode(TEXTS, normalize=True), _expected(TEXTS, 6, normalize=True))


@pytest.mark.parametrize(
    ("ours", "tokenizer", "expected"),
    [
        ({"max_seq_length": 9}, {"model_max_length": 5}, 9),
        ({"max_seq_length": None}, {"model_max_length": 5}, 5),
        ({}, {"model_max_length": 5, "max_len": 6}, 5),
        ({}, {"max_len": 6}, 6),
        ({}, {"model_max_length": 1000000000000000019884624838656}, 20),
        ({}, {"model_max_length": 1e30}, 20),
        ({}, {"model_max_length": None}, 20),
        ({}, {}, 20),
        (None, {"model_max_length": 5}, 5),
        (None, None, 20),
        (NEW_SETTINGS | {"unpad_inputs": None, "query_length": None}, {"model_max_length": 512}, 20),
    ],
    ids=str,
)
def test_where_the_most_tokens_are_said(ours: Any, tokenizer: Any, expected: int, tmp_path: Path) -> None:
    files = {"sentence_bert_config.json": ours, "tokenizer_config.json": tokenizer}
    settings = tiny_bert.config(tokenizer_class="PreTrainedTokenizerFast")  # where tokenizer_config.json is missing
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, settings, files=files))
    assert model.max_length == expected
    _assert_embeddings(model.encode(TEXTS), _expected(TEXTS, expected, normalize=True))


@pytest.mark.parametrize("family", ["roberta", "distilbert", "xlm-roberta"])
def test_old_names_of_the_settings(family: str, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={f"sentence_{family}_config.json": {"max_seq_length": 4}})
    assert SentenceEncoder.from_pretrained(tmp_path).max_length == 4


@pytest.mark.parametrize("length", [0, -1, 0.5, 5.5, "5", True, [5], {}, float("nan")], ids=str)
def test_a_model_max_length_that_cannot_be(length: Any, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"tokenizer_config.json": {"model_max_length": length}})
    assert_not_loaded(tmp_path, str(tmp_path / "tokenizer_config.json"), "model_max_length")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("transformer_task", "fill-mask"),
        ("module_output_name", "sentence_embedding"),
        ("modality_config", {"text": {"method": "forward", "method_output_name": "pooler_output"}}),
        ("modality_config", {"message": {"method": "forward", "method_output_name": "last_hidden_state"}}),
        ("modality_config", 3),
        ("processing_kwargs", {"text": {"max_length": 4}}),
        ("query_length", 32),
        ("document_length", 32),
        ("query_expansion", {"length": 32}),
        ("tokenizer_args", {"model_max_length": 7}),
        ("model_args", {"layer": 3}),
        ("config_kwargs", [1]),
        ("do_lower_case", "yes"),
        ("do_lower_case", 1),
        ("max_seq_len", 7),
    ],
    ids=lambda x: str(x)[:30],
)
def test_settings_that_are_not_computed(key: str, value: Any, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"sentence_bert_config.json": {key: value}})
    assert_not_loaded(tmp_path, str(tmp_path / "sentence_bert_config.json"), key)


def test_arguments_that_change_nothing(tmp_path: Path) -> None:
    values = {
        "max_seq_length": 20,
        "model_args": {"add_pooling_layer": False},
        "tokenizer_args": {},
        "config_args": None,
    }
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files={"sentence_bert_config.json": values}))
    _assert_embeddings(model.encode(TEXTS), _expected(TEXTS, normalize=True))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("truncation_side", "left"),
        ("do_lower_case", False),
        ("strip_accents", True),
        ("tokenize_chinese_chars", False),
        ("do_lower_case", None),
    ],
)
def test_a_tokenizer_that_its_settings_contradict(key: str, value: Any, tmp_path: Path) -> None:
    same = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True, "truncation_side": "right"}
    same["tokenizer_class"] = "BertTokenizer"
    tokenizer = json.loads(tiny_tokenizers.word_piece().to_str())
    files = {"tokenizer.json": tokenizer, "tokenizer_config.json": same}
    SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files=files))
    tiny_bert.write(tmp_path, files=files | {"tokenizer_config.json": same | {key: value}})
    assert_not_loaded(tmp_path, str(tmp_path / "tokenizer_config.json"), key)


def test_a_tokenizer_that_cuts_on_the_left(tmp_path: Path) -> None:
    tokenizer = tiny_bert.tokenizer()
    tokenizer.enable_truncation(9, direction="left")
    tiny_bert.write(tmp_path, files={"tokenizer.json": json.loads(tokenizer.to_str())})
    assert_not_loaded(tmp_path, "truncation_side", "left")


def test_lower_case_leaves_special_tokens(tmp_path: Path) -> None:
    from tokenizers import AddedToken

    tokenizer = tiny_bert.tokenizer()
    tokenizer.add_special_tokens([AddedToken("[SEP]", normalized=False)])
    files = {"tokenizer.json": json.loads(tokenizer.to_str()), "sentence_bert_config.json": {"do_lower_case": True}}
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files=files))
    assert model.attention_weights("The [SEP] DOG")[0] == ["[CLS]", "the", "[SEP]", "dog", "[SEP]"]


def test_an_adapter_beside_the_weights(tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"adapter_config.json": {"peft_type": "LORA"}})
    assert_not_loaded(tmp_path, str(tmp_path / "adapter_config.json"), "merge the adapter")


@pytest.mark.parametrize("key", ["module_input_name", "module_output_name"])
def test_a_normalize_of_something_else(key: str, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"2_Normalize/config.json": {key: "token_embeddings"}})
    assert_not_loaded(tmp_path, str(tmp_path / "2_Normalize" / "config.json"), key)


# --- Weights ---------------------------------------------------------------------------------------------------------


def test_weights_in_several_files(tmp_path: Path) -> None:
    whole = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path / "whole")).encode(TEXTS)
    tiny_bert.write_shards(tiny_bert.write(tmp_path / "parts"))
    assert_same_bits(SentenceEncoder.from_pretrained(tmp_path / "parts").encode(TEXTS), whole)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_a_file_in_16_bits(dtype: str, tmp_path: Path) -> None:
    index = tiny_bert.write_shards(tiny_bert.write(tmp_path))
    for path in sorted(tmp_path.glob("model-*.safetensors")):
        part = bert_oracle.read_tensors(path)
        write_safetensors(path, part, dict.fromkeys(part, dtype))
    narrow = SentenceEncoder.from_pretrained(tmp_path).encode(TEXTS)
    index.unlink()
    write_safetensors(tmp_path / "model.safetensors", TENSORS, dict.fromkeys(TENSORS, dtype))
    assert_same_bits(SentenceEncoder.from_pretrained(tmp_path).encode(TEXTS), narrow)


FIRST = "model-00001-of-00003.safetensors"


@pytest.mark.parametrize(
    "file_name",
    ["../" + FIRST, "/etc/passwd", "a/b.safetensors", "..", "", "a\0b", "x" * 300, None, 3, ["a"]],
    ids=repr,
)
def test_an_index_that_names_other_places(file_name: Any, tmp_path: Path) -> None:
    index = tiny_bert.write_shards(tiny_bert.write(tmp_path / "model"))
    (tmp_path / FIRST).write_bytes((tmp_path / "model" / FIRST).read_bytes())
    values = json.loads(index.read_text(encoding="utf-8"))
    values["weight_map"][next(iter(TENSORS))] = file_name
    index.write_text(json.dumps(values), encoding="utf-8")
    assert_not_loaded(tmp_path / "model", str(index), "in its own folder")


@pytest.mark.parametrize("weight_map", [None, [], {}, "model.safetensors"], ids=repr)
def test_an_index_without_tensors(weight_map: Any, tmp_path: Path) -> None:
    index = tiny_bert.write_shards(tiny_bert.write(tmp_path))
    index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    assert_not_loaded(tmp_path, str(index), "weight_map")


def test_an_index_of_other_tensors(tmp_path: Path) -> None:
    index = tiny_bert.write_shards(tiny_bert.write(tmp_path))
    weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    name = next(iter(weight_map))
    others = {key: value for key, value in weight_map.items() if key != name}
    for changed in (others, weight_map | {"more": FIRST}, weight_map | {name: "model-00002-of-00003.safetensors"}):
        index.write_text(json.dumps({"weight_map": changed}), encoding="utf-8")
        assert_not_loaded(tmp_path, str(index), "must have the same tensors", "more" if "more" in changed else name)
    index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    (tmp_path / FIRST).unlink()
    assert_not_loaded(tmp_path, str(tmp_path / FIRST), "does not exist", error=FileNotFoundError)


def test_an_index_of_too_many_files(tmp_path: Path) -> None:
    index = tiny_bert.write_shards(tiny_bert.write(tmp_path))
    index.write_text(json.dumps({"weight_map": {f"t{i}": f"{i}.safetensors" for i in range(1000)}}), encoding="utf-8")
    assert_not_loaded(tmp_path, str(index), "at most", "1000")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickles_are_not_read(name: str, tmp_path: Path) -> None:
    (tiny_bert.write(tmp_path) / "model.safetensors").rename(tmp_path / name)
    assert_not_loaded(tmp_path, str(tmp_path / name), "pickle", "save_pretrained")


@pytest.mark.parametrize("name", ["tf_model.h5", "model.onnx", "onnx/model.onnx"])
def test_weights_for_other_libraries(name: str, tmp_path: Path) -> None:
    (tiny_bert.write(tmp_path) / "onnx").mkdir()
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    assert_not_loaded(tmp_path, name, "no model.safetensors", "save_pretrained")
