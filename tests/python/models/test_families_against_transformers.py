"""Models of every family, as transformers saves them: the same tokens and embeddings here as in sentence-transformers.

Skipped without those libraries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saved_families import FAMILIES, UNUSED_POSITIONS, WITHOUT_TYPES, save, tokenizer_of
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder

sentence_transformers = pytest.importorskip("sentence_transformers", minversion="6.2")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]

TEXTS = [
    "", " ", "a", "the dog", "THE Dog", "abc fade jab", "  two  blanks\tand\na line ", "the " * 50, "dog. dog! dog?",
    "Straße, naïve façade — 東京 😀", "x" * 300, "a <pad> b", "<pad>", "<s>a</s></s>b <mask> c", "[MASK] [PAD] a [SEP]",
    "word\u00a0word\u3000word\u200bword\0word\ufffd", "ﬁ ①² Å", "\u0301a\u0301",
]  # fmt: skip


def _also(value: str) -> Any:
    return pytest.param(value, marks=pytest.mark.exhaustive)


def _assert_same(directory: Path, texts: list[str] = TEXTS, **arguments: Any) -> SentenceEncoder:
    """The same tokens and embeddings of the texts, whose bits do not depend on their batch."""
    kwargs = {"dtype": torch.float32}
    oracle = sentence_transformers.SentenceTransformer(str(directory), device="cpu", model_kwargs=kwargs)
    model = SentenceEncoder.from_pretrained(directory)
    assert model.max_length == oracle.max_seq_length
    for text in texts:
        assert model._tokenizer.encode_words(text)[0] == oracle.preprocess([text])["input_ids"][0].tolist(), repr(text)
    expected, actual = oracle.encode(texts, **arguments), model.encode(texts, **arguments)
    bound = EMBEDDING_BOUND * np.maximum(np.abs(expected), 1)
    assert_close(actual, expected, bound, label=str(directory))
    for text, embedding in zip(texts, actual, strict=True):
        assert_same_bits(model.encode(text, **arguments), embedding, label=text)
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_family_in_each_dtype(model_type: str, dtype: str, tmp_path: Path) -> None:
    _assert_same(save(tmp_path, model_type, dtype=dtype))


SWITCHES: list[dict[str, Any]] = [
    {"hidden_act": "relu"},
    {"hidden_act": "gelu_new"},
    {"hidden_act": "gelu_pytorch_tanh"},
    {"layer_norm_eps": 0.1},
    {"layer_norm_eps": 1e-05},
    {"type_vocab_size": 1},
    {"type_vocab_size": 5},
    {"pad_token_id": 0},
    {"pad_token_id": 3},
    {"num_hidden_layers": 1},
    {"chunk_size_feed_forward": 3},
    {"tie_word_embeddings": False},
    {"use_cache": False},
]
MPNET_SWITCHES = [changes for changes in SWITCHES if "pad_token_id" not in changes]  # which transformers does not read
DISTILBERT_SWITCHES: list[dict[str, Any]] = [
    {"activation": "relu"},
    {"sinusoidal_pos_embds": True},
    {"max_position_embeddings": 20},
    {"pad_token_id": 3},
    {"n_layers": 1},
    {"chunk_size_feed_forward": 3},
]
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": 8}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": 8,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
FULL, SLIDING = "full_attention", "sliding_attention"
MODERNBERT_SWITCHES: list[dict[str, Any]] = [
    *[{"hidden_activation": name} for name in ("silu", "swish", "relu", "gelu_new", "gelu_pytorch_tanh")],
    *[{name: True} for name in ("norm_bias", "attention_bias", "mlp_bias")],
    *[{"local_attention": window} for window in (1, 3, 7, 40)],
    *[{"global_attn_every_n_layers": every} for every in (1, 2, 4, 9)],
    {"layer_types": [SLIDING, FULL, FULL, SLIDING]},
    {"norm_eps": 0.1},
    {"global_rope_theta": 50.0, "local_rope_theta": 7.0},
    *[{"rope_parameters": {FULL: rope, SLIDING: LINEAR}} for rope in (LINEAR, YARN, LLAMA3)],
    {"num_hidden_layers": 1},
    {"pad_token_id": 5},
    {"tie_word_embeddings": False},
]
ROTARY_SWITCHES: list[dict[str, Any]] = [
    *[{"hidden_act": name} for name in ("gelu", "silu", "relu", "gelu_new", "gelu_pytorch_tanh")],
    *[{"rope_parameters": rope} for rope in (LINEAR, YARN, LLAMA3, {"rope_type": "default", "rope_theta": 3.0})],
    {"layer_norm_eps": 0.1},
    {"type_vocab_size": 1},
    {"type_vocab_size": 5},
    {"num_hidden_layers": 1},
    {"pad_token_id": 3},
]
NOMIC_SWITCHES: list[dict[str, Any]] = [{"head_dim": 4}, {"head_dim": 12}]
GTE_SWITCHES: list[dict[str, Any]] = [{"type_vocab_size": 0}]
ALBERT_SWITCHES: list[dict[str, Any]] = [
    {"hidden_act": "gelu"},
    {"embedding_size": 24},
    {"num_hidden_groups": 1},
    {"num_hidden_groups": 3, "layer_norm_eps": 0.1},
    {"num_hidden_groups": 3, "num_hidden_layers": 4},
]
ELECTRA_SWITCHES: list[dict[str, Any]] = [{"embedding_size": 24}, {"hidden_act": "relu", "type_vocab_size": 1}]
DEBERTA_SWITCHES: list[dict[str, Any]] = [
    {"position_buckets": -1},
    {"position_buckets": -1, "max_relative_positions": 4, "share_att_key": False},
    {"position_buckets": 7, "max_relative_positions": 9},
    {"pos_att_type": "c2p", "share_att_key": False},
    {"pos_att_type": ["p2c"], "share_att_key": False, "norm_rel_ebd": "none"},
    {"pos_att_type": " P2C|c2p", "position_biased_input": True, "type_vocab_size": 2},
    {"pos_att_type": None, "attention_head_size": 8},
    {"relative_attention": False, "share_att_key": False, "layer_norm_eps": 0.1, "hidden_act": "gelu_new"},
]


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [(name, changes) for name in ("bert", "roberta") for changes in SWITCHES]
    + [
        pytest.param(name, changes, marks=pytest.mark.exhaustive)  # which are read as roberta is
        for name in ("xlm-roberta", "camembert")
        for changes in SWITCHES
    ]
    + [("mpnet", changes) for changes in MPNET_SWITCHES]
    + [("distilbert", changes) for changes in DISTILBERT_SWITCHES]
    + [("modernbert", changes) for changes in MODERNBERT_SWITCHES]
    + [("nomic_bert", changes) for changes in ROTARY_SWITCHES + NOMIC_SWITCHES]
    + [("gte", changes) for changes in ROTARY_SWITCHES + GTE_SWITCHES]
    + [("albert", changes) for changes in ALBERT_SWITCHES]
    + [("electra", changes) for changes in ELECTRA_SWITCHES]
    + [("deberta-v2", changes) for changes in DEBERTA_SWITCHES],
    ids=str,
)
def test_each_switch(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    _assert_same(save(tmp_path, model_type, **changes))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_fewer_positions_than_the_tokenizer_would_fill(model_type: str, tmp_path: Path) -> None:
    # The others count the positions before the first one, too, and fail for texts that are longer than the rest.
    unused = UNUSED_POSITIONS.get(model_type, 0)
    save(tmp_path, model_type, max_position_embeddings=20 + unused)
    model = SentenceEncoder.from_pretrained(tmp_path)
    oracle = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    assert (model.max_length, oracle.max_seq_length) == (20, 20 + unused)
    oracle.max_seq_length = 20
    expected = oracle.encode(TEXTS)
    assert_close(model.encode(TEXTS), expected, EMBEDDING_BOUND * np.maximum(np.abs(expected), 1), label=model_type)


@pytest.mark.parametrize(("model_type", "dtype", "sizes"), [
    ("mpnet", "float32", {"max_position_embeddings": 514}),
    ("mpnet", "bfloat16", {"max_position_embeddings": 514}),
    ("deberta-v2", "float32", {"max_position_embeddings": 512, "position_buckets": 256}),
], ids=str)  # fmt: skip
def test_every_distance(model_type: str, dtype: str, sizes: dict[str, int], tmp_path: Path) -> None:
    tokenizer = tokenizer_of(model_type, model_max_length=512)
    save(tmp_path, model_type, dtype=dtype, tokenizer=tokenizer, **sizes)
    _assert_same(tmp_path, ["the dog " * 50, "a the dog " * 300, "the"])


@pytest.mark.parametrize("head", ["ForSequenceClassification", _also("ForMaskedLM"), _also("ForTokenClassification")])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_model_with_a_head(model_type: str, head: str, tmp_path: Path) -> None:
    _assert_same(save(tmp_path, model_type, head))


@pytest.mark.parametrize("pooling", ["cls", _also("max"), _also("lasttoken"), _also("weightedmean")])
@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_poolings_and_prompts(model_type: str, include_prompt: bool, pooling: str, tmp_path: Path) -> None:
    whole = [
        modules.Transformer(str(save(tmp_path / "transformer", model_type))),
        modules.Pooling(24, pooling, include_prompt=include_prompt),
        modules.Normalize(),
    ]
    prompts = {"query": "the dog: ", "passage": "a "}
    sentence_transformers.SentenceTransformer(modules=whole, device="cpu", prompts=prompts).save(
        str(tmp_path / "model")
    )
    _assert_same(tmp_path / "model")
    _assert_same(tmp_path / "model", prompt_name="query")
    _assert_same(tmp_path / "model", prompt="dog")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_token_types_of_pairs(model_type: str, tmp_path: Path) -> None:
    has_types = model_type not in WITHOUT_TYPES
    save(tmp_path, model_type, **({"type_vocab_size": 2} if has_types else {}))
    library = transformers.AutoTokenizer.from_pretrained(tmp_path)
    oracle = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    model = SentenceEncoder.from_pretrained(tmp_path, dtype="float64")._model
    for first, second in [("the dog", "a"), ("", ""), ("a", "the dog dog a")]:
        ids = library(first, second)["input_ids"]
        types = [int(i > len(first)) for i in range(len(ids))]
        given = {"token_type_ids": torch.tensor([types])} if has_types else {}
        with torch.no_grad():
            expected = oracle(input_ids=torch.tensor([ids]), **given).last_hidden_state[0].numpy()
        actual = model.hidden_states(np.array(ids), np.array([0, len(ids)]), None, np.array(types))
        assert_close(actual, expected, EMBEDDING_BOUND * np.maximum(np.abs(expected), 1), label=f"{first}|{second}")


@pytest.mark.parametrize("model_type", ["bert", "albert", "deberta-v2"])
def test_attention_weights(model_type: str, tmp_path: Path) -> None:
    save(tmp_path, model_type)
    library = transformers.AutoTokenizer.from_pretrained(tmp_path)
    oracle = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager").double().eval()
    model = SentenceEncoder.from_pretrained(tmp_path)
    for text in ("the dog", "a the dog a dog b c d e f"):
        with torch.no_grad():
            expected = oracle(**library(text, return_tensors="pt"), output_attentions=True).attentions
        tokens, weights = model.attention_weights(text)
        assert len(tokens) == weights.shape[-1]
        stacked = np.stack([layer[0].numpy() for layer in expected])
        assert_close(weights, stacked, np.full(stacked.shape, EMBEDDING_BOUND), label=text)
