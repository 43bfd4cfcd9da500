"""Files of a model that are missing, damaged, or of another kind: one sentence that names what is wrong."""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
from model_files import assert_not_loaded
from safetensors.numpy import load_file, save_file
from tiny_bert import TEXTS
from tolerance import assert_same_bits

from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file(name: str, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path)
    (tmp_path / name).unlink()
    assert_not_loaded(tmp_path, str(tmp_path / name), "does not exist", error=FileNotFoundError)
    (tmp_path / name).mkdir()
    assert_not_loaded(tmp_path, str(tmp_path / name), error=FileNotFoundError)


def test_a_missing_directory(tmp_path: Path) -> None:
    assert_not_loaded(tmp_path / "nowhere", "nowhere", "config.json", "does not exist", error=FileNotFoundError)


FILES = ["config.json", "tokenizer.json", "sentence_bert_config.json", "modules.json", "1_Pooling/config.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"3", b"[" * 100_000, b'"text"'], ids=repr)
def test_a_file_that_is_not_the_json_it_should_be(name: str, content: bytes, tmp_path: Path) -> None:
    path = tiny_bert.write(tmp_path, files={name: {}}) / name
    path.write_bytes(content)
    assert_not_loaded(tmp_path, str(path))


CONFIGS = [
    ("model_type", "funnel"),
    ("model_type", None),
    ("hidden_act", "swish"),
    ("hidden_act", 3),
    ("position_embedding_type", "relative_key"),
    ("is_decoder", True),
    ("add_cross_attention", True),
    ("vocab_size", None),
    ("hidden_size", 0),
    ("hidden_size", -24),
    ("hidden_size", "24"),
    ("hidden_size", 24.0),
    ("hidden_size", [24]),
    ("num_attention_heads", True),
    ("num_attention_heads", 5),
    ("num_hidden_layers", 0),
    ("intermediate_size", None),
    ("max_position_embeddings", 0),
    ("type_vocab_size", 0),
    ("layer_norm_eps", 0.0),
    ("layer_norm_eps", "small"),
    ("layer_norm_eps", float("nan")),
    ("layer_norm_eps", float("inf")),
    ("auto_map", {"AutoModel": "own_code.OwnModel"}),
    ("quantization_config", {"quant_method": "gptq"}),
    ("pruned_heads", {"0": [1]}),
]


@pytest.mark.parametrize(("name", "value"), CONFIGS, ids=lambda x: str(x))
def test_a_config_of_another_model(name: str, value: Any, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_bert.config(**{name: value})), encoding="utf-8")
    shown = "5" if name == "num_attention_heads" and value == 5 else repr(value)
    assert_not_loaded(tmp_path, str(tmp_path / "config.json"), name, shown)


def test_what_can_be_left_out_of_a_config(tmp_path: Path) -> None:
    whole = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path / "whole"))
    settings = tiny_bert.config()
    for name in ("type_vocab_size", "hidden_act", "layer_norm_eps"):
        del settings[name]
    tiny_bert.write(tmp_path / "short", settings, tiny_bert.tensors(tiny_bert.config()))
    assert_same_bits(SentenceEncoder.from_pretrained(tmp_path / "short").encode(TEXTS), whole.encode(TEXTS))


TENSORS = list(tiny_bert.tensors(tiny_bert.config()))


@pytest.mark.parametrize("name", TENSORS)
def test_each_tensor_is_needed_and_in_its_shape(name: str, tmp_path: Path) -> None:
    weights = tiny_bert.tensors(tiny_bert.config())
    whole = weights.pop(name)
    tiny_bert.write(tmp_path, weights=weights)
    path = str(tmp_path / "model.safetensors")
    assert_not_loaded(tmp_path, path, f"missing: {name}")
    wrong = np.concatenate([whole, whole[:1]])
    tiny_bert.write(tmp_path, weights=weights | {name: wrong})
    assert_not_loaded(tmp_path, path, f"wrong shape: {name} {list(wrong.shape)} instead of {list(whole.shape)}")
    tiny_bert.write(tmp_path, weights=weights | {name: whole.astype(np.float64)})
    assert_not_loaded(tmp_path, path, f"dtype: {name} F64 instead of F32 or F16")


def test_all_that_is_wrong_in_one_message(tmp_path: Path) -> None:
    weights = tiny_bert.tensors(tiny_bert.config())
    del weights[TENSORS[0]], weights[TENSORS[3]]
    weights[TENSORS[1]] = weights[TENSORS[1]].T.copy()
    weights[TENSORS[2]] = weights[TENSORS[2]].astype(np.int32)
    tiny_bert.write(tmp_path, weights=weights)
    assert_not_loaded(
        tmp_path, f"missing: {TENSORS[0]}, {TENSORS[3]}; ", f"{TENSORS[1]} [24, 20] instead of [20, 24]", "I32"
    )


def test_more_layers_than_there_are(tmp_path: Path) -> None:
    weights = tiny_bert.tensors(tiny_bert.config())
    tiny_bert.write(tmp_path, weights=weights)
    missing = "missing: encoder.layer.2.attention.self.query.weight", "and more"
    for layers, words in ((4096, missing), (10**15, ("num_hidden_layers must be at most 4096",))):
        settings = tiny_bert.config(num_hidden_layers=layers)
        (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        assert_not_loaded(tmp_path, *words)


def _edit_header(path: Path, edit: Any) -> None:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


NAME = "embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [35, 24]},
        {"shape": [2**62, 2**62]},
        {"shape": [-1, 24]},
        {"dtype": "Q7"},
        {"dtype": "F64"},
        {"data_offsets": [0, 2**40]},
        {"data_offsets": [96, 0]},
        {"data_offsets": [8, 8 + 37 * 24 * 4]},
    ],
    ids=str,
)
def test_a_header_that_lies(change: dict[str, Any], tmp_path: Path) -> None:
    path = tiny_bert.write(tmp_path) / "model.safetensors"
    _edit_header(path, lambda header: header[NAME].update(change))
    assert_not_loaded(tmp_path, str(path))


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    path = tiny_bert.write(tmp_path) / "model.safetensors"
    raw = path.read_bytes()
    for length in [0, 7, 8, 20, len(raw) // 2, len(raw) - 1]:
        path.write_bytes(raw[:length])
        assert_not_loaded(tmp_path, str(path), "is not a valid safetensors file")
    path.write_bytes(struct.pack("<Q", 2**63) + raw[8:])
    assert_not_loaded(tmp_path, str(path), "is not a valid safetensors file")
    path.write_bytes(raw + b"\0")
    assert_not_loaded(tmp_path, str(path), "is not a valid safetensors file")


@pytest.mark.parametrize("norms", [("weight", "bias"), ("gamma", "beta")])
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_other_names_of_the_same_tensors(prefix: str, norms: tuple[str, str], tmp_path: Path) -> None:
    expected = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path / "a")).encode(TEXTS)
    weights = {
        prefix + name.replace("Norm.weight", f"Norm.{norms[0]}").replace("Norm.bias", f"Norm.{norms[1]}"): tensor
        for name, tensor in tiny_bert.tensors(tiny_bert.config()).items()
    }
    others = {"cls.predictions.bias": np.zeros(3, np.float32), f"{prefix}embeddings.position_ids": np.arange(20)}
    tiny_bert.write(tmp_path / "b", weights=weights | others)
    assert_same_bits(SentenceEncoder.from_pretrained(tmp_path / "b").encode(TEXTS), expected)


def test_half_precision_is_converted(tmp_path: Path) -> None:
    half = {name: tensor.astype(np.float16) for name, tensor in tiny_bert.tensors(tiny_bert.config()).items()}
    tiny_bert.write(tmp_path / "half", weights=half)
    tiny_bert.write(tmp_path / "single", weights={name: tensor.astype(np.float32) for name, tensor in half.items()})
    halves, singles = (SentenceEncoder.from_pretrained(tmp_path / name).encode(TEXTS) for name in ("half", "single"))
    assert_same_bits(halves, singles)


def test_integers_areassert_not_loaded(tmp_path: Path) -> None:
    path = tiny_bert.write(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {NAME: tensors[NAME].astype(np.float16)}, path)
    _edit_header(path, lambda header: header[NAME].update(dtype="I16"))
    assert_not_loaded(tmp_path, f"{NAME} I16 instead of F32 or F16 or BF16")


@pytest.mark.parametrize("length", [0, -1, "256", True, 21, 2])
def test_a_max_seq_length_that_cannot_be(length: Any, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"sentence_bert_config.json": {"max_seq_length": length}})
    assert_not_loaded(tmp_path, "max_seq_length", str(length))


@pytest.mark.parametrize(
    "kinds",
    [
        [],
        ["Transformer"],
        ["Pooling", "Transformer"],
        ["Transformer", "Pooling", "LayerNorm"],
        ["Transformer", "Dense", "Pooling"],
        ["Transformer", "Pooling", "Pooling"],
        ["Transformer", "Pooling"] + ["Normalize"] * 40,
    ],
    ids=lambda kinds: " ".join(kinds[:4]),
)
def test_modules_of_another_model(kinds: list[str], tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"modules.json": tiny_bert.modules(*kinds)})
    assert_not_loaded(tmp_path, str(tmp_path / "modules.json"), "Transformer, Pooling", *kinds)


@pytest.mark.parametrize("name", ["custom_st.Transformer", "Transformer", "sentence_transformersx.Transformer"])
def test_a_module_by_somebody_else(name: str, tmp_path: Path) -> None:
    modules = tiny_bert.modules("Transformer", "Pooling")
    modules[0]["type"] = name
    tiny_bert.write(tmp_path, files={"modules.json": modules})
    assert_not_loaded(tmp_path, str(tmp_path / "modules.json"), name)


def test_a_module_elsewhere(tmp_path: Path) -> None:
    modules = tiny_bert.modules("Transformer", "Pooling")
    modules[0]["path"] = "0_Transformer"
    tiny_bert.write(tmp_path, files={"modules.json": modules})
    assert_not_loaded(tmp_path, str(tmp_path / "0_Transformer" / "config.json"), error=FileNotFoundError)


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    settings = tiny_bert.config(vocab_size=len(tiny_bert.WORDS) - 1)
    tiny_bert.write(tmp_path, settings)
    assert_not_loaded(
        tmp_path, "tokenizer.json", str(len(tiny_bert.WORDS)), "vocab_size", str(len(tiny_bert.WORDS) - 1)
    )


def test_a_token_beyond_the_table(tmp_path: Path) -> None:
    # As many tokens as there are rows, but their numbers have a gap.
    tokenizer = json.loads(tiny_bert.tokenizer().to_str())
    tokenizer["model"]["vocab"]["dog"] = 1000
    tiny_bert.write(tmp_path, files={"tokenizer.json": tokenizer})
    model = SentenceEncoder.from_pretrained(tmp_path)
    model.encode("the cat")
    with pytest.raises(ValueError, match=re.escape("token 2 is 1000; got words [37, 24]")):
        model.encode("the dog")


def test_without_the_library_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_bert.write(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert_not_loaded(tmp_path, "tokenizers is not installed: pip install tokenizers", error=ImportError)


def test_nothing_else_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_bert.write(tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    SentenceEncoder.from_pretrained(tmp_path)
