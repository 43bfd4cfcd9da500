"""Models of every family, as transformers saves them: the same tokens and embeddings here as in sentence-transformers.

Skipped without those libraries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

from mha_native.models import SentenceEncoder

sentence_transformers = pytest.importorskip("sentence_transformers", minversion="6.2")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = pytest.mark.filterwarnings("ignore")

Array = np.ndarray[Any, Any]

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
DISTILBERT_SIZES = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}

# The class of the base model without "Model", and the positions that are no places of tokens.
CLASSES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert",
           "distilbert": "DistilBert"}  # fmt: skip
FAMILIES = list(CLASSES)

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *map("##{}".format, "abcdefghij"), "the"]

TEXTS = [
    "", " ", "a", "the dog", "THE Dog", "abc fade jab", "  two  blanks\tand\na line ", "the " * 50, "dog. dog! dog?",
    "Straße, naïve façade — 東京 😀", "x" * 300, "a <pad> b", "<pad>", "<s>a</s></s>b <mask> c", "[MASK] [PAD] a [SEP]",
    "word\u00a0word\u3000word\u200bword\0word\ufffd", "ﬁ ①² Å", "\u0301a\u0301",
]  # fmt: skip


def _byte_level() -> Any:
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("d", "o"), ("do", "g"), ("Ġ", "dog"), ("Ġ", "a")]
    words = [*SPECIAL, *letters, *map("".join, merges)]
    return {word: i for i, word in enumerate(words)}, merges


def _tokenizer(model_type: str, **arguments: Any) -> Any:
    if model_type in ("bert", "distilbert"):
        kind = transformers.BertTokenizer if model_type == "bert" else transformers.DistilBertTokenizer
        return kind(vocab={word: i for i, word in enumerate(BERT_WORDS)}, **arguments)
    if model_type == "roberta":
        vocab, merges = _byte_level()
        return transformers.RobertaTokenizer(vocab=vocab, merges=merges, **arguments)
    pieces = [(word, 0.0) for word in SPECIAL[:4]]
    pieces += [("▁", -3.0), ("▁the", -2.0), ("▁dog", -2.5), ("▁a", -2.2), ("th", -3.1), ("og", -3.5)]
    pieces += [(letter, -5.0 - i / 10) for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz.,!?")]
    if model_type == "xlm-roberta":
        return transformers.XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)], **arguments)
    return transformers.CamembertTokenizer(vocab=[*pieces, ("<mask>", 0.0)], additional_special_tokens=[], **arguments)


def _save(
    directory: Path, model_type: str, head: str = "Model", dtype: str = "float32", tokenizer: Any = None, **changes: Any
) -> Path:
    """A model with random weights, as transformers saves it."""
    tokenizer = tokenizer or _tokenizer(model_type, model_max_length=24)
    name = CLASSES[model_type]
    sizes = DISTILBERT_SIZES if model_type == "distilbert" else SIZES
    positions = {"max_position_embeddings": 32, "vocab_size": len(tokenizer), "initializer_range": 0.5}
    config = getattr(transformers, f"{name}Config")(**(sizes | positions | changes))
    torch.manual_seed(0)
    model = getattr(transformers, name + head)(config).eval()
    with torch.no_grad():  # which are zeros and ones in a new model, and so without effect
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.randn_like(parameter) / 4
        for embedding in model.modules():  # the row of padding, too
            if isinstance(embedding, torch.nn.Embedding):
                embedding.weight += torch.randn_like(embedding.weight) / 4
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _assert_same(directory: Path, texts: list[str] = TEXTS, **arguments: Any) -> SentenceEncoder:
    """The same tokens and embeddings of the texts, whose bits do not depend on their batch."""
    kwargs = {"dtype": torch.float32}
    oracle = sentence_transformers.SentenceTransformer(str(directory), device="cpu", model_kwargs=kwargs)
    model = SentenceEncoder.from_pretrained(directory)
    assert model.max_seq_length == oracle.max_seq_length
    for text in texts:
        assert model._tokenizer.encode(text)[0] == oracle.preprocess([text])["input_ids"][0].tolist(), repr(text)
    expected, actual = oracle.encode(texts, **arguments), model.encode(texts, **arguments)
    bound = EMBEDDING_BOUND * np.maximum(np.abs(expected), 1)
    assert_close(actual, expected, bound, label=str(directory))
    for text, embedding in zip(texts, actual, strict=True):
        assert_same_bits(model.encode(text, **arguments), embedding, label=text)
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_family_in_each_dtype(model_type: str, dtype: str, tmp_path: Path) -> None:
    _assert_same(_save(tmp_path, model_type, dtype=dtype))


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
    {"max_position_embeddings": 20},
    {"num_hidden_layers": 1},
    {"chunk_size_feed_forward": 3},
    {"tie_word_embeddings": False},
    {"use_cache": False},
]
DISTILBERT_SWITCHES: list[dict[str, Any]] = [
    {"activation": "relu"},
    {"sinusoidal_pos_embds": True},
    {"max_position_embeddings": 20},
    {"pad_token_id": 3},
    {"n_layers": 1},
    {"chunk_size_feed_forward": 3},
]


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [(name, changes) for name in FAMILIES[:-1] for changes in SWITCHES]
    + [("distilbert", changes) for changes in DISTILBERT_SWITCHES],
    ids=str,
)
def test_each_switch(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    _assert_same(_save(tmp_path, model_type, **changes))


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMaskedLM", "ForTokenClassification"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_model_with_a_head(model_type: str, head: str, tmp_path: Path) -> None:
    _assert_same(_save(tmp_path, model_type, head))


@pytest.mark.parametrize("pooling", ["cls", "max", "lasttoken", "weightedmean"])
@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_poolings_and_prompts(model_type: str, include_prompt: bool, pooling: str, tmp_path: Path) -> None:
    whole = [
        modules.Transformer(str(_save(tmp_path / "transformer", model_type))),
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
    _save(tmp_path, model_type, **({} if model_type == "distilbert" else {"type_vocab_size": 2}))
    library = transformers.AutoTokenizer.from_pretrained(tmp_path)
    oracle = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model = SentenceEncoder.from_pretrained(tmp_path)._model
    for first, second in [("the dog", "a"), ("", ""), ("a", "the dog dog a")]:
        ids = library(first, second)["input_ids"]
        types = [int(i > len(first)) for i in range(len(ids))]
        given = {} if model_type == "distilbert" else {"token_type_ids": torch.tensor([types])}
        with torch.no_grad():
            expected = oracle(input_ids=torch.tensor([ids]), **given).last_hidden_state[0].numpy()
        actual = model.hidden_states(np.array(ids), np.array([0, len(ids)]), None, np.array(types))
        assert_close(actual, expected, EMBEDDING_BOUND * np.maximum(np.abs(expected), 1), label=f"{first}|{second}")
