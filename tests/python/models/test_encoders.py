"""Encoders that came after BERT, from their files to embeddings, against the oracle in float64."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
import tiny_encoders
import tiny_tokenizers
from model_files import assert_not_loaded
from tiny_bert import TEXTS
from tiny_encoders import ENCODERS, WITH_TYPES
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder

Array = np.ndarray[Any, Any]

SEQUENCES = [tiny_bert.ids(text.replace("x unknown y", "x y")) for text in TEXTS]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_ROPE = {"rope_type": "default", "rope_theta": 30.0}
_ACTIVATIONS = ("silu", "gelu", "relu", "gelu_pytorch_tanh")
SWITCHES: list[tuple[str, dict[str, Any]]] = [
    *[("modernbert", {"hidden_activation": name}) for name in _ACTIVATIONS[0:4:2]],
    *[("modernbert", {name: True}) for name in ("norm_bias", "attention_bias", "mlp_bias")],
    *[("modernbert", {"local_attention": window}) for window in (1, 3, 9, 100)],
    *[("modernbert", {"global_attn_every_n_layers": every}) for every in (1, 2, 9)],
    ("modernbert", {"norm_eps": 0.1}),
    ("modernbert", {"global_rope_theta": 30.0, "local_rope_theta": 5.0}),
    ("modernbert", {"num_hidden_layers": 1}),
    *[(name, {"hidden_act": activation}) for name in WITH_TYPES for activation in _ACTIVATIONS],
    *[(name, {"layer_norm_eps": 0.1, "rope_parameters": _ROPE}) for name in WITH_TYPES],
    *[(name, {"type_vocab_size": 5}) for name in WITH_TYPES],
    ("gte", {"type_vocab_size": 0}),
    ("nomic_bert", {"head_dim": 4}),
    ("qwen3", {"num_key_value_heads": 1, "head_dim": 6, "rms_norm_eps": 0.1, "rope_parameters": _ROPE}),
    ("qwen3", {"hidden_act": "gelu"}),
    *[("gemma3_text", {"sliding_window": window}) for window in (1, 3, 40)],
    ("gemma3_text", {"use_bidirectional_attention": False}),
    ("gemma3_text", {"layer_types": [_FULL, _SLIDING, _SLIDING], "query_pre_attn_scalar": 5}),
    ("gemma3_text", {"rope_parameters": {_FULL: _ROPE, _SLIDING: {"rope_theta": 7.0}}, "num_key_value_heads": 4}),
]


def _assert_embeddings(directory: Path, model_type: str, num_threads: int | None = None, **changes: Any) -> None:
    """The same as the oracle gives, and for a text the same bits alone and among others."""
    values = tiny_encoders.config(model_type, **changes)
    model = SentenceEncoder.from_pretrained(tiny_encoders.write(directory, model_type, **changes))
    sizes = values["num_hidden_layers"], values["num_attention_heads"]
    assert (model.max_length, model.embed_dim, model.num_layers, model.num_heads) == (20, 24, *sizes)
    together = model.encode_tokens(SEQUENCES, num_threads=num_threads)
    expected = np.stack([tiny_encoders.embedding(values, tokens) for tokens in SEQUENCES])
    assert_close(together, expected, np.full(expected.shape, EMBEDDING_BOUND), label=model_type)
    for tokens, embedding in zip(SEQUENCES, together, strict=True):
        assert_same_bits(model.encode_tokens([tokens])[0], embedding, label=str(tokens))


@pytest.mark.parametrize("model_type", ENCODERS)
def test_embeddings(model_type: str, tmp_path: Path, num_threads: int, isa: str) -> None:
    _assert_embeddings(tmp_path, model_type, num_threads)


@pytest.mark.parametrize(("model_type", "changes"), SWITCHES, ids=str)
def test_each_switch(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    values = tiny_encoders.config(model_type)
    differs = any(
        tiny_encoders.embedding(values, tokens).tolist() != tiny_encoders.embedding(values | changes, tokens).tolist()
        for tokens in SEQUENCES
    )
    assert differs or changes["hidden_act"] == values["hidden_act"]  # the switch has an effect
    _assert_embeddings(tmp_path, model_type, **changes)


@pytest.mark.parametrize("model_type", WITH_TYPES)
def test_types_of_tokens(model_type: str, tmp_path: Path) -> None:
    values = tiny_encoders.config(model_type)
    model = SentenceEncoder.from_pretrained(tiny_encoders.write(tmp_path, model_type))._model
    sequences = [[2, 5, 6, 3, 7, 8, 3], [4], list(range(4, 24))]
    types = [[0, 0, 0, 0, 1, 1, 1], [1], [0] * 3 + [1] * 17]
    tokens, cu_seqlens = np.concatenate(sequences), np.cumsum([0, *map(len, sequences)])
    rows = model.hidden_states(tokens, cu_seqlens, None, np.concatenate(types))
    for i, (ids, of_tokens) in enumerate(zip(sequences, types, strict=True)):
        expected = tiny_encoders.hidden_states(values, ids, of_tokens)
        actual = rows[cu_seqlens[i] : cu_seqlens[i + 1]]
        assert_close(actual, expected, np.full(expected.shape, EMBEDDING_BOUND * 4), label=f"text {i}")
    zeros = np.zeros(len(tokens), np.int64)
    plain = model.hidden_states(tokens, cu_seqlens, None)
    assert_same_bits(model.hidden_states(tokens, cu_seqlens, None, zeros), plain)
    with pytest.raises(ValueError, match="token_types must be at least 0 and less than 2; got 2 at 1"):
        model.hidden_states(tokens, cu_seqlens, None, zeros + 2 * (np.arange(len(zeros)) == 1))


@pytest.mark.parametrize("model_type", ENCODERS)
def test_tokens_that_there_are_not(model_type: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(tiny_encoders.write(tmp_path, model_type))
    model.encode_tokens([[5] * 20])
    with pytest.raises(ValueError, match=r"^SentenceEncoder\.encode_tokens: sequences.*text 1 has 21"):
        model.encode_tokens([[5], [5] * 21])
    for token in (-1, tiny_encoders.config(model_type)["vocab_size"]):
        with pytest.raises(ValueError, match=rf"^SentenceEncoder\.encode_tokens: sequences.*tokens.*{token}"):
            model.encode_tokens([[5], [token]])


@pytest.mark.parametrize("model_type", ENCODERS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes_and_copies(model_type: str, dtype: str, tmp_path: Path) -> None:
    directory = tiny_encoders.write(tmp_path, model_type)
    model = SentenceEncoder.from_pretrained(directory, dtype=dtype)
    expected = model.encode_tokens(SEQUENCES)
    whole = np.stack([tiny_encoders.embedding(tiny_encoders.config(model_type), tokens) for tokens in SEQUENCES])
    bound = {"float64": EMBEDDING_BOUND, "bfloat16": 0.1, "float16": 0.01}[dtype]
    assert_close(expected, whole, np.full(whole.shape, bound), label=dtype)
    assert_same_bits(pickle.loads(pickle.dumps(model)).encode_tokens(SEQUENCES), expected)
    copied = SentenceEncoder.from_pretrained(directory).astype(dtype)
    assert_same_bits(copied.encode_tokens(SEQUENCES), expected)


@pytest.mark.parametrize("model_type", ENCODERS)
def test_a_model_with_a_head(model_type: str, tmp_path: Path) -> None:
    expected = SentenceEncoder.from_pretrained(tiny_encoders.write(tmp_path / "a", model_type)).encode(TEXTS)
    directory = tiny_encoders.write(tmp_path / "b", model_type, prefix=tiny_encoders.PREFIXES[model_type])
    assert_same_bits(SentenceEncoder.from_pretrained(directory).encode(TEXTS), expected)


@pytest.mark.parametrize("model_type", ENCODERS)
def test_each_tensor_is_needed_and_in_its_shape(model_type: str, tmp_path: Path) -> None:
    values = tiny_encoders.config(model_type, num_hidden_layers=2)
    if "layer_types" in values:
        values["layer_types"] = values["layer_types"][:2]
    weights = tiny_encoders.tensors(values)
    for name, whole in weights.items():
        others = {other: tensor for other, tensor in weights.items() if other != name}
        tiny_bert.write(tmp_path, values, others)
        assert_not_loaded(tmp_path, f"missing: {name}")
        wrong = np.concatenate([whole, whole[:1]])
        tiny_bert.write(tmp_path, values, others | {name: wrong})
        assert_not_loaded(tmp_path, f"wrong shape: {name} {list(wrong.shape)} instead of {list(whole.shape)}")


REFUSED: list[tuple[str, str, Any]] = [
    *[(name, entry, value) for name in ENCODERS for entry, value in [
        ("add_cross_attention", True), ("auto_map", {"AutoModel": "own_code.OwnModel"}),
        ("quantization_config", {"quant_method": "gptq"}), ("pruned_heads", {"0": [1]}), ("vocab_size", -1),
        ("max_position_embeddings", 0), ("hidden_size", 2**70), ("num_attention_heads", 0), ("num_hidden_layers", 0),
        ("intermediate_size", None), ("rope_parameters", {"rope_type": "of somebody", "rope_theta": 1.0}),
        ("rope_parameters", [1]), ("rope_scaling", {"rope_type": "longrope", "factor": 2.0}),
    ]],
    *[("modernbert", entry, value) for entry, value in [
        ("is_decoder", True), ("hidden_activation", "quick_gelu"), ("norm_eps", 0.0), ("norm_bias", 1),
        ("attention_bias", None), ("mlp_bias", "yes"), ("local_attention", 0), ("global_attn_every_n_layers", 0),
        ("layer_types", [_FULL]), ("layer_types", ["full", "full", "full", "full"]), ("num_hidden_layers", 10**9),
        ("num_attention_heads", 5), ("global_rope_theta", None), ("local_rope_theta", -1.0),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}), ("partial_rotary_factor", 0.5),
        ("rope_parameters", {_FULL: {"rope_type": "default", "partial_rotary_factor": 0.5}}),
    ]],
    *[(name, entry, value) for name in WITH_TYPES for entry, value in [
        ("is_decoder", True), ("hidden_act", "quick_gelu"), ("layer_norm_eps", -1.0), ("type_vocab_size", -1),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 0}),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 10.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 10.0, "partial_rotary_factor": 0.5}),
    ]],
    ("nomic_bert", "head_dim", -8), ("nomic_bert", "type_vocab_size", 0),
    ("gemma3_text", "use_bidirectional_attention", "yes"), ("qwen3", "use_bidirectional_attention", True),
    ("gemma3_text", "attn_logit_softcapping", 5.0), ("gemma3_text", "num_key_value_heads", 3),
    ("qwen3", "is_causal", False),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "name", "value"), REFUSED, ids=str)
def test_a_config_of_what_is_not_computed(model_type: str, name: str, value: Any, tmp_path: Path) -> None:
    tiny_encoders.write(tmp_path, model_type)
    (tmp_path / "model.safetensors").unlink()  # refused before weights are read
    values = tiny_encoders.config(model_type) | {name: value}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    assert_not_loaded(tmp_path, str(tmp_path / "config.json"), name)


def test_heads_of_which_half_cannot_be_turned(tmp_path: Path) -> None:
    tiny_encoders.write(tmp_path, "nomic_bert", head_dim=3)
    assert_not_loaded(tmp_path, "an even number of the features of a head (head_dim, 3)")


DEFAULTS: dict[str, dict[str, Any]] = {
    "modernbert": {
        "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "mlp_bias": False, "local_attention": 128,
        "hidden_activation": "gelu", "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
    },
    "nomic_bert": {"hidden_act": "silu", "layer_norm_eps": 1e-12, "type_vocab_size": 2,
                   "rope_parameters": {"rope_theta": 1000.0}},
    "gte": {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 1,
            "rope_parameters": {"rope_theta": 160000.0}},
    "qwen3": {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 10000.0}},
}  # fmt: skip


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_what_can_be_left_out_of_a_config(model_type: str, tmp_path: Path) -> None:
    # What transformers has where the file says nothing.
    whole = SentenceEncoder.from_pretrained(tiny_encoders.write(tmp_path / "a", model_type, **DEFAULTS[model_type]))
    directory = tiny_encoders.write(tmp_path / "b", model_type, **DEFAULTS[model_type])
    values = tiny_encoders.config(model_type, **DEFAULTS[model_type])
    values = {name: value for name, value in values.items() if name not in DEFAULTS[model_type]}
    (directory / "config.json").write_text(json.dumps(values), encoding="utf-8")
    assert_same_bits(SentenceEncoder.from_pretrained(directory).encode(TEXTS), whole.encode(TEXTS))


@pytest.mark.parametrize("names", [["input_ids"], ["attention_mask"], [], "input_ids attention_mask", None])
def test_a_tokenizer_that_gives_a_model_no_mask(names: Any, tmp_path: Path) -> None:
    # Without one the texts of a batch see what fills up the shorter ones.
    files = {"tokenizer_config.json": {"model_input_names": names}}
    tiny_encoders.write(tmp_path, "modernbert", files)
    assert_not_loaded(tmp_path, "tokenizer_config.json", "model_input_names")


@pytest.mark.parametrize("adds_blank", [None, False, True])
def test_the_blank_before_a_text_of_a_tokenizer_of_qwen(adds_blank: bool | None, tmp_path: Path) -> None:
    library = tiny_tokenizers.byte_level()
    library.pre_tokenizer = tiny_tokenizers.qwen2_pre_tokenizer()
    config = {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": adds_blank}
    files = {"tokenizer.json": json.loads(library.to_str()), "tokenizer_config.json": config}
    tiny_encoders.write(tmp_path, "qwen3", files)
    if adds_blank:
        assert_not_loaded(tmp_path, "add_prefix_space must be False")
    else:
        SentenceEncoder.from_pretrained(tmp_path)


def test_a_gte_with_code_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    rope = {"factor": 2.0, "type": "ntk"}
    tiny_encoders.write(tmp_path, "gte")
    values = tiny_encoders.config("gte", pack_qkv=True, position_embedding_type="rope", rope_scaling=rope)
    values |= {"model_type": "new", "auto_map": {"AutoModel": "own_code.NewModel"}}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    assert_not_loaded(tmp_path, "config.json: model_type 'new'", "'gte'")


_FORMER = {
    "model_type": "nomic_bert", "activation_function": "swiglu", "auto_map": {"AutoModel": "own_code.NomicBertModel"},
    "causal": False, "layer_norm_epsilon": 1e-12, "max_trained_positions": 12, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "n_embd": 24, "n_head": 3, "n_inner": 40, "n_layer": 2, "n_positions": 20,
    "prenorm": False, "qkv_proj_bias": False, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "type_vocab_size": 2, "use_rms_norm": False, "vocab_size": tiny_encoders.config("nomic_bert")["vocab_size"],
}  # fmt: skip


def test_entries_of_nomic_bert_by_their_former_names(tmp_path: Path) -> None:
    expected = SentenceEncoder.from_pretrained(tiny_encoders.write(tmp_path / "a", "nomic_bert")).encode(TEXTS)
    directory = tiny_encoders.write(tmp_path / "b", "nomic_bert", {"config.json": _FORMER})
    assert_same_bits(SentenceEncoder.from_pretrained(directory).encode(TEXTS), expected)
    tiny_encoders.write(directory, "nomic_bert", {"config.json": _FORMER | {"rotary_scaling_factor": 2.0}})
    assert SentenceEncoder.from_pretrained(directory).max_length == 12  # others turn by angles that it changes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("activation_function", "geglu"), ("causal", True), ("mlp_fc1_bias", True), ("mlp_fc2_bias", True),
        ("prenorm", True), ("parallel_block", True), ("qkv_proj_bias", True), ("rotary_emb_fraction", 0.5),
        ("rotary_emb_interleaved", True), ("rotary_emb_scale_base", 512), ("scale_attn_by_inverse_layer_idx", True),
        ("scale_attn_weights", False), ("use_rms_norm", True), ("quantization_config", {"quant_method": "gptq"}),
        ("rotary_emb_base", 0),
    ],
)  # fmt: skip
def test_what_former_entries_must_say(name: str, value: Any, tmp_path: Path) -> None:
    tiny_encoders.write(tmp_path, "nomic_bert", {"config.json": _FORMER | {name: value}})
    (tmp_path / "model.safetensors").unlink()
    assert_not_loaded(tmp_path, "rope_theta" if name == "rotary_emb_base" else name)
