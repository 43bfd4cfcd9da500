"""Families of text encoders: their names, places and types of tokens, against the oracle in float64."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import bert_oracle
import numpy as np
import pytest
import tiny_bert
import tiny_families
from model_files import assert_not_loaded
from tiny_bert import TEXTS
from tiny_families import FAMILIES, PADDING
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import CausalLM, SentenceEncoder, Seq2SeqLM
from mha_native.models.architecture.family import EMBEDDING, GENERATION, TEXT_TO_TEXT
from mha_native.models.architecture.registry import families_of

Array = np.ndarray[Any, Any]

WITH_PADDING = [name for name in FAMILIES if tiny_families.has_padding(name)]


def _assert_embeddings(actual: Array, expected: Array, label: str) -> None:
    assert_close(actual, expected, np.full(expected.shape, EMBEDDING_BOUND), label=label)


SEQUENCES = [tiny_bert.ids(text.replace("x unknown y", "x y")) for text in TEXTS]


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu"])
def test_embeddings(model_type: str, hidden_act: str, tmp_path: Path, num_threads: int) -> None:
    model = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path, model_type, hidden_act=hidden_act))
    assert (model.max_length, model.embed_dim, model.num_layers, model.num_heads) == (20, 24, 2, 3)
    expected = tiny_families.embeddings(model_type, SEQUENCES, hidden_act=hidden_act)
    together = model.encode_tokens(SEQUENCES, num_threads=num_threads)
    _assert_embeddings(together, expected, model_type)
    for tokens, embedding in zip(SEQUENCES, together, strict=True):
        assert_same_bits(model.encode_tokens([tokens])[0], embedding, label=str(tokens))


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_a_large_eps(model_type: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path, model_type, layer_norm_eps=0.1))
    expected = tiny_families.embeddings(model_type, SEQUENCES, layer_norm_eps=0.1)
    _assert_embeddings(model.encode_tokens(SEQUENCES), expected, model_type)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_padding_inside_of_a_text_takes_no_place_where_positions_begin_behind_it(
    model_type: str, tmp_path: Path
) -> None:
    # A text may hold the word "<pad>", for which tokenizers give the token.
    sequences = [[2, PADDING, 5, 6, PADDING, PADDING, 7, 3], [PADDING], [4, 5], [PADDING, 5], [5, PADDING], []]
    sequences.append([5] * 19 + [PADDING])
    model = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path, model_type))
    together = model.encode_tokens(sequences)
    present = [tokens for tokens in sequences if tokens]
    _assert_embeddings(together[[0, 1, 2, 3, 4, 6]], tiny_families.embeddings(model_type, present), model_type)
    for tokens, embedding in zip(sequences, together, strict=True):
        assert_same_bits(model.encode_tokens([tokens])[0], embedding, label=str(tokens))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_more_tokens_than_places(model_type: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path, model_type))
    model.encode_tokens([[5] * 20])
    with pytest.raises(ValueError, match=r"^SentenceEncoder\.encode_tokens: sequences.*text 1 has 21"):
        model.encode_tokens([[5], [5] * 21])
    if tiny_families.has_padding(model_type):
        model.encode_tokens([[5] * 20 + [PADDING]])  # as transformers does
        with pytest.raises(ValueError, match=r"^SentenceEncoder\.encode_tokens: sequences.*no more tokens than.*20"):
            model.encode_tokens([[5] * 21 + [PADDING]])


def _types_of(tokens: list[int], first: int) -> list[int]:
    return [int(i >= first) for i in range(len(tokens))]


@pytest.mark.parametrize("types", [2, 3])
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_types_of_tokens(model_type: str, types: int, tmp_path: Path, num_threads: int, isa: str) -> None:
    changes = {"type_vocab_size": types}
    model = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path, model_type, **changes))._model
    settings, tensors = tiny_families.settings(model_type, **changes), tiny_families.tensors(model_type, **changes)
    sequences = [[2, 5, 6, 3, 7, 8, 3], [4], [2, 9, PADDING, 3, 5, PADDING, 3], list(range(4, 24))]
    kinds = [_types_of(tokens, first) for tokens, first in zip(sequences, (4, 0, 4, 13), strict=True)]
    tokens, cu_seqlens = np.concatenate(sequences), np.cumsum([0, *map(len, sequences)])
    rows = model.hidden_states(tokens, cu_seqlens, num_threads, np.concatenate(kinds))
    for i, (ids, of_tokens) in enumerate(zip(sequences, kinds, strict=True)):
        places = tiny_families.places(model_type, ids)
        expected = bert_oracle.hidden_states(tensors, settings, ids, places=places, types=of_tokens)
        actual = rows[cu_seqlens[i] : cu_seqlens[i + 1]]
        assert_close(actual, expected, np.full(expected.shape, EMBEDDING_BOUND * 4), label=f"text {i}")
        alone = model.hidden_states(np.array(ids), np.array([0, len(ids)]), 1, np.array(of_tokens))
        assert_same_bits(alone, actual, label=f"text {i}")
    zeros = model.hidden_states(tokens, cu_seqlens, num_threads, np.zeros(len(tokens), np.uint8))
    assert_same_bits(zeros, model.hidden_states(tokens, cu_seqlens, num_threads))
    with pytest.raises(ValueError, match="token_types must be at least 0 and less than 2; got 2 at 1"):
        model.hidden_states(tokens, cu_seqlens, None, np.arange(len(tokens)) % 4 * 2)
    with pytest.raises(ValueError, match="token_types must be at least 0 and less than 2; got -1 at 0"):
        model.hidden_states(tokens, cu_seqlens, None, np.full(len(tokens), -1))
    with pytest.raises(ValueError, match=r"token_types must be \[35\], as tokens; got \[3\]"):
        model.hidden_states(tokens, cu_seqlens, None, np.zeros(3, np.int64))


def test_a_family_without_types_of_tokens_takes_no_notice_of_them(tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path, "distilbert"))._model
    tokens, cu_seqlens = np.array([2, 5, 3, 6, 3]), np.array([0, 5])
    types = np.array([0, 0, 0, 1, 1])
    expected = model.hidden_states(tokens, cu_seqlens, None)
    assert_same_bits(model.hidden_states(tokens, cu_seqlens, None, types), expected)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_model_with_a_head(model_type: str, tmp_path: Path) -> None:
    expected = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path / "a", model_type)).encode(TEXTS)
    prefix = tiny_families.PREFIXES.get(model_type, "roberta.")
    directory = tiny_families.write(tmp_path / "b", model_type, prefix=prefix)
    assert_same_bits(SentenceEncoder.from_pretrained(directory).encode(TEXTS), expected)
    tiny_families.write(tmp_path / "c", model_type, prefix="electra.")
    assert_not_loaded(tmp_path / "c", "missing: embeddings.word_embeddings.weight")


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes_and_copies(model_type: str, dtype: str, tmp_path: Path) -> None:
    directory = tiny_families.write(tmp_path, model_type)
    model = SentenceEncoder.from_pretrained(directory, dtype=dtype)
    expected = model.encode_tokens(SEQUENCES)
    assert_same_bits(SentenceEncoder.from_pretrained(directory).astype(dtype).encode_tokens(SEQUENCES), expected)
    assert_same_bits(pickle.loads(pickle.dumps(model)).encode_tokens(SEQUENCES), expected)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_tensor_is_needed_and_in_its_shape(model_type: str, tmp_path: Path) -> None:
    weights = tiny_families.renamed(model_type, tiny_families.tensors(model_type))
    path = str(tmp_path / "model.safetensors")
    for name, whole in weights.items():
        others = {other: tensor for other, tensor in weights.items() if other != name}
        tiny_bert.write(tmp_path, tiny_families.config(model_type), others)
        assert_not_loaded(tmp_path, path, f"missing: {name}")
        wrong = np.concatenate([whole, whole[:1]])
        tiny_bert.write(tmp_path, tiny_families.config(model_type), others | {name: wrong})
        assert_not_loaded(tmp_path, path, f"wrong shape: {name} {list(wrong.shape)} instead of {list(whole.shape)}")


REFUSED = [
    ("position_embedding_type", "relative_key"),
    ("is_decoder", True),
    ("add_cross_attention", True),
    ("auto_map", {"AutoModel": "own_code.OwnModel"}),
    ("quantization_config", {"quant_method": "gptq"}),
    ("pruned_heads", {"0": [1]}),
    ("vocab_size", -1),
    ("max_position_embeddings", 0),
]
OF_A_FAMILY = [
    *[(name, "pad_token_id", value) for name in WITH_PADDING for value in (-1, None, "1", 2**63, True, 1.0)],
    *[(name, "pad_token_id", 21) for name in WITH_PADDING],
    *[(name, "max_position_embeddings", 2) for name in WITH_PADDING],
    *[(name, "layer_norm_eps", 0.0) for name in FAMILIES if name != "distilbert"],
    *[(name, "hidden_act", "swish") for name in FAMILIES if name != "distilbert"],
    *[("mpnet", "relative_attention_num_buckets", value) for value in (16, 64, 0, None, "32", 32.0)],
    *[("mpnet", "pad_token_id", value) for value in (0, 2)],
    ("distilbert", "activation", "swish"),
    ("distilbert", "dim", 25),
    ("distilbert", "n_heads", 0),
    ("distilbert", "hidden_size", 24),
    ("distilbert", "num_attention_heads", 2),
]


@pytest.mark.parametrize(
    ("model_type", "name", "value"),
    [(model_type, *entry) for model_type in FAMILIES for entry in REFUSED] + OF_A_FAMILY,
    ids=str,
)
def test_a_config_of_what_is_not_computed(model_type: str, name: str, value: Any, tmp_path: Path) -> None:
    tiny_families.write(tmp_path, model_type)
    (tmp_path / "model.safetensors").unlink()  # refused before weights are read
    values = tiny_families.config(model_type) | {name: value}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    assert_not_loaded(tmp_path, str(tmp_path / "config.json"), name)


def test_a_family_that_is_not_known_is_told_which_are(tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"config.json": tiny_bert.config(model_type="deberta")})
    assert_not_loaded(tmp_path, "model_type", "'deberta'", *map(repr, FAMILIES))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_what_can_be_left_out_of_a_config(model_type: str, tmp_path: Path) -> None:
    # What transformers has where the file says nothing.
    defaults = {"type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    whole = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path / "whole", model_type, **defaults))
    directory = tiny_families.write(tmp_path / "short", model_type, **defaults)
    values = tiny_families.config(model_type, **defaults)
    for name in (*defaults, "pad_token_id", "activation", "relative_attention_num_buckets"):
        values.pop(name, None)
    (directory / "config.json").write_text(json.dumps(values), encoding="utf-8")
    assert_same_bits(SentenceEncoder.from_pretrained(directory).encode(TEXTS), whole.encode(TEXTS))


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("length", [7, 20, 22, 10**30])
def test_the_most_tokens_of_a_text(model_type: str, length: int, tmp_path: Path) -> None:
    files = {"tokenizer_config.json": {"model_max_length": length}}
    model = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path, model_type, files))
    assert model.max_length == min(length, 20)
    model.encode("a " * 100)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_max_seq_length_that_counts_the_positions_of_no_token(model_type: str, tmp_path: Path) -> None:
    rows = 22 if tiny_families.has_padding(model_type) else 20
    files: dict[str, Any] = {"sentence_bert_config.json": {"max_seq_length": rows}}
    model = SentenceEncoder.from_pretrained(tiny_families.write(tmp_path, model_type, files))
    assert model.max_length == 20
    model.encode("a " * 100)
    files["sentence_bert_config.json"]["max_seq_length"] = rows + 1
    tiny_families.write(tmp_path, model_type, files)
    assert_not_loaded(tmp_path, f"max_seq_length must be at most max_position_embeddings, {rows}; got {rows + 1}")


@pytest.mark.parametrize(
    ("model", "role"), [(CausalLM, GENERATION), (SentenceEncoder, EMBEDDING), (Seq2SeqLM, TEXT_TO_TEXT)]
)
def test_the_documentation_names_every_family(model: Any, role: str) -> None:
    words = set(re.split(r"[\s,;]+", model.from_pretrained.__doc__))
    assert families_of(role).keys() <= words
